"""Whether an answer holds: judged by the points of another sweep that continue the same checkpoint.

Nothing is trained here. The answer itself, Ready and the ConfigMap never depend on it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from isoloss.formatting import batch_size, learning_rate, loss
from isoloss.laws import Interval, Prediction, Refused, Run
from isoloss.validation import (
    AT_THE_ANSWER,
    Comparison,
    InvalidProbes,
    Validation,
    probes_of_runs,
    validate,
)
from isoloss.validation import Reason as Judged
from isoloss_contract.ledger import DONE, FAILED_FOR_GOOD, Ledger, PointRecord, PointState
from isoloss_contract.reading import is_unknown, problem_of, value_of
from isoloss_contract.records import EvaluationResult
from isoloss_operator import api
from isoloss_operator.api import statuses
from isoloss_operator.api.statuses import MAX_ENTRIES
from isoloss_operator.decide.answer import Answer, target_length
from isoloss_operator.decide.checks import ALIKE
from isoloss_operator.decide.law_status import interval_status
from isoloss_operator.decide.observation import Course, ObservedPrediction, ObservedReference
from isoloss_operator.decide.prediction_checks import (
    AcceptedPrediction,
    check_prediction,
    present_question,
    sweep_not_ready,
)
from isoloss_operator.decide.reasons import STALLED, VALIDATED, Finding, Reason
from isoloss_operator.decide.single_task import measure
from isoloss_operator.planning.points import mixture
from isoloss_operator.planning.specs import InvalidSpec

NO_ANSWER: Final = Finding(
    Reason.ANSWER_AWAITED,
    "There is no current answer to judge: the other conditions say why.",
    "Unknown",
)


@dataclass(frozen=True)
class ValidationStep:
    """What the condition Validated and the status say."""

    finding: Finding | None = None
    """None: the spec asks for no validation."""
    status: statuses.ValidationStatus | None = None
    refined: statuses.RefinedStatus | None = None


@dataclass(frozen=True)
class JudgedPoints:
    """Points that continue the checkpoint of a prediction as its laws are asked about it."""

    reference: ObservedReference
    sweep: api.ScalingSweepSpec
    records: tuple[PointRecord, ...]


@dataclass(frozen=True)
class Verdict:
    """The condition, and the figures behind it if there are any."""

    finding: Finding
    validation: Validation | None = None
    records: tuple[PointRecord, ...] = ()
    """Those judged, cut to the tokens at which they are compared."""
    tokens: int = 0
    """These tokens."""


def validation_kept(observed: ObservedPrediction, *, is_judged: bool) -> ValidationStep:
    """What was said, if nothing is known of the sweep or its store. `is_judged`: it is about the present question."""
    if isinstance(observed.spec, InvalidSpec):
        return ValidationStep(NO_ANSWER if VALIDATED in observed.previous_conditions else None)
    if observed.spec.validation is None:
        return ValidationStep()
    return _as_it_was(observed, NO_ANSWER, is_judged=is_judged)


def validate_answer(
    asked: AcceptedPrediction,
    result: EvaluationResult | None,
    answer: Answer | Finding,
    *,
    is_kept: bool,
) -> ValidationStep:
    """Judge the answer, or say what that waits for. `is_kept`: the former answer is, as there is no new one yet."""
    observed, is_judged = asked.observed, asked.question.is_judged
    if asked.spec.validation is None:
        return ValidationStep()
    points = judged_points(asked, result)
    if isinstance(points, Finding):
        is_away = points.reason is Reason.STORAGE_UNREACHABLE
        return (
            _as_it_was(observed, points, is_judged=is_judged)
            if is_away
            else ValidationStep(points)
        )
    if isinstance(answer, Finding):
        if not is_kept:
            return ValidationStep(NO_ANSWER)
        return _as_it_was(observed, NO_ANSWER, is_judged=is_judged)
    waits = _not_over(asked, points, answer.in_sweep_sequences)
    verdict = _verdict(asked, result, points, answer) if waits is None else Verdict(waits)
    if verdict.finding.reason is Reason.STORAGE_UNREACHABLE:
        return _as_it_was(observed, verdict.finding, is_judged=is_judged)
    refined = _refined(verdict.validation, asked.spec, asked.sweep)
    return ValidationStep(verdict.finding, _status(points, verdict), refined)


def _as_it_was(
    observed: ObservedPrediction, finding: Finding, *, is_judged: bool
) -> ValidationStep:
    """What was said of the present question is kept while nothing is known that could change it; else `finding`."""
    previous = observed.previous_conditions.get(VALIDATED)
    if previous is None or not is_judged:
        return ValidationStep(finding)
    return ValidationStep(
        Finding.of(previous), observed.previous_status.validation, observed.previous_status.refined
    )


# ------------------------------------------------------------------------------- which points count


def judged_points(
    asked: AcceptedPrediction, result: EvaluationResult | None
) -> JudgedPoints | Finding:
    """The points that are of the checkpoint, corpus, loss and optimizer that the answer is about, or why there are none."""
    observed, laws = asked.observed, asked.sweep
    assert asked.spec.validation is not None
    name, seen = asked.spec.validation.sweep_ref.name, observed.validation
    reference = seen.reference
    if reference is None:
        message = f"spec.validation.sweepRef: there is no ScalingSweep {name} in this namespace."
        return Finding(Reason.SWEEP_NOT_FOUND, message, "Unknown")
    if seen.storage_refusal:
        message = f"spec.validation.sweepRef: {seen.storage_refusal}"
        return Finding(Reason.STORAGE_NOT_ALLOWED, message, "Unknown")
    sweep = reference.spec
    if isinstance(sweep, InvalidSpec):
        return Finding(Reason.SWEEP_INVALID, f"ScalingSweep {name}: {sweep}", "Unknown")
    if is_unknown(seen.ledger):
        return Finding(Reason.STORAGE_UNREACHABLE, seen.ledger.message, "Unknown")
    if sweep.fit.weights != laws.fit.weights or mixture(sweep) != mixture(laws):
        message = (
            f"ScalingSweep {name} and the laws are about different losses: fit.weights and the weights of data.domains "
            f"must be those of ScalingSweep {asked.reference.name}."
        )
        return Finding(Reason.LOSS_DIFFERS, message, "Unknown")
    if _optimizer(sweep) != _optimizer(laws):
        message = (
            f"ScalingSweep {name} trains with another optimizer than ScalingSweep {asked.reference.name}: all but "
            "warmupTokens must be the same."
        )
        return Finding(Reason.OPTIMIZER_DIFFERS, message, "Unknown")
    ledger = value_of(seen.ledger)
    if ledger is None or ledger.corpus is None:
        return _unknown(sweep_not_ready(reference))
    if ledger.corpus.digest != asked.manifest.digest:
        message = f"ScalingSweep {name} is trained on another corpus than ScalingSweep {asked.reference.name}."
        return Finding(Reason.CORPUS_DIFFERS, message, "Unknown")
    found = _of_the_checkpoint(asked, result, sweep, ledger)
    return found if isinstance(found, Finding) else JudgedPoints(reference, sweep, found)


def _of_the_checkpoint(
    asked: AcceptedPrediction,
    result: EvaluationResult | None,
    sweep: api.ScalingSweepSpec,
    ledger: Ledger,
) -> tuple[PointRecord, ...] | Finding:
    assert asked.spec.validation is not None
    assert asked.spec.checkpoint is not None  # validation asks for it
    name, uri = asked.spec.validation.sweep_ref.name, asked.spec.checkpoint.uri.rstrip("/")
    sizes = {proxy.name for proxy in _sizes(sweep, uri)}
    if not sizes:
        message = f"No size of ScalingSweep {name} continues {uri}."
        return Finding(Reason.CHECKPOINT_DIFFERS, message, "Unknown")
    stamps = {each.uri: each.stamp for each in ledger.checkpoints}
    present = value_of(asked.observed.checkpoint_stamp) or ""
    if uri in stamps and stamps[uri] != present:
        message = f"ScalingSweep {name} continues other files of {uri} than those whose initial loss was measured."
        return Finding(Reason.CHECKPOINT_DIFFERS, message, "Unknown")
    if result is not None and not result.same_tokenizer:
        message = (
            f"The tokenizer of {uri} differs from the sweep's: it cannot be trained on its corpus."
        )
        return Finding(Reason.CHECKPOINT_DIFFERS, message, "Unknown")
    return tuple(record for record in ledger.points if record.proxy in sizes)


def _sizes(sweep: api.ScalingSweepSpec, uri: str) -> tuple[api.Proxy, ...]:
    return tuple(proxy for proxy in sweep.proxies if proxy.checkpoint_uri == uri)


def _optimizer(sweep: api.ScalingSweepSpec) -> dict[str, object]:
    return sweep.optimizer.model_dump(exclude={"warmup_tokens"})


def _unknown(finding: Finding) -> Finding:
    return Finding(finding.reason, finding.message, "Unknown")


def _not_over(
    asked: AcceptedPrediction, points: JudgedPoints, answer: Prediction
) -> Finding | None:
    """Why the points are not judged yet."""
    reference = points.reference
    stalled = reference.conditions.get(STALLED)
    if stalled is not None and stalled.status == "True":
        message = f"ScalingSweep {reference.name} cannot go on: {stalled.message}"
        return Finding(Finding.of(stalled).reason, message, "Unknown")
    if asked.judge_awaited is not None:
        return _unknown(asked.judge_awaited)
    ledger = value_of(asked.observed.validation.ledger)
    assert ledger is not None
    for each in ledger.neighbourhoods:
        rate, batch = each.places[0]
        off = (
            math.log(rate / answer.learning_rate.value),
            math.log(batch / answer.batch_size.value),
        )
        if each.prediction == asked.observed.name and max(map(abs, off)) > AT_THE_ANSWER:
            message = f"ScalingSweep {reference.name} is about to train points around the present answer."
            return Finding(Reason.ANSWER_AWAITED, message, "Unknown")
    return None


# ------------------------------------------------------------------------- what their losses say


@dataclass(frozen=True)
class CourseReads:
    """Which trajectories to read."""

    digests: Mapping[str, str] = field(default_factory=dict)
    """By point key."""
    raw: bool = False
    """Whether the losses of the raw weights are wanted."""


def courses_to_read(observed: ObservedPrediction) -> CourseReads:
    """Of points that are longer than what all are compared at."""
    asked = check_prediction(observed, present_question(observed))
    if isinstance(asked, Finding) or asked.spec.validation is None:
        return CourseReads()
    result = measure(asked).result
    points = judged_points(asked, result)
    if isinstance(points, Finding):
        return CourseReads()
    at = _compared_at(points, _budget_tokens(asked.spec, result))
    longer = (r for r in points.records if _is_longer(points.sweep, r, at))
    digests = {r.key: r.trajectory_sha256 for r in longer}
    return CourseReads(digests, raw=asked.sweep.fit.weights == "Raw")


def _budget_tokens(spec: api.HyperparamPredictionSpec, result: EvaluationResult | None) -> float:
    """Infinite before the checkpoint's size is known."""
    budget = spec.budget
    if budget.tokens:
        return float(budget.tokens)
    if result is None or not budget.flops:
        return math.inf
    return float(budget.flops) / (6.0 * result.parameters.active)


def _compared_at(points: JudgedPoints, most: float) -> float:
    """Tokens at which points are compared: all that did not diverge have seen so many; 0 if all diverged."""
    ends = [r.tokens for r in points.records if _end(points.sweep, r) is not None]
    return min(*ends, most) if ends else 0.0


def _end(sweep: api.ScalingSweepSpec, record: PointRecord) -> float | None:
    """The loss of a point that did not diverge; None if it did, or is not over."""
    return _loss(sweep, record) if record.state is PointState.SUCCEEDED else None


def _loss(sweep: api.ScalingSweepSpec, record: PointRecord) -> float | None:
    return record.loss if sweep.fit.weights == "Raw" else record.averaged_loss


def _is_longer(sweep: api.ScalingSweepSpec, record: PointRecord, tokens: float) -> bool:
    return _end(sweep, record) is not None and record.tokens > tokens * ALIKE


def _verdict(
    asked: AcceptedPrediction,
    result: EvaluationResult | None,
    points: JudgedPoints,
    answer: Answer,
) -> Verdict:
    cpt_flops = answer.in_sweep_sequences.cpt_flops
    assert cpt_flops is not None
    assert asked.spec.validation is not None
    laws, query = answer.laws, answer.query
    done = [record for record in points.records if record.state in DONE]
    if not done:
        return _too_few("No point has a result.")
    at = _compared_at(points, _budget_tokens(asked.spec, result))
    for record in [each for each in done if _is_longer(points.sweep, each, at)]:
        course = asked.observed.validation.courses.get(record.key)
        if course is None or is_unknown(course):
            message = problem_of(course) if course is not None else "a trajectory is not read yet"
            return Verdict(Finding(Reason.STORAGE_UNREACHABLE, message, "Unknown"))
        found = value_of(course)
        if not found or found[0][0] > at:
            return _too_few(_uncut(record, at, problem_of(course)))
        done[done.index(record)] = _cut(record, at, found)
    per_token = query.flops_per_token or (
        laws.surface.flops_per_token_per_param * float(query.params or 0)
    )
    try:
        probes, tokens = probes_of_runs(
            [_run(points.sweep, record) for record in done],
            measured_noise=laws.run_noise,
            residual=laws.surface.residual_rms,
        )
        flops = min(per_token * tokens, cpt_flops * ALIKE)
        tolerance = float(asked.spec.validation.tolerance)
        judged = validate(laws, query, probes, flops, tolerance=tolerance)
    except InvalidProbes as error:
        return _too_few(f"{error}.")
    if isinstance(judged, Refused):
        refusal = judged.refusals[0]
        return Verdict(Finding(refusal.reason, refusal.message, "Unknown"))
    return Verdict(_finding(judged, points.reference.name), judged, tuple(done), round(tokens))


def _uncut(record: PointRecord, tokens: float, problem: str) -> str:
    return (
        f"Point {record.name} is at {record.tokens:g} tokens. Its loss at {tokens:g}, where the others can be compared, is not "
        f"known ({problem or 'its trajectory is not there'}): raise the tokens of its size until all are as long."
    )


def _cut(record: PointRecord, tokens: float, course: Course) -> PointRecord:
    """A longer run as it was after so many tokens: a longer run changes no evaluation of a shorter one."""
    seen, losses = zip(*sorted(course), strict=True)
    loss_then = float(np.interp(np.log(tokens), np.log(seen), losses))
    return replace(record, tokens=round(tokens), loss=loss_then, averaged_loss=loss_then)


def _run(sweep: api.ScalingSweepSpec, record: PointRecord) -> Run:
    """A point as the law engine sees runs, with its last loss."""
    end = _end(sweep, record)
    return Run(
        name=record.name,
        params=record.flops_per_token / 6.0,
        batch_size=float(record.batch_size),
        sequence_length=sweep.data.sequence_length,
        learning_rate=record.learning_rate,
        tokens=np.array([] if end is None else [record.tokens], dtype=float),
        losses=np.array([] if end is None else [end], dtype=float),
        diverged=end is None,
        loss_kind=sweep.fit.weights.lower(),
        optimizer="AdamW",
    )


def _too_few(message: str) -> Verdict:
    return Verdict(Finding(Reason.TOO_FEW_PROBES, message, "Unknown"))


def _finding(found: Validation, sweep: str) -> Finding:
    reason, message = Reason(found.reason.value), found.message
    if found.reason is Judged.WITHIN_NOISE:
        message += f" The fields of ScalingSweep {sweep} are training.additionalSeeds and proxies[].tokens."
    if found.reason is Judged.ANSWER_DIVERGED:
        message += " Take a lower learning rate."
    message += "".join(f" {warning}" for warning in found.warnings)
    if found.validated is None:
        return Finding(reason, message, "Unknown")
    return Finding(reason, message, "True") if found.validated else Finding(reason, message)


# --------------------------------------------------------------------------- how the status shows it


Seeds = Sequence[PointRecord]


def _status(points: JudgedPoints, verdict: Verdict) -> statuses.ValidationStatus:
    found = verdict.validation
    return statuses.ValidationStatus(
        places=_places(points, verdict),
        tokens=verdict.tokens or max((r.wanted_tokens for r in points.records), default=0),
        beats_neighbours=found.beats_neighbours if found else None,
        regret=interval_status(found.regret, loss) if found else None,
        direction=found.direction.in_words() if found else "",
    )


def _refined(
    found: Validation | None, spec: api.HyperparamPredictionSpec, sweep: api.ScalingSweepSpec
) -> statuses.RefinedStatus | None:
    """Laws and points together, in sequences of the planned run."""
    if found is None or found.refined is None:
        return None
    refined, ratio = found.refined, sweep.data.sequence_length / target_length(spec, sweep)
    batch = refined.batch_size
    return statuses.RefinedStatus(
        learning_rate=interval_status(refined.learning_rate, learning_rate),
        batch_size=interval_status(
            Interval(batch.value * ratio, batch.low * ratio, batch.high * ratio), batch_size
        ),
        regret=interval_status(refined.regret_of_answer, loss),
    )


def _places(points: JudgedPoints, verdict: Verdict) -> tuple[statuses.ProbeStatus, ...]:
    """In planned order: around an answer that comes first."""
    found, judged = verdict.validation, {record.key: record for record in verdict.records}
    by_place: dict[tuple[float, int], list[PointRecord]] = {}
    for record in points.records:
        place = record.learning_rate, record.batch_size
        by_place.setdefault(place, []).append(judged.get(record.key, record))
    comparisons = {
        (each.neighbour.learning_rate, int(each.neighbour.batch_size)): each
        for each in (found.comparisons if found else ())
    }
    return tuple(
        _place(points.sweep, place, seeds, comparisons.get(place))
        for place, seeds in list(by_place.items())[:MAX_ENTRIES]
    )


def _place(
    sweep: api.ScalingSweepSpec,
    place: tuple[float, int],
    seeds: Seeds,
    comparison: Comparison | None,
) -> statuses.ProbeStatus:
    is_compared = comparison is not None and not comparison.neighbour.diverged
    losses = (_loss(sweep, each) for each in seeds if each.state in DONE)
    known = [each for each in losses if each is not None]
    return statuses.ProbeStatus(
        learning_rate=learning_rate(place[0]),
        batch_size=batch_size(place[1]),
        state=_state(seeds),
        loss=loss(sum(known) / len(known) if known else None),
        difference=loss(comparison.difference) if comparison and is_compared else "",
        standard_error=loss(comparison.standard_error) if comparison and is_compared else "",
        better=(comparison.better or "") if comparison else "",
    )


def _state(seeds: Seeds) -> str:
    """State of several seeds together: a divergence first, for no place with one is fit to train at; then the one
    with most to do."""
    states = {each.state for each in seeds}
    if PointState.DIVERGED in states:
        return "Diverged"
    if PointState.PENDING in states:
        return "Pending"
    return "Failed" if states & FAILED_FOR_GOOD else "Succeeded"
