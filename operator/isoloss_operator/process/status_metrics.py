"""Gauges of each sweep and prediction, computed from the newest statuses at scrape time.

They disappear with their resource, and a scrape never sees half of an update.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from isoloss_operator.api.statuses import (
    Condition,
    HyperparamPredictionStatus,
    IntervalStatus,
    ScalingSweepStatus,
)
from isoloss_operator.process.sweep_load import SweepLoad

OBJECT = ("namespace", "name")
POINT_STATES = ("pending", "active", "succeeded", "diverged", "failed")

_ANSWERS: Final = {
    "initial_loss": "Loss of the checkpoint, in nats per token",
    "target_loss": "Loss expected at the end of the planned run, in nats per token",
    "learning_rate": "Predicted learning rate",
    "batch_size": "Predicted batch size, in sequences",
}
"""Fields of a prediction's status that are metrics, and what they are."""

Name = tuple[str, str]
Sample = tuple[tuple[str, ...], float | None]


@dataclass(frozen=True)
class _Progress:
    """Progress of a sweep, or of probes, and when it was reached (Unix seconds)."""

    reached: tuple[int, int | str]
    since: float


class StatusCollector(Collector):
    """Keeps the newest status of every resource. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sweeps: dict[Name, ScalingSweepStatus] = {}
        self._predictions: dict[Name, HyperparamPredictionStatus] = {}
        self._progress: dict[Name, _Progress] = {}
        self._probes: dict[Name, _Progress] = {}
        self._loads: dict[Name, SweepLoad] = {}

    def show_sweep(self, name: Name, status: ScalingSweepStatus, now: float) -> None:
        """Publish a sweep's status. `now` in Unix seconds."""
        done = status.points.succeeded + status.points.diverged
        reached = (done, sum(point.tokens for point in status.active))
        with self._lock:
            self._sweeps[name] = status
            _note(self._progress, name, reached, now)

    def show_load(self, name: Name, load: SweepLoad) -> None:
        """Publish what a sweep occupies."""
        with self._lock:
            self._loads[name] = load

    def show_prediction(self, name: Name, status: HyperparamPredictionStatus, now: float) -> None:
        """Publish a prediction's status. `now` in Unix seconds."""
        probes = status.validation
        with self._lock:
            self._predictions[name] = status
            if probes is None:
                self._probes.pop(name, None)
                return
            # FLOPs grow with what running probes report.
            reached = (probes.points.succeeded + probes.points.diverged, probes.spent_flops)
            _note(self._probes, name, reached, now)

    def drop_sweep(self, name: Name) -> None:
        """The sweep is gone."""
        with self._lock:
            self._sweeps.pop(name, None)
            self._progress.pop(name, None)
            self._loads.pop(name, None)

    def drop_prediction(self, name: Name) -> None:
        """The prediction is gone."""
        with self._lock:
            self._predictions.pop(name, None)
            self._probes.pop(name, None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: the names are only known at scrape time."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges."""
        with self._lock:
            sweeps, progress = dict(self._sweeps), dict(self._progress)
            predictions, loads = dict(self._predictions), dict(self._loads)
            probes = dict(self._probes)
        yield from _sweep_gauges(sweeps, progress)
        yield from _load_gauges(loads)
        yield from _prediction_gauges(predictions)
        yield from _probe_gauges(predictions, probes)


def _note(
    progress: dict[Name, _Progress], name: Name, reached: tuple[int, int | str], now: float
) -> None:
    if name not in progress or progress[name].reached != reached:
        progress[name] = _Progress(reached, now)


def _sweep_gauges(
    sweeps: dict[Name, ScalingSweepStatus], progress: dict[Name, _Progress]
) -> Iterator[GaugeMetricFamily]:
    yield _gauge(
        "isoloss_scalingsweep_points",
        "Points by state.",
        ("state",),
        (
            ((*name, state), getattr(status.points, state))
            for name, status in sweeps.items()
            for state in POINT_STATES
        ),
    )
    yield _gauge(
        "isoloss_scalingsweep_progress_ratio",
        "Points that succeeded or diverged, over all points.",
        (),
        ((name, _ratio_done(status)) for name, status in sweeps.items()),
    )
    yield _gauge(
        "isoloss_scalingsweep_last_progress_timestamp_seconds",
        "Time at which a point was last completed or an active point last seen to advance.",
        (),
        ((name, progress[name].since) for name in sweeps),
    )
    yield _gauge(
        "isoloss_scalingsweep_compute_flops",
        "FLOPs planned for the whole grid, and spent by all attempts, running and failed ones included.",
        ("kind",),
        (
            ((*name, kind), _number(text))
            for name, status in sweeps.items()
            for kind, text in (("planned", status.planned_flops), ("spent", status.spent_flops))
        ),
    )
    yield _gauge(
        "isoloss_scalingsweep_accelerator_seconds",
        "Accelerator seconds of all attempts, running and failed ones included.",
        (),
        ((name, _seconds(status.accelerator_hours)) for name, status in sweeps.items()),
    )
    yield _gauge(
        "isoloss_scalingsweep_estimated_completion_timestamp_seconds",
        "Estimated time of completion, by the seconds that a token of each size has taken so far; absent if unknown.",
        (),
        ((name, _timestamp(status.estimated_completion)) for name, status in sweeps.items()),
    )
    yield _conditions("isoloss_scalingsweep", {n: s.conditions for n, s in sweeps.items()})


def _load_gauges(loads: dict[Name, SweepLoad]) -> Iterator[GaugeMetricFamily]:
    yield _gauge(
        "isoloss_scalingsweep_jobs",
        "Unfinished Jobs by state: running, starting, queued (waiting for Kueue), unschedulable (no node or quota "
        "has room for its pod), blocked (its pod cannot start).",
        ("state",),
        (
            ((*name, state), count)
            for name, load in loads.items()
            for state, count in load.jobs.items()
        ),
    )
    yield _gauge(
        "isoloss_scalingsweep_accelerators",
        "Accelerators that running pods hold now; a pod that requests none counts as one.",
        (),
        ((name, load.accelerators) for name, load in loads.items()),
    )
    yield _gauge(
        "isoloss_scalingsweep_oldest_progress_timestamp_seconds",
        "Time at which the training point that has been silent longest last advanced; absent if none trains.",
        (),
        (
            (name, load.oldest_progress.timestamp() if load.oldest_progress else None)
            for name, load in loads.items()
        ),
    )
    yield _gauge(
        "isoloss_scalingsweep_budget_used_ratio",
        "Spent over allowed, by what spec.budget limits; absent without a budget.",
        ("limit",),
        (
            ((*name, limit), used)
            for name, load in loads.items()
            for limit, used in load.budget_used.items()
        ),
    )
    yield _gauge(
        "isoloss_scalingsweep_lowest_loss",
        "Lowest loss of the points of a size that succeeded, in nats per token; absent before the first.",
        ("size",),
        (
            ((*name, size), loss)
            for name, load in loads.items()
            for size, loss in load.lowest_losses.items()
        ),
    )


def _prediction_gauges(
    predictions: dict[Name, HyperparamPredictionStatus],
) -> Iterator[GaugeMetricFamily]:
    yield _gauge(
        "isoloss_hyperparamprediction_extrapolation_ratio",
        "Total compute of the prediction over the largest compute of its sweep.",
        (),
        ((name, _compute_factor(status)) for name, status in predictions.items()),
    )
    for field, text in _ANSWERS.items():
        yield _gauge(
            f"isoloss_hyperparamprediction_{field}",
            f"{text}, and the low and high end of its interval; absent without one.",
            ("bound",),
            (
                ((*name, bound), number)
                for name, status in predictions.items()
                for bound, number in _bounds(getattr(status, field))
            ),
        )
    yield _conditions(
        "isoloss_hyperparamprediction", {n: s.conditions for n, s in predictions.items()}
    )


def _bounds(found: IntervalStatus | None) -> Iterator[tuple[str, float | None]]:
    if found is not None:
        for bound in ("value", "low", "high"):
            yield bound, _number(getattr(found, bound) or "")


def _probe_gauges(
    predictions: dict[Name, HyperparamPredictionStatus], progress: dict[Name, _Progress]
) -> Iterator[GaugeMetricFamily]:
    validations = {name: s.validation for name, s in predictions.items() if s.validation}
    yield _gauge(
        "isoloss_hyperparamprediction_probes",
        "Probes of an answer by state; absent without spec.validation.",
        ("state",),
        (
            ((*name, state), getattr(validation.points, state))
            for name, validation in validations.items()
            for state in POINT_STATES
        ),
    )
    yield _gauge(
        "isoloss_hyperparamprediction_probes_last_progress_timestamp_seconds",
        "Time at which a probe was last completed or seen to advance; absent without spec.validation.",
        (),
        ((name, reached.since) for name, reached in progress.items()),
    )


def _conditions(entity: str, conditions: dict[Name, tuple[Condition, ...]]) -> GaugeMetricFamily:
    return _gauge(
        f"{entity}_condition",
        "1 if the condition is True, 0 if it is False; absent if it is Unknown.",
        ("condition", "reason"),
        (
            ((*name, each.type, each.reason), {"True": 1.0, "False": 0.0}.get(each.status))
            for name, group in conditions.items()
            for each in group
        ),
    )


def _gauge(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(*OBJECT, *labels))
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def _ratio_done(status: ScalingSweepStatus) -> float:
    points = status.points
    return (points.succeeded + points.diverged) / points.total if points.total else 0.0


def _compute_factor(status: HyperparamPredictionStatus) -> float | None:
    return _number(status.extrapolation.compute_factor) if status.extrapolation else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(hours: str) -> float | None:
    number = _number(hours)
    return None if number is None else 3600 * number


def _timestamp(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
