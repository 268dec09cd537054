"""Gauges of each sweep and prediction, computed from the newest statuses at scrape time.

They disappear with their resource, and a scrape never sees half of an update.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from isoloss_contract.reading import parse_timestamp
from isoloss_operator.api import statuses
from isoloss_operator.process.sweep_load import SweepLoad

OBJECT = ("namespace", "name")
POINT_STATES = ("pending", "active", "succeeded", "diverged", "failed")

Name = tuple[str, str]
Samples = Mapping[tuple[str, ...], float | None]
"""Values by the labels that follow namespace and name; None: absent."""


@dataclass(frozen=True)
class _Sweep:
    status: statuses.ScalingSweepStatus
    load: SweepLoad
    reached: tuple[int, str]
    """Points done, and FLOPs spent: those grow with what attempts report beyond what others of the point had reached
    before them."""
    since: float
    """When that was reached, in Unix seconds."""


Shown = TypeVar("Shown", bound=_Sweep | statuses.HyperparamPredictionStatus)


class StatusCollector(Collector):
    """Keeps the newest status of every resource. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sweeps: dict[Name, _Sweep] = {}
        self._predictions: dict[Name, statuses.HyperparamPredictionStatus] = {}

    def show_sweep(
        self, name: Name, status: statuses.ScalingSweepStatus, load: SweepLoad, now: float
    ) -> None:
        """Publish a sweep's status and what it occupies. `now` in Unix seconds."""
        reached = status.points.succeeded + status.points.diverged, status.spent_flops
        shown = _Sweep(status, load, reached, now)
        with self._lock:
            before = self._sweeps.get(name)
            if before is not None and before.reached == shown.reached:
                shown = replace(shown, since=before.since)
            self._sweeps[name] = shown

    def show_prediction(self, name: Name, status: statuses.HyperparamPredictionStatus) -> None:
        """Publish a prediction's status."""
        with self._lock:
            self._predictions[name] = status

    def drop_sweep(self, name: Name) -> None:
        """The sweep is gone."""
        with self._lock:
            self._sweeps.pop(name, None)

    def drop_prediction(self, name: Name) -> None:
        """The prediction is gone."""
        with self._lock:
            self._predictions.pop(name, None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: the names are only known at scrape time."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges."""
        with self._lock:
            sweeps, predictions = dict(self._sweeps), dict(self._predictions)
        yield from _families("isoloss_scalingsweep", SWEEP_GAUGES, sweeps)
        yield from _families("isoloss_hyperparamprediction", PREDICTION_GAUGES, predictions)


@dataclass(frozen=True)
class _Gauge(Generic[Shown]):
    name: str
    """Without that of the kind before it."""
    text: str
    samples: Callable[[Shown], Samples]
    labels: tuple[str, ...] = ()


def _families(
    kind: str, gauges: Sequence[_Gauge[Shown]], shown: Mapping[Name, Shown]
) -> Iterator[GaugeMetricFamily]:
    for gauge in gauges:
        labels = (*OBJECT, *gauge.labels)
        family = GaugeMetricFamily(f"{kind}_{gauge.name}", gauge.text, labels=labels)
        for name, each in shown.items():
            for values, value in gauge.samples(each).items():
                if value is not None:
                    family.add_metric((*name, *values), value)
        yield family


def _alone(value: float | None) -> Samples:
    return {(): value}


def _each(values: Mapping[str, float]) -> Samples:
    return {(label,): value for label, value in values.items()}


def _conditions(conditions: Iterable[statuses.Condition]) -> Samples:
    values = {"True": 1.0, "False": 0.0}
    return {(each.type, each.reason): values.get(each.status) for each in conditions}


def _bounds(found: statuses.IntervalStatus | None) -> Samples:
    if found is None:
        return {}
    return {(bound,): _number(getattr(found, bound) or "") for bound in ("value", "low", "high")}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(hours: str) -> float | None:
    number = _number(hours)
    return None if number is None else 3600 * number


def _timestamp(text: str) -> float | None:
    time = parse_timestamp(text)
    return None if time is None else time.timestamp()


CONDITION_TEXT = "1 if the condition is True, 0 if it is False; absent if it is Unknown."

SWEEP_GAUGES: Final[Sequence[_Gauge[_Sweep]]] = (
    _Gauge(
        "points",
        "Points by state.",
        lambda s: _each({state: getattr(s.status.points, state) for state in POINT_STATES}),
        ("state",),
    ),
    _Gauge(
        "progress_ratio",
        "Points that succeeded or diverged, over all points.",
        lambda s: _alone(s.reached[0] / max(1, s.status.points.total)),
    ),
    _Gauge(
        "last_progress_timestamp_seconds",
        "Time at which a point was last completed or advanced.",
        lambda s: _alone(s.since),
    ),
    _Gauge(
        "compute_flops",
        "FLOPs planned for the whole grid, and spent by all attempts.",
        lambda s: {
            ("planned",): _number(s.status.planned_flops),
            ("spent",): _number(s.status.spent_flops),
        },
        ("kind",),
    ),
    _Gauge(
        "accelerator_seconds",
        "Accelerator seconds of all attempts, running and failed ones included.",
        lambda s: _alone(_seconds(s.status.accelerator_hours)),
    ),
    _Gauge(
        "estimated_completion_timestamp_seconds",
        "Estimated time of completion; absent if unknown.",
        lambda s: _alone(_timestamp(s.status.estimated_completion)),
    ),
    _Gauge(
        "condition",
        CONDITION_TEXT,
        lambda s: _conditions(s.status.conditions),
        ("condition", "reason"),
    ),
    _Gauge(
        "jobs",
        "Unfinished Jobs by state: running, starting, queued (waiting for Kueue), unschedulable (no node or quota "
        "has room for its pod), blocked (its pod cannot start).",
        lambda s: _each(s.load.jobs),
        ("state",),
    ),
    _Gauge(
        "accelerators",
        "Accelerators that running pods hold now; a pod that requests none counts as one.",
        lambda s: _alone(s.load.accelerators),
    ),
    _Gauge(
        "oldest_progress_timestamp_seconds",
        "Last progress of the training point that has been silent longest; absent if none trains.",
        lambda s: _alone(s.load.oldest_progress.timestamp() if s.load.oldest_progress else None),
    ),
    _Gauge(
        "budget_used_ratio",
        "Spent over allowed, by what spec.budget limits; absent without a budget.",
        lambda s: _each(s.load.budget_used),
        ("limit",),
    ),
    _Gauge(
        "lowest_loss",
        "Lowest loss of a size's succeeded points, in nats per token; absent before the first.",
        lambda s: _each(s.load.lowest_losses),
        ("size",),
    ),
)


def _answer(field: str, text: str) -> _Gauge[statuses.HyperparamPredictionStatus]:
    """Of a field of a prediction's status."""
    text = f"{text}, and the low and high end of its interval; absent without one."
    return _Gauge(field, text, lambda p: _bounds(getattr(p, field)), ("bound",))


PREDICTION_GAUGES: Final[Sequence[_Gauge[statuses.HyperparamPredictionStatus]]] = (
    _Gauge(
        "extrapolation_ratio",
        "Total compute of the prediction over the largest compute of its sweep.",
        lambda p: _alone(_number(p.extrapolation.compute_factor) if p.extrapolation else None),
    ),
    _answer("initial_loss", "Loss of the checkpoint, in nats per token"),
    _answer("target_loss", "Loss expected at the end of the planned run, in nats per token"),
    _answer("learning_rate", "Predicted learning rate"),
    _answer("batch_size", "Predicted batch size, in sequences"),
    _Gauge(
        "condition",
        CONDITION_TEXT,
        lambda p: _conditions(p.conditions),
        ("condition", "reason"),
    ),
)
