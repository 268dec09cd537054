"""From a trained point to a run of the law engine: which evaluations count, and for which weights.

Pure: operator and command line call it with the records that they read from the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from isoloss import formatting
from isoloss.laws import FlopsConvention, Run
from isoloss_contract.records import (
    WARMUP_MULTIPLE,
    AttentionShape,
    ParameterCounts,
    PointConfig,
    TrajectoryRow,
)

Weights = Literal["averaged", "raw", "cooled"]
"""Whose losses: of the averaged or the raw weights of a run at a constant learning rate, or of copies of it
that cooled down."""


@dataclass(frozen=True, repr=False)
class RunSet:
    """Runs from wherever they are, and warnings about what was left out."""

    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        sizes = ", ".join(formatting.count(size) for size in sorted({r.params for r in self.runs}))
        return f"<RunSet: {len(self.runs)} runs of {sizes} parameters>"

    @property
    def provisional(self) -> bool:
        """Whether a run is still training: laws fitted to it can change."""
        return not all(run.finished for run in self.runs)


class BadTrajectory(ValueError):
    """A trajectory is inconsistent; the message names the run and the row."""


def run_from_point(
    name: str,
    config: PointConfig,
    parameters: ParameterCounts,
    trajectory: Sequence[TrajectoryRow],
    *,
    weights: Weights = "averaged",
    bytes_per_token: float | None,
    diverged: bool,
    finished: bool,
    stopped: str = "",
    attention: AttentionShape | None = None,
    flops: FlopsConvention = "SixND",
    tokenizer: str | None = None,
) -> Run:
    """The law engine's view of one point: N active matrix parameters, B in sequences, loss over tokens.

    Evaluations during warm-up (tokens <= 2 x warm-up tokens) and those without a finite loss of the
    chosen weights are left out; raw losses never replace averaged ones. A cooled loss counts at the tokens of
    the copy that cooled down, not of the run that it left. `tokenizer` is a digest, if known.
    Raises BadTrajectory if tokens do not increase, a loss is not positive, cooled losses are asked of a run
    without cooldowns, or FLOPs shall be counted with attention and its shape is not known.
    """
    _check(name, trajectory)
    if weights == "cooled" and config.evaluation.cooldown is None:
        raise BadTrajectory(
            f"{name}: it was trained without evaluation.cooldown and has no cooled losses: fit those of the "
            "averaged or the raw weights"
        )
    start = WARMUP_MULTIPLE * config.optimizer.warmup_tokens
    counted = [
        (tokens, loss)
        for row in trajectory
        for tokens, loss in (_loss(row, weights),)
        if row.tokens > start and loss is not None
    ]
    for tokens, loss in counted:
        if loss <= 0:
            raise BadTrajectory(f"{name}: loss {loss} at {tokens} tokens is not positive")
    return Run(
        name=name,
        params=float(parameters.active),
        batch_size=float(config.batch_size),
        sequence_length=config.sequence_length,
        learning_rate=config.learning_rate,
        configuration=config.model_copy(update={"seed": 0}).key,
        seed=str(config.seed),
        tokens=np.array([tokens for tokens, _ in counted], dtype=np.float64),
        losses=np.array([loss for _, loss in counted], dtype=np.float64),
        flops_per_token=_flops_per_token(name, config, parameters, attention, flops),
        flops_convention=flops,
        bytes_per_token=bytes_per_token,
        diverged=diverged,
        finished=finished,
        stopped=stopped,
        tokenizer=tokenizer,
        loss_kind=weights,
        optimizer=config.optimizer.name,
    )


def _flops_per_token(
    name: str,
    config: PointConfig,
    parameters: ParameterCounts,
    attention: AttentionShape | None,
    flops: FlopsConvention,
) -> float:
    if flops == "SixND":
        return training_flops_per_token(parameters)
    if attention is None:
        raise BadTrajectory(
            f"{name}: its result lacks the shape of its attention, which the trainer knows for the usual "
            "families only. Count FLOPs as SixND"
        )
    return training_flops_per_token(parameters, attention, config.sequence_length)


def training_flops_per_token(
    parameters: ParameterCounts, attention: AttentionShape | None = None, sequence_length: int = 0
) -> float:
    """6 N, and with `attention` what the scores take in sequences of that many tokens."""
    scores = attention.flops_per_token(sequence_length) if attention is not None else 0.0
    return 6.0 * parameters.active + scores


def _loss(row: TrajectoryRow, weights: Weights) -> tuple[int, float | None]:
    """Tokens and loss. Its standard error is that of the validation text, which all runs share."""
    if weights == "averaged":
        return row.tokens, row.averaged_loss
    if weights == "raw":
        return row.tokens, row.loss
    return row.cooled_tokens or 0, row.cooled_loss


def _check(name: str, trajectory: Sequence[TrajectoryRow]) -> None:
    for number, (before, after) in enumerate(pairwise(trajectory), start=2):
        if after.tokens <= before.tokens:
            raise BadTrajectory(
                f"{name}: row {number}: {after.tokens} tokens after {before.tokens}: tokens must increase"
            )
