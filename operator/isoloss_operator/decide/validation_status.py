"""A prediction's status of its probes: where they are, how far, and what laws and probes say together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

from isoloss.formatting import batch_size, learning_rate, loss
from isoloss.laws import Interval
from isoloss.validation import Comparison, Validation
from isoloss_contract import layout
from isoloss_contract.ledger import DONE, FAILED_FOR_GOOD, PointRecord, PointState
from isoloss_operator.api import (
    HyperparamPredictionSpec,
    ProbeStatus,
    RefinedStatus,
    ScalingSweepSpec,
    ValidationStatus,
)
from isoloss_operator.decide.answers import target_length
from isoloss_operator.decide.jobs.requests import store_uri
from isoloss_operator.decide.law_status import MAX_ENTRIES, interval_status
from isoloss_operator.decide.sweep_status import SweepFacts, numbers_of
from isoloss_operator.decide.tasks.task_pass import TaskPass
from isoloss_operator.decide.verdicts import judged_loss

VERDICT: Final = {"places": (), "beats_neighbours": None, "regret": None, "direction": ""}
Seeds = Sequence[PointRecord]


def validation_status(
    tasks: TaskPass, spec: ScalingSweepSpec, found: Validation | None
) -> ValidationStatus:
    """Status of the planned probes; `spec` is that of the sweep that trains them, `found` what their losses show once
    they are over."""
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
        places=_places(tasks, spec, found),
        tokens=planned[0].proxy.tokens + planned[0].cooldown_tokens if planned else 0,
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


def numbers_only(before: ValidationStatus | None) -> ValidationStatus | None:
    """A former status without what it said about an answer that is withdrawn."""
    return None if before is None else before.model_copy(update=VERDICT)


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
    tasks: TaskPass, spec: ScalingSweepSpec, found: Validation | None
) -> tuple[ProbeStatus, ...]:
    """In planned order: the answer first."""
    by_place: dict[tuple[float, int], list[PointRecord]] = {}
    for record in tasks.ledger.points:
        by_place.setdefault((record.learning_rate, record.batch_size), []).append(record)
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
        loss=loss(_mean(_loss(spec, each) for each in seeds if each.state in DONE)),
        difference=loss(comparison.difference) if comparison and told else "",
        standard_error=loss(comparison.standard_error) if comparison and told else "",
        better=(comparison.better or "") if comparison else "",
    )


def _loss(spec: ScalingSweepSpec, record: PointRecord) -> float | None:
    end = judged_loss(spec, record)
    return None if end is None else end.loss


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
