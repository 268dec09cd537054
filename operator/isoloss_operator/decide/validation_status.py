"""A prediction's status of its probes: where they are, how far, and what laws and probes say together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from isoloss.formatting import batch_size, learning_rate, loss
from isoloss.laws import Interval, Laws, PredictionQuery, Refused, Run
from isoloss.validation import Comparison, InvalidProbes, Validation, probes_of_runs, validate
from isoloss.validation import Reason as Judged
from isoloss_contract import layout
from isoloss_contract.ledger import DONE, FAILED_FOR_GOOD, PointRecord, PointState
from isoloss_contract.reading import Read, problem_of, value_of
from isoloss_operator.api import (
    HyperparamPredictionSpec,
    ProbeStatus,
    RefinedStatus,
    ScalingSweepSpec,
    ValidationStatus,
)
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs.requests import store_uri
from isoloss_operator.decide.law_status import MAX_ENTRIES, interval_status
from isoloss_operator.decide.observation import Course
from isoloss_operator.decide.prediction_status import target_length
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.sweep_status import SweepFacts, numbers_of
from isoloss_operator.decide.tasks.task_pass import TaskPass
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.probes import ALIKE

# --------------------------------------------------------------------- what the losses of probes say


_REASONS: Final[Mapping[Judged, Reason]] = {
    Judged.ANSWER_HOLDS: Reason.ANSWER_HOLDS,
    Judged.BETTER_ANSWER_NEARBY: Reason.BETTER_ANSWER_NEARBY,
    Judged.ANSWER_DIVERGED: Reason.ANSWER_DIVERGED,
    Judged.WITHIN_NOISE: Reason.WITHIN_NOISE,
    Judged.NO_MINIMUM: Reason.NO_MINIMUM,
    Judged.TOO_FEW_PROBES: Reason.TOO_FEW_PROBES,
}


@dataclass(frozen=True)
class Verdict:
    """The condition, and the figures behind it if there are any."""

    finding: Finding
    validation: Validation | None = None
    judged: tuple[PointRecord, ...] = ()
    """The probes, cut to the tokens at which they are compared."""
    tokens: int = 0
    """These tokens."""


def compared_at(
    spec: ScalingSweepSpec, records: Iterable[PointRecord], most_tokens: float
) -> float:
    """Tokens at which probes are compared: all that did not diverge have seen so many; 0 if all diverged.

    A probe may be longer than is asked of it now: of another share or budget, or another prediction's.
    """
    ends = [record.tokens for record in records if _has_end(spec, record)]
    return min(*ends, most_tokens) if ends else 0.0


def is_longer(spec: ScalingSweepSpec, record: PointRecord, tokens: float) -> bool:
    """Whether a probe's end is no loss after so many tokens."""
    return _has_end(spec, record) and record.tokens > tokens * ALIKE


def _has_end(spec: ScalingSweepSpec, record: PointRecord) -> bool:
    """Whether a probe is over and did not diverge."""
    return record.state is PointState.SUCCEEDED and judged_loss(spec, record) is not None


def _cut(record: PointRecord, tokens: float, course: Course) -> PointRecord:
    """A longer probe as it was after so many tokens: a longer run changes no evaluation of a shorter one."""
    seen, losses = zip(*sorted(course), strict=True)
    loss_then = float(np.interp(np.log(tokens), np.log(seen), losses))
    return replace(record, tokens=round(tokens), loss=loss_then, averaged_loss=loss_then)


def _uncut(record: PointRecord, tokens: float, problem: str) -> str:
    return (
        f"Probe {record.name} is at {record.tokens:g} tokens, and what it was at {tokens:g}, where the others can be "
        f"compared, is not known ({problem or 'its trajectory is not there'}): raise spec.validation.tokensShare until "
        "all are as long."
    )


def judge(
    laws: Laws,
    query: PredictionQuery,
    tasks: TaskPass,
    spec: ScalingSweepSpec,
    courses: Mapping[str, Read[Course]],
    *,
    flops_per_token: float,
    most_tokens: float,
    tolerance: float,
) -> Verdict:
    """Judge the laws' answer to `query` by probes that are over; `tolerance` is in nats.

    `spec` is of the sweep that trained them, `courses` are of those that are longer than others.
    """
    done = _done(tasks)
    if not done:
        return _too_few("No probe has a result.")
    at = compared_at(spec, done, most_tokens)
    longer = [record for record in done if is_longer(spec, record, at)]
    if any(record.key not in courses for record in longer):
        message = "Probes of several lengths are compared once their trajectories are read."
        return Verdict(Finding.unknown(Reason.NOT_YET_KNOWN, message))
    for record in longer:
        course = value_of(courses[record.key])
        if not course or course[0][0] > at:
            return _too_few(_uncut(record, at, problem_of(courses[record.key])))
        done[done.index(record)] = _cut(record, at, course)
    runs = [_run(tasks.points[record.key], spec, record) for record in done]
    try:
        probes, tokens = probes_of_runs(
            runs, measured_noise=laws.run_noise, residual=laws.surface.residual_rms
        )
        flops = flops_per_token * min(tokens, most_tokens)
        found = validate(laws, query, probes, flops, tolerance=tolerance)
    except InvalidProbes as error:
        return _too_few(f"{error}.")
    if isinstance(found, Refused):
        refusal = found.refusals[0]
        return Verdict(Finding.unknown(refusal.reason, refusal.message))
    return Verdict(_finding(found), found, tuple(done), round(tokens))


def _too_few(message: str) -> Verdict:
    return Verdict(Finding.unknown(Reason.TOO_FEW_PROBES, message))


def _finding(found: Validation) -> Finding:
    reason, message = _REASONS[found.reason], found.message
    doubts = "".join(f" {warning}" for warning in found.warnings)
    if found.reason is Judged.WITHIN_NOISE:
        message += " The fields are spec.validation.seeds and spec.validation.tokensShare."
    if found.reason is Judged.ANSWER_DIVERGED:
        message += " Take a lower learning rate."
    message += doubts
    if found.validated is None:
        return Finding.unknown(reason, message)
    return Finding.true(reason, message) if found.validated else Finding.false(reason, message)


def _done(tasks: TaskPass) -> list[PointRecord]:
    return [r for r in tasks.ledger.points if r.state in DONE and r.key in tasks.points]


def _run(point: PlannedPoint, spec: ScalingSweepSpec, record: PointRecord) -> Run:
    """A probe as the law engine sees runs, with its last loss."""
    end = judged_loss(spec, record)
    has_diverged = record.state is PointState.DIVERGED
    ends = [] if has_diverged or end is None else [(record.tokens, end)]
    return Run(
        name=record.name,
        params=float(point.proxy.parameters.active),
        batch_size=float(record.batch_size),
        sequence_length=spec.data.sequence_length,
        learning_rate=record.learning_rate,
        tokens=np.array([tokens for tokens, _ in ends], dtype=float),
        losses=np.array([loss for _, loss in ends], dtype=float),
        diverged=not ends,
        loss_kind=spec.fit.weights.lower(),
        optimizer=point.config.optimizer.name,
    )


# ------------------------------------------------------------------------- which losses are judged


def judged_loss(spec: ScalingSweepSpec, record: PointRecord) -> float | None:
    """The loss by which a probe with a result is judged, nats per token, `spec` being of the sweep that trained it;
    None if not finite."""
    return record.loss if spec.fit.weights == "Raw" else record.averaged_loss


# --------------------------------------------------------------------------- how the status shows it


VERDICT: Final = {"places": (), "beats_neighbours": None, "regret": None, "direction": ""}
Seeds = Sequence[PointRecord]


def validation_status(
    tasks: TaskPass, spec: ScalingSweepSpec, verdict: Verdict | None
) -> ValidationStatus:
    """Status of the planned probes; `spec` is that of the sweep that trains them, `verdict` what their losses show once
    they are over."""
    found = verdict.validation if verdict else None
    world, planned = tasks.world, tuple(tasks.points.values())
    facts = SweepFacts(
        store_uri=store_uri(spec),
        folder=layout.prediction_folder(world.name, world.uid),
        points=planned,
        ledger=tasks.ledger,
        active=tasks.active,
        spent=tasks.spending,
        parallelism=tasks.policy.parallelism,
    )
    numbers = numbers_of(world, tasks.task_set.stored, facts)
    return ValidationStatus(
        places=_places(tasks, spec, verdict),
        tokens=verdict.tokens if verdict and verdict.tokens else _planned_tokens(planned),
        points=numbers.points,
        progress=numbers.progress,
        planned_flops=numbers.planned_flops,
        spent_flops=numbers.spent_flops,
        accelerator_hours=numbers.accelerator_hours,
        estimated_completion=numbers.estimated_completion,
        beats_neighbours=found.beats_neighbours if found else None,
        regret=interval_status(found.regret, loss) if found else None,
        direction=found.direction.in_words() if found else "",
        failures=numbers.failures,
        ledger=numbers.ledger,
    )


def _planned_tokens(planned: Sequence[PlannedPoint]) -> int:
    return planned[0].proxy.tokens if planned else 0


def numbers_only(before: ValidationStatus | None) -> ValidationStatus | None:
    """A former status without what it said about an answer that is withdrawn."""
    return None if before is None else before.model_copy(update=VERDICT)


def without_jobs(before: ValidationStatus | None, unfinished: int) -> ValidationStatus | None:
    """A former status once no more than so many of its Jobs are left."""
    if before is None or before.points.active <= unfinished:
        return before
    points, gone = before.points, before.points.active - unfinished
    counts = points.model_copy(update={"active": unfinished, "pending": points.pending + gone})
    if unfinished:
        return before.model_copy(update={"points": counts})
    places = (
        each.model_copy(update={"state": "Pending"}) if each.state == "Active" else each
        for each in before.places
    )
    return before.model_copy(
        update={"points": counts, "places": tuple(places), "estimated_completion": ""}
    )


def refined_status(
    found: Validation | None, spec: HyperparamPredictionSpec, sweep: ScalingSweepSpec
) -> RefinedStatus | None:
    """Laws and probes together, in sequences of the planned run."""
    if found is None or found.refined is None:
        return None
    refined, ratio = found.refined, sweep.data.sequence_length / target_length(spec, sweep)
    batch = refined.batch_size
    return RefinedStatus(
        learning_rate=interval_status(refined.learning_rate, learning_rate),
        batch_size=interval_status(
            Interval(batch.value * ratio, batch.low * ratio, batch.high * ratio), batch_size
        ),
        regret=interval_status(refined.regret_of_answer, loss),
    )


def _places(
    tasks: TaskPass, spec: ScalingSweepSpec, verdict: Verdict | None
) -> tuple[ProbeStatus, ...]:
    """In planned order: the answer first."""
    found = verdict.validation if verdict else None
    judged = {record.key: record for record in (verdict.judged if verdict else ())}
    by_place: dict[tuple[float, int], list[PointRecord]] = {}
    for record in tasks.ledger.points:
        place = record.learning_rate, record.batch_size
        by_place.setdefault(place, []).append(judged.get(record.key, record))
    comparisons = {
        (each.neighbour.learning_rate, int(each.neighbour.batch_size)): each
        for each in (found.comparisons if found else ())
    }
    active = {job.key for job in tasks.active}
    return tuple(
        _place(spec, active, place, seeds, comparisons.get(place))
        for place, seeds in list(by_place.items())[:MAX_ENTRIES]
    )


def _place(
    spec: ScalingSweepSpec,
    active: Container[str],
    place: tuple[float, int],
    seeds: Seeds,
    comparison: Comparison | None,
) -> ProbeStatus:
    told = comparison is not None and not comparison.neighbour.diverged
    return ProbeStatus(
        learning_rate=learning_rate(place[0]),
        batch_size=batch_size(place[1]),
        state=_state(active, seeds),
        loss=loss(_mean(judged_loss(spec, each) for each in seeds if each.state in DONE)),
        difference=loss(comparison.difference) if comparison and told else "",
        standard_error=loss(comparison.standard_error) if comparison and told else "",
        better=(comparison.better or "") if comparison else "",
    )


def _mean(losses: Iterable[float | None]) -> float | None:
    known = [each for each in losses if each is not None]
    return sum(known) / len(known) if known else None


def _state(active: Container[str], seeds: Seeds) -> str:
    """State of several seeds together: a divergence first, for no place with one is fit to train at; then the one
    with most to do."""
    states = {each.state for each in seeds}
    if PointState.DIVERGED in states:
        return "Diverged"
    if PointState.PENDING in states:
        return "Active" if any(each.key in active for each in seeds) else "Pending"
    return "Failed" if states & FAILED_FOR_GOOD else "Succeeded"
