"""From a trained point to a run of the law engine: which evaluations count, and for which weights.

Pure: operator and command line call it with the records that they read from the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from isoloss import formatting
from isoloss.laws import Run
from isoloss_contract import ledger, records

if TYPE_CHECKING:
    from isoloss.tables import ReadAs

Weights = Literal["averaged", "raw"]
"""Which losses of a run at a constant learning rate: those of its averaged or of its raw weights."""


@dataclass(frozen=True, repr=False)
class RunSet:
    """Runs from wherever they are, and warnings about what was left out.

    >>> runs = isoloss.read_runs("runs.csv")
    >>> len(runs.runs), runs.warnings
    (75, ())
    """

    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = ()
    read: tuple[ReadAs, ...] = ()
    """What columns of tables were taken for what; empty for tables with our columns."""

    def __repr__(self) -> str:
        sizes = ", ".join(formatting.count(size) for size in sorted({r.params for r in self.runs}))
        return f"<RunSet: {len(self.runs)} run{'' if len(self.runs) == 1 else 's'} of {sizes} parameters>"

    @property
    def provisional(self) -> bool:
        """Whether a run is still training: laws fitted to it can change."""
        return not all(run.finished for run in self.runs)


class BadTrajectory(ValueError):
    """A trajectory is inconsistent; the message names the run and the row."""


def stopped_in_words(record: ledger.PointRecord) -> str:
    """Why a point that is not finished goes on no more; empty: it is finished, or goes on."""
    if record.state is ledger.PointState.DIVERGED or record.state in ledger.FAILED_FOR_GOOD:
        return ""
    intent = record.intent
    if record.state is ledger.PointState.SUCCEEDED:
        is_short = intent.tokens and record.trained_for < record.wanted_tokens
        return "stopped on the way" if is_short else ""
    is_paused = intent.action is ledger.IntentAction.PAUSE and intent.reason != ledger.NOT_CHOSEN
    return "paused" if is_paused else ""


def run_from_point(
    name: str,
    config: records.PointConfig,
    parameters: records.ParameterCounts,
    trajectory: Sequence[records.TrajectoryRow],
    *,
    weights: Weights = "averaged",
    bytes_per_token: float | None,
    diverged: bool,
    finished: bool,
    stopped: str = "",
    tokenizer: str | None = None,
) -> Run:
    """The law engine's view of one point: N active matrix parameters, B in sequences, loss over tokens.

    Evaluations during warm-up (tokens <= 2 x warm-up tokens) and those without a finite loss of the
    chosen weights are left out; raw losses never replace averaged ones. `tokenizer` is a digest, if known.
    Raises BadTrajectory if tokens do not increase or a loss is not positive.
    """
    _check(name, trajectory)
    start = records.WARMUP_MULTIPLE * config.optimizer.warmup_tokens
    counted = [
        (row.tokens, loss)
        for row in trajectory
        for loss in (row.averaged_loss if weights == "averaged" else row.loss,)
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
        flops_per_token=6.0 * parameters.active,
        bytes_per_token=bytes_per_token,
        diverged=diverged,
        finished=finished,
        stopped=stopped,
        tokenizer=tokenizer,
        loss_kind=weights,
        optimizer=config.optimizer.name,
        started_from="Scratch" if config.initial_weights is None else "Checkpoints",
    )


def _check(name: str, trajectory: Sequence[records.TrajectoryRow]) -> None:
    for number, (before, after) in enumerate(pairwise(trajectory), start=2):
        if after.tokens <= before.tokens:
            raise BadTrajectory(
                f"{name}: row {number}: {after.tokens} tokens after {before.tokens}: tokens must increase"
            )
