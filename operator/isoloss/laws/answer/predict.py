"""From a checkpoint's initial loss and a budget to a learning rate and a batch size, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws.answer.batch_sizes import (
    affordable,
    batch_cost,
    not_affordable,
    range_sentences,
    rate_at,
)
from isoloss.laws.answer.composition import (
    Continuation,
    composed,
    composition_sentences,
    other_composition,
)
from isoloss.laws.answer.expected_regret import expected_regret, too_vague
from isoloss.laws.answer.foundation import (
    above_stable_rates,
    contradicted,
    disagreements,
    foundation,
    routes_disagree,
)
from isoloss.laws.answer.limits import (
    implausible,
    largest_batch,
    refuse_distance,
    too_few_steps,
)
from isoloss.laws.answer.prediction import (
    BatchSizeRange,
    Extrapolation,
    Point,
    Prediction,
    PredictionQuery,
    Refused,
)
from isoloss.laws.answer.query_refusals import law_figures, perplexity, refuse_query, unseen_past
from isoloss.laws.answer.rounding import far_sentence, is_far, rounded, rounding_sentences
from isoloss.laws.answer.routes import (
    budget_flops,
    draw_count,
    exponential,
    flops_per_token,
    loss_curve,
    route_answers,
    target_loss,
    target_of,
)
from isoloss.laws.answer.sequence_lengths import for_length, in_laws_sequences
from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import interval
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, RefusalReason, Route

MOST_BELOW = 0.1
"""More draws than this without an equivalent compute: the initial loss is too close to L0."""
WIDEST_COMPUTE = 100.0
"""Widest interval of total compute, high over low, that an answer may rest on."""
UNBOUNDED = 30.0
"""ln C above the estimate that stands for an equivalent compute without bound."""
FROM_SCRATCH = (
    "The total compute was given: the answer is that of a run from scratch. Training a checkpoint further wants a lower "
    "learning rate and a larger batch size: ask with its initial loss and its budget in place of the total."
)


@dataclass(frozen=True)
class Compute:
    """ln FLOPs with draws; entry 0 is the estimate."""

    equivalent: Array | None
    total: Array
    cpt_flops: float | None

    def continuation(self, laws: Laws, query: PredictionQuery) -> Continuation:
        """Of the estimate."""
        return _continuation(laws, query, self.cpt_flops, float(self.total[0]))


def predict(laws: Laws, query: PredictionQuery) -> Prediction | Refused:
    """Invert L(C) at the initial loss, add the budget, and evaluate the laws there.

    Batch sizes, those of the query included, are in sequences of its own length, or of the laws' if it has none. Raises
    ValueError for a query that contradicts itself (two budgets, tokens without params), TypeError for what is no laws or
    no query.
    """
    if not isinstance(laws, Laws) or not isinstance(query, PredictionQuery):
        given = f"{type(laws).__name__} and {type(query).__name__}"
        raise TypeError(
            f"predict takes laws, as fit_laws and read_laws return them, and a PredictionQuery, not {given}"
        )
    query.check_numbers()
    asked = in_laws_sequences(query, laws.sequence_length)
    answer = _predict(laws, asked)
    if asked is query:
        return answer
    assert query.sequence_length is not None and laws.sequence_length is not None  # noqa: PT018
    if isinstance(answer, Refused):
        return _in_words(answer, laws.sequence_length)
    return for_length(answer, query.round_to, laws.sequence_length, query.sequence_length)


def _in_words(refused: Refused, length: int) -> Refused:
    """With the unit of the batch sizes that its sentences have."""
    told = tuple(
        replace(each, message=f"{each.message} Sequences are the sweep's, of {length} tokens.")
        if "sequences" in each.message
        else each
        for each in refused.refusals
    )
    return replace(refused, refusals=told)


def _predict(laws: Laws, query: PredictionQuery) -> Prediction | Refused:
    """The same in sequences of the laws' length, whatever the query's is."""
    query.check()
    refusals = refuse_query(laws, query)
    if refusals:
        return Refused(tuple(refusals), laws.warnings)
    compute = _compute(laws, query)
    if isinstance(compute, Refusal):
        return Refused((compute,), laws.warnings)
    far = _too_far(laws, query, float(compute.total[0]))
    doubt = far if query.batch_size is not None else contradicted(laws) or far
    if doubt is not None:
        return Refused((doubt,), laws.warnings)
    if query.batch_size is not None:
        return _answer_at_batch(laws, query, compute)
    return _answer(laws, query, compute)


def _compute(laws: Laws, query: PredictionQuery) -> Compute | Refusal:
    count = draw_count(laws, query)
    if query.total_flops is not None:
        return Compute(None, np.full(count + 1, np.log(query.total_flops)), None)
    assert query.initial_loss is not None
    cpt = budget_flops(laws, query)
    if not _composes(laws):
        return Compute(None, np.full(count + 1, np.log(cpt)), float(cpt))
    rng = np.random.default_rng([laws.options.seed, 3])
    losses = query.initial_loss + query.initial_loss_standard_error * rng.standard_normal(
        count + 1
    )
    losses[0] = query.initial_loss
    curve = loss_curve(laws, count)
    assert curve is not None  # refuse_query found it so
    equivalent = curve.log_x(losses)
    below = float(np.isinf(equivalent).mean())
    total = np.logaddexp(equivalent, np.log(cpt))
    spread = interval(float(total[0]), total, laws.options.interval)
    if below > MOST_BELOW or spread.high - spread.low > np.log(WIDEST_COMPUTE):
        error = query.initial_loss_standard_error
        unknown = f"its equivalent compute is unknown: the total is between {np.exp(spread.low):.2g} and {np.exp(min(spread.high, 700)):.2g} FLOPs"
        if error and isinstance(
            _compute(laws, replace(query, initial_loss_standard_error=0.0)), Compute
        ):
            return Refusal(
                RefusalReason.INITIAL_LOSS_UNCERTAIN,
                f"The initial loss {query.initial_loss:.4g} has a standard error of {error:.3g}, so large that {unknown}. "
                "Measure it on more text.",
                {"initial_loss": query.initial_loss, "standard_error": error},
            )
        return Refusal(
            RefusalReason.IRREDUCIBLE_LOSS_NOT_IDENTIFIED,
            f"The initial loss {query.initial_loss:.4g} is so close to the irreducible loss that {unknown}, with "
            f"{below:.0%} of the bootstrap below the irreducible loss.",
            {"initial_loss": query.initial_loss, "share_below": below},
        )
    # A draw below L0 means more compute than can be computed, not none.
    beyond = total[0] + UNBOUNDED
    return Compute(np.minimum(equivalent, beyond), np.minimum(total, beyond), float(cpt))


def _composes(laws: Laws) -> bool:
    """Whether laws of runs from scratch are taken to a continued run."""
    return laws.started_from != "Checkpoints"


def _too_far(laws: Laws, query: PredictionQuery, log_flops: float) -> Refusal | None:
    place = None
    if query.params is not None:
        per_token = flops_per_token(laws, query)
        place = float(np.log(query.params)), log_flops - float(np.log(per_token))
    return refuse_distance(laws, query, log_flops, place)


def _continuation(
    laws: Laws, query: PredictionQuery, cpt_flops: float | None, log_total: float
) -> Continuation:
    log_share = 0.0 if cpt_flops is None else float(np.log(cpt_flops) - log_total)
    if query.params is None:
        # Of the size that needs the least compute, which answers then.
        ratio = laws.surface.frontier_log_ratio
        few = None if ratio is None else float(np.exp(ratio))
        return Continuation(log_share, few, _composes(laws))
    per_token = flops_per_token(laws, query)
    few = float(np.exp(log_total)) / per_token / query.params
    return Continuation(log_share, few, _composes(laws))


def _answer(laws: Laws, query: PredictionQuery, compute: Compute) -> Prediction | Refused:
    routes = route_answers(laws, query, compute.total)
    if not routes and query.params is None and laws.surface.planes is not None:
        return Refused(_only_at_a_size(laws), laws.warnings)
    if not routes:
        return Refused(
            tuple(
                Refusal(RefusalReason.LAW_REFUSED, r.message, {"law_reason": r.reason.value})
                for r in (*laws.refusals, laws.surface.refusal)
                if r is not None
            ),
            laws.warnings,
        )
    route = _route(laws, routes)
    if route == "surface" and query.params is None:
        far = refuse_distance(
            laws, query, compute.total[0], laws.surface.on_the_frontier(compute.total[0])
        )
        if far is not None:
            return Refused((far,), laws.warnings)
    answers = _composed(laws, query, compute, routes)
    chosen = answers[route]
    vague = too_vague(expected_regret(laws, route, target_of(laws, query, compute.total)))
    few = too_few_steps(laws, query, compute.cpt_flops, chosen.batch_size.value)
    doubt = implausible(laws, routes[route]) or few or vague
    if doubt is not None:
        return Refused((doubt,), laws.warnings)
    disagreement = routes_disagree(laws, query, answers)
    if disagreement is not None:
        return Refused((disagreement,), laws.warnings)
    tolerance = query.batch_size_tolerance
    within = _affordable(laws, query, compute, chosen)
    unaffordable = tolerance is not None and within is None
    # A status keeps the first few: what the intervals carry comes before what they rest on.
    of_range = [not_affordable(laws, tolerance or 0.0, chosen)] if unaffordable else []
    of_range += [] if within is None else range_sentences(within)
    warnings = (
        *foundation(laws, route),
        *laws.warnings,
        *_warnings(laws, query, answers, route),
    )
    if route == "surface" and (given := _far_multiple(query, chosen.batch_size.value)):
        there = _answer_at_batch(laws, given, compute)
        said = far_sentence(chosen.batch_size.value, query.round_to)
        return _with_context(there, within, (said, *of_range), warnings)
    warnings = (
        *above_stable_rates(laws, query, chosen),
        *composition_sentences(query, compute.continuation(laws, query)),
        *rounding_sentences(chosen.batch_size, query.round_to),
        *of_range,
        *warnings,
    )
    variants = _variants(laws, query, compute, routes[route], route)
    answer = _prediction(laws, query, compute, answers, route, variants, warnings)
    return replace(answer, affordable=within)


def _only_at_a_size(laws: Laws) -> tuple[Refusal, ...]:
    """The surface answers at a size; which one stands in for none is known from the iso-loss laws, and these were refused."""
    return tuple(
        Refusal(
            RefusalReason.LAW_REFUSED,
            f"These laws answer where the size of your model is named, and there alone: {why.message}",
            law_figures(why),
        )
        for why in laws.refusals[:1]
    )


def _affordable(
    laws: Laws, query: PredictionQuery, compute: Compute, chosen: Point
) -> BatchSizeRange | None:
    tolerance = query.batch_size_tolerance
    if tolerance is None:
        return None
    return affordable(laws, tolerance, chosen, largest_batch(laws, query, compute.cpt_flops))


def _composed(
    laws: Laws, query: PredictionQuery, compute: Compute, routes: dict[Route, Point]
) -> dict[Route, Point]:
    """The routes' answers at C_total as those of the continued run that is asked for."""
    level, run = laws.options.interval, compute.continuation(laws, query)
    return {name: composed(point, query, run, level) for name, point in routes.items()}


def _answer_at_batch(laws: Laws, query: PredictionQuery, compute: Compute) -> Prediction | Refused:
    """The learning rate at the given batch size, with the best pair if that is known."""
    found = rate_at(laws, query, compute.total)
    if isinstance(found, Refusal):
        return Refused((found,), laws.warnings)
    doubt = implausible(laws, found) or too_few_steps(
        laws, query, compute.cpt_flops, found.batch_size.value
    )
    if doubt is not None:
        return Refused((doubt,), laws.warnings)
    routes: dict[Route, Point] = (
        {} if contradicted(laws) else route_answers(laws, query, compute.total)
    )
    answers = _composed(laws, query, compute, {**routes, "fixed-batch": found})
    answers["fixed-batch"] = replace(answers["fixed-batch"], batch_size=found.batch_size)
    best = answers.get("surface")
    warnings = (
        *above_stable_rates(laws, query, answers["fixed-batch"]),
        *composition_sentences(query, compute.continuation(laws, query)),
        *foundation(laws, "fixed-batch"),
        *laws.warnings,
        *_unseen(laws, query),
    )
    variants = _variants(laws, query, compute, found, "fixed-batch")
    answer = _prediction(laws, query, compute, answers, "fixed-batch", variants, warnings)
    cost = None if best is None else batch_cost(laws, found.batch_size.value, best)
    return replace(answer, batch_size_given=True, batch_size_cost=cost)


def _prediction(
    laws: Laws,
    query: PredictionQuery,
    compute: Compute,
    answers: dict[Route, Point],
    route: Route,
    variants: dict[str, Point],
    warnings: tuple[str, ...],
) -> Prediction:
    chosen, level = answers[route], laws.options.interval
    raw = chosen.batch_size.value
    value = raw if route == "fixed-batch" else rounded(raw, query.round_to)
    batch = Interval(value, chosen.batch_size.low, chosen.batch_size.high)
    length = float(laws.sequence_length or 1)
    return Prediction(
        learning_rate=chosen.learning_rate,
        batch_size=batch,
        batch_size_raw=raw,
        batch_size_tokens=Interval(batch.value * length, batch.low * length, batch.high * length),
        target_loss=target_loss(laws, compute.total),
        equivalent_flops=None
        if compute.equivalent is None
        else exponential(compute.equivalent, level),
        cpt_flops=compute.cpt_flops,
        total_flops=exponential(compute.total, level),
        extrapolation=_extrapolation(laws, query, compute),
        route=route,
        routes=answers,
        variants=variants,
        interval_level=level,
        provisional=laws.status == "provisional",
        composition=query.composition
        if compute.cpt_flops is not None and _composes(laws)
        else None,
        warnings=warnings,
        sequence_length=laws.sequence_length,
    )


def _route(laws: Laws, routes: dict[Route, Point]) -> Route:
    """The joint surface, which alone knows of sizes, where it stands.

    Linear in ln C are the iso-loss laws alone: who asks for that form is answered by them.
    """
    wanted: Route = "iso-loss" if laws.options.form == "LinearInLogCompute" else "surface"
    return wanted if wanted in routes else next(iter(routes))


def _far_multiple(query: PredictionQuery, batch_size: float) -> PredictionQuery | None:
    """The question for the learning rate at the multiple that is wanted, if that is far from the best batch size."""
    if query.params is None or query.round_to == 1 or not is_far(batch_size, query.round_to):
        return None
    given = rounded(batch_size, query.round_to)
    return replace(query, batch_size=given, batch_size_tolerance=None)


def _with_context(
    answer: Prediction | Refused,
    within: BatchSizeRange | None,
    said: Sequence[str],
    warnings: Sequence[str],
) -> Prediction | Refused:
    """The answer at a far multiple with what is `said` of that first and the best pair's warnings, or why there is none."""
    if isinstance(answer, Refused):
        told = tuple(
            replace(
                each,
                message=f"{said[0]} The learning rate at the multiple is not known: {each.message} Or round to a smaller multiple.",
            )
            for each in answer.refusals
        )
        return replace(answer, refusals=told)
    every = tuple(dict.fromkeys([*said, *answer.warnings, *warnings]))
    return replace(answer, affordable=within, warnings=every)


def _extrapolation(laws: Laws, query: PredictionQuery, compute: Compute) -> Extrapolation:
    target, lowest = target_loss(laws, compute.total), laws.data.lowest_loss
    largest = laws.data.largest_flops or float(np.exp(compute.total[0]))
    return Extrapolation(
        compute_factor=float(np.exp(compute.total[0]) / largest),
        loss_distance=None if target is None or lowest is None else lowest - target.value,
        params_factor=None if query.params is None else query.params / max(laws.data.sizes),
    )


def _variants(
    laws: Laws, query: PredictionQuery, compute: Compute, at_total: Point, route: Route
) -> dict[str, Point]:
    """`at_total`, the laws' answer at C_total, by the other composition; and the paper's ablations: A without the
    checkpoint's compute, B with that of its raw tokens."""
    if compute.cpt_flops is None or not _composes(laws):
        return {}
    level, run = laws.options.interval, compute.continuation(laws, query)
    other = other_composition(query.composition)
    variants = {other.lower(): composed(at_total, replace(query, composition=other), run, level)}
    budgets = {"A": compute.cpt_flops}
    if query.pretraining_tokens is not None and (query.params or query.flops_per_token):
        spent = query.pretraining_tokens * flops_per_token(laws, query)
        budgets["B"] = compute.cpt_flops + spent
    for name, flops in budgets.items():
        total = np.full_like(compute.total, np.log(flops))
        point: Point | Refusal | None = (
            rate_at(laws, query, total)
            if route == "fixed-batch"
            else route_answers(laws, query, total).get(route)
        )
        if isinstance(point, Point):
            own = _continuation(laws, query, compute.cpt_flops, float(np.log(flops)))
            variants[name] = composed(point, query, own, level)
    if route == "fixed-batch":
        # What a continuation wants of a batch size does not move one that is given.
        given = at_total.batch_size
        variants = {name: replace(each, batch_size=given) for name, each in variants.items()}
    return variants


def _unseen(laws: Laws, query: PredictionQuery) -> list[str]:
    """What is known of C_pre when the initial loss is above all that the sweep has seen, or when nothing is said of it."""
    if query.total_flops is not None:
        return [FROM_SCRATCH]
    past, loss = unseen_past(laws, query), query.initial_loss
    if past is None or loss is None:
        return []
    return [
        f"The initial loss {loss:.4g} is above every loss of the sweep ({laws.data.highest_loss:.4g}): C_pre is at most "
        f"{past.most:.2g} FLOPs, {past.share:.1%} of the total.{perplexity(laws, loss)}"
    ]


def _warnings(
    laws: Laws, query: PredictionQuery, routes: dict[Route, Point], route: Route
) -> list[str]:
    found = [*disagreements(routes), *_unseen(laws, query)]
    if laws.options.form == "LinearInLogCompute" and route == "surface":
        found.append(
            "The form LinearInLogCompute was asked for, which the iso-loss laws alone have, and these were refused: the "
            "joint surface answers, whose optima are power laws of size and tokens."
        )
    if route == "surface" and query.params is None:
        found += _size_answered_for(laws, query, routes[route].total_flops)
    return found


def _size_answered_for(laws: Laws, query: PredictionQuery, total_flops: float) -> list[str]:
    """The size that stands in for one that was not given, and the one that the given FLOPs per token are of."""
    place = laws.surface.on_the_frontier(np.log(total_flops))
    if place is None:
        return []
    params, tokens = (float(np.exp(at)) for at in place)
    sentence = (
        f"No target size was given: the answer is for {params:.3g} parameters and {tokens:.3g} tokens, the ratio of the two that "
        "needs the least compute in this sweep."
    )
    given = query.flops_per_token
    if given is None:
        return [f"{sentence} Name the size of your model if it is another."]
    own = given / laws.surface.flops_per_token_per_param
    return [
        f"{sentence} The {given:.3g} FLOPs per token that were given are those of about {own:.3g} parameters, and "
        f"{total_flops / given:.3g} tokens: give the size of your model for an answer at it."
    ]
