"""The records of a run: rows of its trajectory and the final result."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from isoloss_contract.records import (
    AttentionShape,
    DomainLoss,
    Outcome,
    ParameterCounts,
    PointResult,
    TrajectoryRow,
)
from isoloss_trainer.attempt import Attempt, TrainingState
from isoloss_trainer.evaluation import Loss, bytes_per_token
from isoloss_trainer.optimizer import time_constants

PACKAGES = ("torch", "transformers", "isoloss")
"""Whose versions every result names: another version may compute another loss."""

Losses = tuple[Loss, dict[str, Loss]]
"""Losses of the mixture and of each domain."""


def trajectory_row(
    state: TrainingState, tokens: int, raw: Losses, averaged: Losses
) -> TrajectoryRow:
    """An evaluation of the raw and the averaged weights; losses that are not finite become None."""
    (loss, domains), (averaged_loss, averaged_domains) = raw, averaged
    return TrajectoryRow(
        step=state.step,
        tokens=tokens,
        loss=_finite(loss.value),
        loss_standard_error=_finite(loss.standard_error),
        averaged_loss=_finite(averaged_loss.value),
        averaged_loss_standard_error=_finite(averaged_loss.standard_error),
        domains={name: _domain(domains[name], averaged_domains[name]) for name in domains},
        **state.means(),
    )


def with_cooled(row: TrajectoryRow, tokens: int, cooled: Losses) -> TrajectoryRow:
    """The row with the losses of a copy that cooled down from there and has seen `tokens`."""
    loss, domains = cooled
    return row.model_copy(
        update={
            "cooled_tokens": tokens,
            "cooled_loss": _finite(loss.value),
            "cooled_loss_standard_error": _finite(loss.standard_error),
            "domains": {
                name: domain.model_copy(
                    update={
                        "cooled_loss": _finite(domains[name].value),
                        "cooled_standard_error": _finite(domains[name].standard_error),
                    }
                )
                for name, domain in row.domains.items()
            },
        }
    )


def _domain(raw: Loss, averaged: Loss) -> DomainLoss:
    return DomainLoss(
        loss=_finite(raw.value),
        standard_error=_finite(raw.standard_error),
        averaged_loss=_finite(averaged.value),
        averaged_standard_error=_finite(averaged.standard_error),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Ending:
    """How a run ended, or SUCCEEDED while it lasts."""

    outcome: Outcome
    message: str = ""
    diverged_at_tokens: int | None = None

    @classmethod
    def divergence(cls, tokens: int) -> Ending:
        """Found at so many tokens."""
        return cls(Outcome.DIVERGED, f"diverged at {tokens} tokens", tokens)


def point_result(
    attempt: Attempt,
    state: TrainingState,
    ending: Ending,
    rows: tuple[TrajectoryRow, ...],
    trajectory: bytes,
    *,
    parameters: ParameterCounts,
    attention: AttentionShape | None,
    micro_batch: int,
    accelerator_seconds: float,
    epochs: Mapping[str, float],
) -> PointResult:
    """The facts of a run as it stands; `trajectory` is the text of `rows`, `epochs` how often each domain was
    read."""
    task, point, world = attempt.task, attempt.task.point, attempt.world
    cooled = next((row for row in reversed(rows) if row.cooled_tokens is not None), None)
    return PointResult(
        key=point.key,
        outcome=ending.outcome,
        tokens=rows[-1].tokens if rows else 0,
        wanted_tokens=task.tokens,
        steps=state.step,
        parameters=parameters,
        attention=attention,
        bytes_per_token=bytes_per_token(attempt.data, point.mixture),
        diverged_at_tokens=ending.diverged_at_tokens,
        loss=rows[-1].loss if rows else None,
        averaged_loss=rows[-1].averaged_loss if rows else None,
        cooled_tokens=cooled.cooled_tokens if cooled else None,
        cooled_loss=cooled.cooled_loss if cooled else None,
        trajectory_sha256=hashlib.sha256(trajectory).hexdigest(),
        evaluations=len(rows),
        accelerator_seconds=accelerator_seconds,
        accelerators=0 if world.on_cpu else world.size,
        micro_batch=micro_batch,
        time_constants=time_constants(point),
        attempts=state.attempts,
        versions=versions(),
        message=ending.message or _summary(rows[-1], epochs),
        cooldown_tokens=state.cooldown_tokens,
    )


def _summary(last: TrajectoryRow, epochs: Mapping[str, float]) -> str:
    repeated = [
        f"domain {name} was read {passes:.1f} times"
        for name, passes in epochs.items()
        if passes > 1
    ]
    return "; ".join([f"loss {last.loss:.4f} nats per token at {last.tokens} tokens", *repeated])


def versions() -> dict[str, str]:
    """Versions of Python and of the PACKAGES that compute a result."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


def version_of(package: str) -> str:
    """Of an installed package, in words if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # run from a checkout, as `make gpu-check` may be
