"""A ScalingSweep and a HyperparamPrediction in words, from their statuses."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from isoloss.formatting import flops, given, number
from isoloss.summaries import not_yet
from isoloss.validation import is_verdict
from isoloss_contract.reading import parse_timestamp

Json = dict[str, Any]
_LAWS = (
    ("learning rate", "learningRateLaw"),
    ("batch size", "batchSizeLaw"),
    ("loss over compute", "lossComputeLaw"),
)
STALE, VALIDATED = "Stale", "Validated"
DONE = ("Succeeded", "Diverged")
"""States of a place near the answer with a result."""
NO_ANSWER = "NothingWrong"
"""Reason of Stale without an answer that could be out of date."""
NOTHING_TO_FIT = "NothingToFit"
"""Reason of Ready of a sweep whose points all lie around answers of predictions."""


@dataclass(frozen=True)
class View:
    """Both resources, read together."""

    sweep: Json
    """Empty: that of the prediction is gone, or the store has no page of it yet."""
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
    def fits_nothing(self) -> bool:
        """Whether the sweep has no laws and will have none, because its points only judge answers of predictions."""
        found = (self.condition(self.sweep, name) for name in ("Ready", "FitReady"))
        return any(each.get("reason") == NOTHING_TO_FIT for each in found)

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
        laws = "nothing to fit" if view.fits_nothing else "laws fitted"
        sweep = f"{counts}, {laws}" if view.sweep else "no sweep"
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
    parts = [f"{name} {status[field]['value']}" for name, field in names if field in status]
    parts += [f"stale: {stale.get('reason', '')}"] if stale.get("status") == "True" else []
    parts += [f"not ready: {ready.get('reason', '')}"] if ready.get("status") != "True" else []
    return ", ".join(parts)


def _probes_in_words(view: View) -> str:
    """How far the probes are, their losses as they come, and the verdict; empty if there are none."""
    validated = view.condition(view.prediction, VALIDATED)
    if not validated:
        return ""
    found = (view.prediction or {}).get("status", {}).get("validation") or {}
    places = found.get("places", ())
    losses = " ".join(place["loss"] for place in places if place.get("loss"))
    done = sum(place.get("state") in DONE for place in places)
    probed = f"; probes {done}/{len(places)}" if places else "; probes"
    return f"{probed}{f' ({losses})' if losses else ''}, {_verdict(validated)}"


def _verdict(validated: Json) -> str:
    status, reason = validated.get("status"), validated.get("reason", "")
    return reason if status == "Unknown" else f"Validated {status}: {reason}"


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
    parts = []
    for name, which, kind in (*kinds, ("probes", view.prediction, VALIDATED)):
        if condition := view.condition(which, kind):
            parts.append(f"{name}: {condition.get('reason', '')}: {condition.get('message', '')}")
    return "\n".join(parts)


def cost_line(view: View) -> str:
    """FLOPs and accelerator hours so far; empty before anything is planned."""
    status = view.sweep.get("status", {})
    names = ("spentFlops", "plannedFlops", "acceleratorHours")
    spent, planned, hours = (_number(status.get(name)) for name in names)
    if not planned:
        return ""
    cost = (
        f"cost so far {flops(spent)} FLOPs, {spent / planned:.0%} of the whole grid's "
        f"{flops(planned)}"
    )
    return f"{cost}; {number(hours)} accelerator hours" if hours else cost


def _number(text: Any) -> float:
    """0 for what is none: a status is shown whatever it holds."""
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0


def size_lines(view: View) -> list[Json]:
    """The sizes in the order of the spec: proxy, points done of all (`progress`), percent of the tokens that are wanted so far
    (`trained`), and the lowest loss among the points that came furthest, nats per token."""
    sizes = view.sweep.get("status", {}).get("sizes", ())
    return [{"progress": "", "trained": 0, "loss": "", **size} for size in sizes]


def search_lines(view: View) -> list[str]:
    """What a sequential search has chosen, what that saves, and what it decided last and why; none without one."""
    found = view.sweep.get("status", {}).get("search") or {}
    counts = (
        ("finished", "finished"),
        ("paused", "stopped on the way"),
        ("notChosen", "not chosen"),
        ("added", "added to the grid"),
    )
    parts = [f"{found[field]} {words}" for field, words in counts if found.get(field)]
    line = ", ".join(parts)
    if line and found.get("savedFlops"):
        saved = _number(found["savedFlops"])
        words = "saved" if saved >= 0 else "more than the whole grid"
        line = f"{line}; {flops(abs(saved))} FLOPs {words}"
    return [each for each in (line, str(found.get("message", ""))) if each]


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
    """The answer of the laws and that of laws and probes together, those that there are."""
    status = (view.prediction or {}).get("status", {})
    return [
        *_intervals("predicted", view, status),
        *_intervals("with the probes", view, status.get("refined") or {}),
    ]


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
