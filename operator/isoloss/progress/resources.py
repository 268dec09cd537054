"""A ScalingSweep and a HyperparamPrediction as the API server shows them, told in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from isoloss.formatting import given
from isoloss.laws import RefusalReason
from isoloss.summaries import aligned, not_yet
from isoloss_contract import layout
from isoloss_contract.timestamps import parse_timestamp

Json = dict[str, Any]
_LAWS = (
    ("law of the learning rate", "learningRateLaw"),
    ("law of the batch size", "batchSizeLaw"),
    ("loss over compute", "lossComputeLaw"),
)
STALE, VALIDATED = "Stale", "Validated"
DONE = ("Succeeded", "Diverged")
"""States of a place near the answer with a result."""
NO_ANSWER = "NothingWrong"
"""Reason of Stale without an answer that could be out of date."""
UNDECIDED = frozenset(
    {
        *map(str, RefusalReason),
        "BadConfiguration",
        "CheckpointChanged",
        "CheckpointDiffers",
        "CorpusDiffers",
        "DataChanged",
        "InvalidSpec",
        "LossDiffers",
        "NoMinimum",
        "NoResults",
        "OptimizerDiffers",
        "TooFewProbes",
        "TooManyFailedPoints",
        "WithinNoise",
    }
)
"""Reasons of a Validated that stays Unknown unless a user changes something."""


def is_verdict(status: str, reason: str) -> bool:
    """Whether a Validated says what the points came to, and not what it waits for."""
    return status in ("True", "False") or reason in UNDECIDED


@dataclass(frozen=True)
class View:
    """Both resources, read together."""

    sweep: Json
    """Empty: that of the prediction is gone, or the store has no copy of its status yet."""
    prediction: Json | None = None
    """None: only the sweep is watched."""

    def condition(self, which: Json | None, name: str) -> Json:
        """A condition observed for the current generation, or {}."""
        which = which or {}
        generation = which.get("metadata", {}).get("generation")
        for condition in which.get("status", {}).get("conditions", ()):
            if condition["type"] == name and condition.get("observedGeneration") == generation:
                return dict(condition)
        return {}

    def is_true(self, which: Json | None, name: str) -> bool:
        """Whether a condition is True for the current generation."""
        return self.condition(which, name).get("status") == "True"

    @property
    def is_ready(self) -> bool:
        """Whether sweep and prediction are ready, the report is drawn, the prediction is not stale and its
        probes are over."""
        if self.is_true(self.sweep, "Reconciling") or not self.is_true(self.sweep, "Ready"):
            return False
        if self.prediction is None:
            return True
        is_stale = self.is_true(self.prediction, STALE)
        return self.is_true(self.prediction, "Ready") and not is_stale and self.is_judged

    @property
    def is_judged(self) -> bool:
        """Whether the probes of the answer are over, or none are asked for."""
        if not (self.prediction or {}).get("spec", {}).get("validation"):
            return True
        found = self.condition(self.prediction, VALIDATED)
        return is_verdict(found.get("status", ""), found.get("reason", ""))

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.is_ready or bool(self.stalled)

    @property
    def stalled(self) -> Json:
        """The condition that says that only the user can help, or {}."""
        for which in (self.sweep, self.prediction):
            if self.is_true(which, "Stalled"):
                return self.condition(which, "Stalled")
        return {}


def headline(view: View) -> str:
    """The current state in one line."""
    status = view.sweep.get("status", {})
    points = status.get("points", {})
    total = points.get("total", 0)
    counts = _counts_in_words(points)
    ready = view.condition(view.sweep, "Ready")
    if ready.get("status") == "True" or (view.prediction and not view.sweep):
        sweep = f"{counts}, laws fitted" if view.sweep else "no sweep"
        answer = "" if view.prediction is None else f"; {_answer(view, view.prediction)}"
        return f"{sweep}{answer}{_probes_in_words(view)}"
    if not total:
        return f"sweep: {ready.get('reason', 'waiting for the operator')}"
    left = _time_left(str(status.get("estimatedCompletion", "")))
    active = points.get("active", 0)
    return f"{counts}, {active} active, {ready.get('reason', 'waiting for the operator')}{left}"


def _counts_in_words(points: Json) -> str:
    """Done of all points as status.progress counts them, without those that failed for good."""
    done = sum(points.get(state, 0) for state in ("succeeded", "diverged"))
    failed = points.get("failed", 0)
    return f"points {done}/{points.get('total', 0)}{f', {failed} failed' if failed else ''}"


def _answer(view: View, prediction: Json) -> str:
    ready, stale = (view.condition(prediction, kind) for kind in ("Ready", STALE))
    if ready.get("status") != "True" and stale.get("reason", NO_ANSWER) == NO_ANSWER:
        return f"prediction: {ready.get('reason', 'waiting')}"
    names = (("learning rate", "learningRate"), ("batch size", "batchSize"))
    status = prediction.get("status", {})
    told = [f"{name} {status[field]['value']}" for name, field in names if field in status]
    told += [f"stale: {stale.get('reason', '')}"] if stale.get("status") == "True" else []
    told += [f"not ready: {ready.get('reason', '')}"] if ready.get("status") != "True" else []
    return ", ".join(told)


def _probes_in_words(view: View) -> str:
    """How far the probes are, their losses as they come, and the verdict; empty if there are none."""
    validated = view.condition(view.prediction, VALIDATED)
    if not validated:
        return ""
    found = (view.prediction or {}).get("status", {}).get("validation") or {}
    losses = " ".join(place["loss"] for place in found.get("places", ()) if place.get("loss"))
    told = f"; probes {_places_done(found)}" if found.get("places") else "; probes"
    return f"{told}{f' ({losses})' if losses else ''}, {_verdict(validated)}"


def _places_done(validation: Json) -> str:
    places = validation.get("places", ())
    return f"{sum(place.get('state') in DONE for place in places)}/{len(places)}"


def _verdict(validated: Json) -> str:
    status, reason = validated.get("status"), validated.get("reason", "")
    return reason if status == "Unknown" else f"Validated {status}: {reason}"


def probe_lines(view: View) -> list[str]:
    """A table of the probes and what laws and probes say together; none if none are planned."""
    status = (view.prediction or {}).get("status", {})
    found = status.get("validation") or {}
    places = found.get("places", ())
    if not places:
        return []
    header = ("learning rate", "batch", "state", "loss", "to answer")
    lines = [f"probes of {found.get('tokens', 0):,} tokens: {_places_done(found)}"]
    lines += aligned([header, *map(_probe_row, places)]).splitlines()
    refined = status.get("refined") or {}
    return lines + _intervals("with the probes", view, refined)


def _probe_row(place: Json) -> tuple[str, ...]:
    margin = place.get("standardError", "")
    difference = f"{place['difference']} +- {margin}" if place.get("difference") else ""
    shown = (place.get("learningRate", ""), place.get("batchSize", ""), place.get("state", ""))
    return (*map(str, shown), place.get("loss", ""), difference)


def active_points(view: View) -> list[tuple[str, str, str]]:
    """Name, tokens and loss of the points that are training."""
    found = view.sweep.get("status", {}).get("active", ())
    return [(p["name"], f"{p.get('tokens', 0):,}", p.get("loss", "")) for p in found]


def _time_left(completion: str) -> str:
    """How long it is until an RFC 3339 time, in words; empty if it is none."""
    end = parse_timestamp(completion)
    if end is None:
        return ""
    return f", about {_duration((end - datetime.now(UTC)).total_seconds())} left"


def _duration(seconds: float) -> str:
    """In the two largest units that there are, rounded to the smaller one, and at least a minute."""
    minutes, hours = max(round(seconds / 60), 1), round(seconds / 3600)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def waited_for(view: View) -> str:
    """The reason and message of Ready, or of Stalled, of Stale if the answer is, and of Validated: what is waited
    for and why."""
    named = [("sweep", view.sweep), ("prediction", view.prediction)]
    kinds = [
        (name, which, "Stalled" if view.is_true(which, "Stalled") else "Ready")
        for name, which in named
    ]
    if view.is_true(view.prediction, STALE):
        kinds.append(("answer, stale", view.prediction, STALE))
    told = []
    for name, which, kind in (*kinds, ("probes", view.prediction, VALIDATED)):
        if condition := view.condition(which, kind):
            told.append(f"{name}: {condition.get('reason', '')}: {condition.get('message', '')}")
    return "\n".join(told)


def ledger_folder(view: View) -> str:
    """URI of the sweep's folder in the store, by its status; empty before there is a ledger."""
    uri = str((view.sweep.get("status", {}).get("ledger") or {}).get("uri", ""))
    return uri.removesuffix(layout.ledger_in(""))


def cost_so_far(view: View) -> str:
    """FLOPs spent and planned, as the status has them."""
    status = view.sweep.get("status", {})
    spent, planned = status.get("spentFlops", ""), status.get("plannedFlops", "")
    return f"cost so far {spent} FLOPs, the whole grid {planned}" if spent and planned else ""


def planned_flops(view: View) -> float:
    """FLOPs of the whole grid, as the status has them; 0: it has none."""
    try:
        return float(view.sweep.get("status", {}).get("plannedFlops") or 0.0)
    except ValueError:
        return 0.0


def law_lines(view: View) -> list[str]:
    """The laws, if there are any."""
    status = view.sweep.get("status", {})
    return [
        f"{name}: {_law_in_words(view, law)}"
        for name, field in _LAWS
        if (law := status.get(field))
    ]


def _law_in_words(view: View, law: Json) -> str:
    reason = str(law.get("reason", ""))
    is_over = (
        view.is_true(view.sweep, "Ready")
        or view.condition(view.sweep, "Ready").get("reason") == reason
    )
    if not law.get("formula") and not is_over:
        return not_yet(reason)
    return f"{law.get('status', '')} {law.get('formula') or reason}"


def answer_lines(view: View) -> list[str]:
    """The answer, if there is one."""
    return _intervals("predicted", view, (view.prediction or {}).get("status", {}))


def _intervals(title: str, view: View, answer: Json) -> list[str]:
    """Learning rate, batch size and regret with their 80% intervals, those that are there."""
    names = (("learning rate", "learningRate"), ("batch size", "batchSize"), ("regret", "regret"))
    is_given = (view.prediction or {}).get("spec", {}).get("batchSize") is not None
    return [
        f"{title} {name}: {_margin(found, is_given=is_given and field == 'batchSize')}"
        for name, field in names
        if (found := answer.get(field)) and found.get("value")
    ]


def _margin(found: Json, *, is_given: bool) -> str:
    low, high = found.get("low", ""), found.get("high", "")
    # An answer from before the batch size was given has an interval.
    return (
        given(found["value"]) if is_given and low == high else f"{found['value']} [{low}, {high}]"
    )
