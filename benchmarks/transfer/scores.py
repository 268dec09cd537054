"""Every rule on every case: how far off, what it costs, and whether the interval held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks.transfer.design import KNOWN_BUDGETS, KNOWN_SIZES, KNOWN_TEXTS, LONGER
from benchmarks.transfer.judging import FEWEST, Optimum, losses_at, optimum
from benchmarks.transfer.measuring import Continued, Measured
from benchmarks.transfer.rules import (
    REGISTERED,
    RULES,
    Case,
    Rule,
    answers_at,
    equivalent_flops,
    log_optimum,
)
from isoloss.laws import (
    Composition,
    FitOptions,
    Laws,
    Point,
    PredictionQuery,
    Refused,
    Route,
    fit_laws,
    predict,
)

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
"""Of C_pre, tried by the weighted rule."""
BATCHES, NOT_FAR = (4.0, 8.0, 16.0), 3.0
"""Sequences at which the learning rate is asked for, and how far from the best batch size the quadratic tells it."""


@dataclass(frozen=True)
class Score:
    """One answer against one measured optimum."""

    case: Case
    log_errors: tuple[float, float]
    """ln(answer / measured) of learning rate and batch size."""
    held: tuple[bool, bool]
    """Whether the 80 % intervals hold the measured values."""
    regret: float
    """Nats."""
    total_flops: float


def fit(measured: Measured) -> Laws:
    """The laws of the runs from scratch of all sizes."""
    runs = [run for runs in measured.scratch.values() for run in runs.values()]
    return fit_laws(runs, FitOptions())


def cases(measured: Measured) -> list[Case]:
    """Checkpoints and budgets whose optimum lies inside its grid."""
    found = (
        case(measured, continued, tokens)
        for continued in measured.continued
        for tokens in measured.design.budgets
    )
    return [case for case in found if case is not None and case.measured.inside]


def is_new(case: Case) -> bool:
    """Whether the registered rule was not found on it."""
    checkpoint = case.checkpoint
    return checkpoint.tokens != LONGER and not (
        checkpoint.size.name in KNOWN_SIZES
        and checkpoint.text in KNOWN_TEXTS
        and checkpoint.ending == "averaged"
        and case.tokens in KNOWN_BUDGETS
    )


def case(measured: Measured, continued: Continued, tokens: int) -> Case | None:
    """One checkpoint at one budget; None where too few runs reached it."""
    losses = losses_at(continued.runs, tokens)
    if len(losses) < FEWEST:
        return None
    sweep = measured.scratch[continued.checkpoint.size.name]
    end = measured.design.scratch_tokens
    return Case(
        checkpoint=continued.checkpoint,
        params=next(iter(continued.runs.values())).params,
        tokens=float(tokens),
        initial_loss=continued.initial_loss,
        initial_loss_error=continued.initial_loss_error,
        trajectories={
            place: dict(zip(run.tokens.tolist(), run.losses.tolist(), strict=True))
            for place, run in continued.runs.items()
        },
        measured=optimum(losses),
        reached=min(losses.values()),
        sweep_tokens=float(end),
        sweep_loss=min(losses_at(sweep, end).values()),
    )


def control(measured: Measured, case: Case, total_flops: float) -> Optimum | None:
    """The measured optimum of the same model from scratch for a total compute; None beyond its runs."""
    runs = measured.scratch[case.checkpoint.size.name]
    losses = losses_at(runs, total_flops / case.flops_per_token)
    found = optimum(losses) if len(losses) >= FEWEST else None
    return found if found is not None and found.inside else None


def score(case: Case, judge: Optimum, answer: Point, total_flops: float) -> Score:
    """Compare one answer with a measured optimum."""
    rate, batch = log_optimum(answer)
    truth = np.exp(judge.vertex)
    held = tuple(
        bool(interval.low <= value <= interval.high)
        for interval, value in zip((answer.learning_rate, answer.batch_size), truth, strict=True)
    )
    errors = (rate - float(judge.vertex[0]), batch - float(judge.vertex[1]))
    return Score(case, errors, (held[0], held[1]), judge.regret(rate, batch), total_flops)


def score_rule(laws: Laws, cases: Sequence[Case], rule: Rule, route: Route) -> list[Score]:
    """A rule on the cases that it answers."""
    return [
        found
        for case in cases
        if (found := _scored(laws, case, rule(laws, case), route)) is not None
    ]


def _scored(laws: Laws, case: Case, flops: float | None, route: Route) -> Score | None:
    answer = None if flops is None else answers_at(laws, flops, case.params).get(route)
    if answer is None or flops is None:
        return None
    return score(case, case.measured, answer, flops)


def score_engine(
    laws: Laws, cases: Sequence[Case], route: Route, composition: Composition = "Paper"
) -> list[Score]:
    """The engine's own answer from the initial loss, with the interval that it really gives."""
    found = []
    for case in cases:
        answer = predict(laws, engine_query(case, composition))
        if isinstance(answer, Refused) or answer.route != route:
            continue
        if (point := answer.best) is not None:
            found.append(score(case, case.measured, point, answer.total_flops.value))
    return found


def score_at_batches(laws: Laws, cases: Sequence[Case], composition: Composition) -> list[Score]:
    """The learning rate at each of BATCHES that is not far from the measured one, against the best one there."""
    found = []
    for case, batch in product(cases, BATCHES):
        log_batch, judge = float(np.log(batch)), case.measured
        if abs(log_batch - judge.vertex[1]) > np.log(NOT_FAR):
            continue
        query = replace(engine_query(case, composition), batch_size=batch)
        answer = predict(laws, query)
        if not isinstance(answer, Refused):
            best, rate = judge.log_rate_at(log_batch), answer.learning_rate
            answered = float(np.log(rate.value))
            lost = judge.regret(answered, log_batch) - judge.regret(best, log_batch)
            held = (bool(rate.low <= np.exp(best) <= rate.high), True)
            errors = (answered - best, 0.0)
            found.append(Score(case, errors, held, lost, answer.total_flops.value))
    return found


def engine_query(case: Case, composition: Composition = "Paper") -> PredictionQuery:
    """What a user asks."""
    return PredictionQuery(
        composition=composition,
        initial_loss=case.initial_loss,
        initial_loss_standard_error=case.initial_loss_error,
        cpt_tokens=case.tokens,
        params=case.params,
        pretraining_tokens=float(case.checkpoint.tokens),
    )


def score_controls(
    laws: Laws, measured: Measured, cases: Sequence[Case], route: Route
) -> list[Score]:
    """The laws at the paper's total compute against runs from scratch of that compute."""
    found = []
    for case in cases:
        flops = RULES["paper"](laws, case)
        answer = None if flops is None else answers_at(laws, flops, case.params).get(route)
        judge = None if flops is None else control(measured, case, flops)
        if answer is not None and judge is not None and flops is not None:
            found.append(score(case, judge, answer, flops))
    return found


# ------------------------------------------------------------------------------ out of sample

Group = Callable[[Case], object]
"""What is left out together."""


def by_checkpoint(case: Case) -> object:
    """Both budgets of one checkpoint."""
    return case.checkpoint.name


def by_text(case: Case) -> object:
    """All checkpoints of one text."""
    return case.checkpoint.text


def by_size(case: Case) -> object:
    """All checkpoints of one size."""
    return case.checkpoint.size.name


def by_budget(case: Case) -> object:
    """All checkpoints at one budget."""
    return case.tokens


def folds(cases: Sequence[Case], group: Group) -> Iterator[tuple[list[Case], list[Case]]]:
    """(others, left out) for every group."""
    for left_out in sorted({str(group(case)) for case in cases}):
        inside = [case for case in cases if str(group(case)) == left_out]
        yield [case for case in cases if str(group(case)) != left_out], inside


def shifted(laws: Laws, cases: Sequence[Case], route: Route, group: Group) -> list[Score]:
    """The paper's answer times the mean factor that it missed on the other checkpoints."""
    found = []
    for others, inside in folds(cases, group):
        known = score_rule(laws, others, RULES["paper"], route)
        if not known:
            continue
        shift = np.mean([s.log_errors for s in known], axis=0)
        found += [
            _moved(s, -float(shift[0]), -float(shift[1]))
            for s in score_rule(laws, inside, RULES["paper"], route)
        ]
    return found


def faded(laws: Laws, cases: Sequence[Case], route: Route, group: Group) -> list[Score]:
    """The paper's learning rate times (C_cpt / C_total)^a, with the least-squares a of the other checkpoints."""
    found = []
    for others, inside in folds(cases, group):
        known = score_rule(laws, others, RULES["paper"], route)
        shares = np.array([_log_share(s) for s in known])
        fade = -float(shares @ [s.log_errors[0] for s in known] / max(shares @ shares, 1e-12))
        found += [
            _moved(s, fade * _log_share(s), 0.0)
            for s in score_rule(laws, inside, RULES["paper"], route)
        ]
    return found


def registered(laws: Laws, cases: Sequence[Case]) -> dict[str, list[Score]]:
    """The registered rule, and its two halves alone; by the joint surface."""
    papers = score_rule(laws, cases, RULES["paper"], "surface")
    found: dict[str, list[Score]] = {"registered": [], "faded": [], "faded, one B": []}
    for score in papers:
        fade = REGISTERED.fade * _log_share(score)
        answered = score.case.measured.vertex[1] + score.log_errors[1]
        constant = float(np.log(REGISTERED.constant_batch)) - answered
        log_batch = REGISTERED.log_batch(laws, score.case)
        if log_batch is not None:
            found["registered"].append(_moved(score, fade, log_batch - answered))
        found["faded"].append(_moved(score, fade, 0.0))
        found["faded, one B"].append(_moved(score, fade, constant))
    return found


def calibrated(base: Sequence[Score], sibling: str, target: str) -> dict[str, list[Score]]:
    """Answers for one size, and the same corrected by a sibling: a smaller size with the same past and budget.

    What the sibling wants over its own answer corrects the target's, in both directions or in the batch size alone.
    `sibling` and `target` are names of sizes; checkpoints without a sibling are left out.
    """

    def past(score: Score) -> tuple[object, ...]:
        checkpoint = score.case.checkpoint
        return checkpoint.text, checkpoint.tokens, checkpoint.ending, score.case.tokens

    known = {past(s): s.log_errors for s in base if s.case.checkpoint.size.name == sibling}
    found: dict[str, list[Score]] = {"as answered": [], "sibling": [], "sibling, B alone": []}
    for score in base:
        if score.case.checkpoint.size.name == target and past(score) in known:
            rate, batch = known[past(score)]
            found["as answered"].append(score)
            found["sibling"].append(_moved(score, -rate, -batch))
            found["sibling, B alone"].append(_moved(score, 0.0, -batch))
    return found


def _log_share(score: Score) -> float:
    """ln(C_cpt / C_total)."""
    return float(np.log(score.case.cpt_flops / score.total_flops))


def _moved(score: Score, log_rate: float, log_batch: float) -> Score:
    """The same with another answer; whether intervals hold is left as it was."""
    errors = (score.log_errors[0] + log_rate, score.log_errors[1] + log_batch)
    judge = score.case.measured
    regret = judge.regret(judge.vertex[0] + errors[0], judge.vertex[1] + errors[1])
    return replace(score, log_errors=errors, regret=regret)


def weighted(laws: Laws, cases: Sequence[Case], route: Route, group: Group) -> list[Score]:
    """C_cpt + w C_pre, with the w that cost least on the other checkpoints."""
    found = []
    for others, inside in folds(cases, group):
        costs = {w: score_rule(laws, others, _weighted(w), route) for w in WEIGHTS}
        complete = {w: s for w, s in costs.items() if len(s) == len(others)}
        if complete:
            best = min(complete, key=lambda w: float(np.mean([s.regret for s in complete[w]])))
            found += score_rule(laws, inside, _weighted(best), route)
    return found


def _weighted(weight: float) -> Rule:
    def rule(laws: Laws, case: Case) -> float | None:
        before = equivalent_flops(laws, case.initial_loss)
        return None if before is None else weight * before + case.cpt_flops

    return rule


def composition_error(
    continued: Sequence[Score], controls: Sequence[Score]
) -> tuple[float, float]:
    """What the composition adds to the laws' own error, of ln LR and ln B.

    Root mean square error of the answers for continued runs, less that of the same laws for runs from
    scratch; measured optima are equally uncertain in both.
    """
    ours = np.mean(np.square([s.log_errors for s in continued]), axis=0)
    own = np.mean(np.square([s.log_errors for s in controls]), axis=0) if controls else 0.0
    rate, batch = np.sqrt(np.maximum(ours - own, 0.0))
    return float(rate), float(batch)
