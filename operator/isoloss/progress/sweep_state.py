"""What a sweep has come to, from its ledger, the reports of its running points and its newest fit: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from isoloss.stages import UNDER_WAY, Stage, stage_of
from isoloss_contract.ledger import (
    NOT_CHOSEN,
    Attempts,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
)
from isoloss_contract.records import PointProgress


@dataclass(frozen=True)
class PointView:
    """One point as it is shown."""

    record: PointRecord
    stage: Stage
    tokens: int
    """Seen so far."""
    target: int
    """Tokens that are wanted now."""
    loss: float | None
    """Loss of averaged weights if known, nats per token."""
    flops: float
    """FLOPs that this sweep's attempts spent on it, as far as they are reported."""

    @property
    def share(self) -> float:
        """Trained tokens of those to its end."""
        return (
            min(1.0, self.tokens / self.record.wanted_tokens) if self.record.wanted_tokens else 0.0
        )


@dataclass(frozen=True)
class SizeView:
    """All points of one size."""

    name: str
    points: tuple[PointView, ...]

    @property
    def trains(self) -> bool:
        """Whether any of its points does."""
        return any(point.stage is Stage.TRAINING for point in self.points)

    @property
    def trained(self) -> float:
        """Share of the tokens to the ends of all points that are trained."""
        return _share(self.points, lambda point: point.tokens)

    @property
    def wanted(self) -> float:
        """Share of those tokens that are trained or wanted now."""
        return _share(self.points, lambda point: max(point.tokens, point.target))

    @cached_property
    def best(self) -> PointView | None:
        """The point with the lowest loss among those that came furthest: others are not comparable yet."""
        known = [p for p in self.points if p.loss is not None and p.stage is not Stage.DIVERGED]
        furthest = max((point.tokens for point in known), default=0)
        return min(
            (point for point in known if point.tokens >= 0.99 * furthest),
            key=lambda point: point.loss or 0.0,
            default=None,
        )


@dataclass(frozen=True)
class SweepState:
    """A whole sweep at one moment."""

    ledger: Ledger
    sizes: tuple[SizeView, ...]
    laws: tuple[str, ...] = ()
    """What there is of the laws, in lines."""
    told_flops: float = 0.0
    """Planned FLOPs of the spec's grid as the operator told last; 0: it has not."""

    @property
    def points(self) -> tuple[PointView, ...]:
        """Points of all sizes."""
        return tuple(point for size in self.sizes for point in size.points)

    @property
    def stages(self) -> Counter[Stage]:
        """Number of points by stage."""
        return Counter(point.stage for point in self.points)

    @property
    def planned_flops(self) -> float:
        """To the ends of all points of the spec's grid, without those added."""
        if self.told_flops:
            return self.told_flops
        return sum(
            record.flops_per_token * record.wanted_tokens
            for record in self.ledger.points
            if self.ledger.addition_of(record) is None
        )

    @property
    def spent_flops(self) -> float:
        """FLOPs of this sweep's own attempts: those that ended, and running ones as of their last reports."""
        running = (p for p in self.points if p.stage is Stage.TRAINING)
        return self.ledger.spent.flops + sum(p.flops - p.record.spent.flops for p in running)

    @property
    def searches(self) -> bool:
        """Whether points wait for the decisions of a search."""
        intents = (record.intent for record in self.ledger.points)
        return any(intent.tokens or intent.reason == NOT_CHOSEN for intent in intents)

    @property
    def under_way(self) -> str:
        """What trains, which of it is the slowest, and what waits; empty if nothing does."""
        stages = self.stages
        parts = []
        if training := [p for p in self.points if p.stage is Stage.TRAINING]:
            slowest = min(training, key=lambda p: p.tokens / max(p.target, 1))
            done = f"{slowest.tokens / max(slowest.target, 1):.0%}"
            parts.append(f"{len(training)} training, the slowest {slowest.record.name} at {done}")
        if stages[Stage.WAITING]:
            waiting = [p.record.attempts for p in self.points if p.stage is Stage.WAITING]
            parts.append(
                f"{len(waiting)} without a slot or a first report{_last_failures(waiting)}"
            )
        return "; ".join(parts)


def sweep_state(
    ledger: Ledger,
    progress: Mapping[str, PointProgress],
    laws: tuple[str, ...] = (),
    told_flops: float = 0.0,
) -> SweepState:
    """The state of a sweep. `progress` is by the points' keys."""
    views = [_view(ledger, record, progress.get(record.key)) for record in ledger.points]
    names = dict.fromkeys(view.record.proxy for view in views)
    sizes = tuple(
        SizeView(name, tuple(view for view in views if view.record.proxy == name))
        for name in names
    )
    return SweepState(ledger, sizes, laws, told_flops)


def asks_for_progress(record: PointRecord) -> bool:
    """Whether a point may be training."""
    return record.state is PointState.PENDING and record.intent.action is IntentAction.RUN


def is_training(ledger: Ledger, record: PointRecord, progress: PointProgress | None) -> bool:
    """Whether `progress` is of an attempt of this sweep whose end the ledger does not know."""
    if progress is None or progress.claimant.sweep_uid != ledger.uid:
        return False
    return progress.claimant.attempt > record.attempts.ended


def _view(ledger: Ledger, record: PointRecord, progress: PointProgress | None) -> PointView:
    now = progress if is_training(ledger, record, progress) else None
    averaged = record.averaged_loss if record.averaged_loss is not None else record.loss
    tokens = max(record.tokens, now.tokens if now is not None else 0)
    is_ahead = now is not None and now.tokens > record.tokens and now.loss is not None
    stage = stage_of(record, is_training=now is not None)
    return PointView(
        record=record,
        stage=stage,
        tokens=tokens,
        target=_target(record, stage),
        loss=now.loss if now is not None and is_ahead else averaged,
        flops=_spent_flops(record, now),
    )


def _spent_flops(record: PointRecord, now: PointProgress | None) -> float:
    """As the ledger will count the attempt that is under way."""
    if now is None:
        return record.spent.flops
    began = record.reached_tokens if now.began_tokens is None else now.began_tokens
    return record.spent.flops + record.flops_per_token * max(0, now.tokens - began)


def _target(record: PointRecord, stage: Stage) -> int:
    if stage is Stage.FINISHED:
        return record.wanted_tokens
    if stage in UNDER_WAY:
        return min(record.intent.tokens or record.wanted_tokens, record.wanted_tokens)
    return record.tokens


def _share(points: Iterable[PointView], tokens: Callable[[PointView], int]) -> float:
    points = tuple(points)
    whole = sum(point.record.wanted_tokens for point in points)
    done = sum(min(tokens(point), point.record.wanted_tokens) for point in points)
    return done / whole if whole else 0.0


def _last_failures(tasks: Iterable[Attempts]) -> str:
    failures = Counter(task.last_failure for task in tasks if task.last_failure)
    told = ", ".join(f"{count} after {name}" for name, count in failures.most_common(3))
    return f" ({told})" if told else ""
