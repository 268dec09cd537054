"""From a trained point to a run of the law engine: which evaluations count, and for which weights.

Pure: operator and command line call it with the records that they read from the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from isoloss.laws import Run
from isoloss_contract.records import WARMUP_MULTIPLE, ParameterCounts, PointConfig, TrajectoryRow

Weights = Literal["averaged", "raw"]


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
    flops_per_token: float | None = None,
    tokenizer: str | None = None,
) -> Run:
    """The law engine's view of one point: N active matrix parameters, B in sequences, loss over tokens.

    Evaluations during warm-up (tokens <= 2 x warm-up tokens) and those without a finite loss of the
    chosen weights are left out; raw losses never replace averaged ones. `flops_per_token` None means
    6 N; `tokenizer` is a digest, if known. Raises BadTrajectory if tokens do not increase or a loss is
    not positive.
    """
    _check(name, trajectory)
    start = WARMUP_MULTIPLE * config.optimizer.warmup_tokens
    counted = [
        (row.tokens, loss, error)
        for row in trajectory
        for loss, error in (_loss(row, weights),)
        if row.tokens > start and loss is not None
    ]
    for tokens, loss, _ in counted:
        if loss <= 0:
            raise BadTrajectory(f"{name}: loss {loss} at {tokens} tokens is not positive")
    errors = [error for _, _, error in counted]
    known = [error for error in errors if error is not None]
    return Run(
        name=name,
        params=float(parameters.active),
        batch_size=float(config.batch_size),
        sequence_length=config.sequence_length,
        learning_rate=config.learning_rate,
        tokens=np.array([tokens for tokens, _, _ in counted], dtype=np.float64),
        losses=np.array([loss for _, loss, _ in counted], dtype=np.float64),
        # All or none: errors known in part would weight some evaluations and not others.
        loss_standard_errors=np.array(known) if known and len(known) == len(errors) else None,
        flops_per_token=flops_per_token,
        bytes_per_token=bytes_per_token,
        diverged=diverged,
        finished=finished,
        tokenizer=tokenizer,
        loss_kind=weights,
        optimizer=config.optimizer.name,
    )


def _loss(row: TrajectoryRow, weights: Weights) -> tuple[float | None, float | None]:
    if weights == "averaged":
        return row.averaged_loss, row.averaged_loss_standard_error
    return row.loss, row.loss_standard_error


def _check(name: str, trajectory: Sequence[TrajectoryRow]) -> None:
    for number, (before, after) in enumerate(pairwise(trajectory), start=2):
        if after.tokens <= before.tokens:
            raise BadTrajectory(
                f"{name}: row {number}: {after.tokens} tokens after {before.tokens}: tokens must increase"
            )
