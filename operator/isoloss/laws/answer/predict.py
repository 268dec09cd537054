"""From a checkpoint's initial loss and a budget to a learning rate and a batch size, with intervals."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isoloss.laws.answer import composition, optimum
from isoloss.laws.answer.batch_sizes import (
    affordable,
    at_far_multiple,
    batch_cost,
    for_length,
    in_words,
    nearest_rates,
    refuse_batch,
    rounded,
    rounding_sentences,
)
from isoloss.laws.answer.question import Question, budget_flops, resolve
from isoloss.laws.answer.refusals import (
    largest_batch,
    of_the_loss,
    refuse_answer,
    refuse_distance,
    refuse_query,
    unseen_sentences,
)
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, Route
from isoloss.laws.prediction import (
    BatchSizeRange,
    Extrapolation,
    Point,
    Prediction,
    PredictionQuery,
    Refused,
)
from isoloss.usual import FEWEST_SIZES

FROM_SCRATCH = (
    "The total compute was given: the answer is that of a run from scratch. Training a checkpoint further wants a lower "
    "learning rate and a larger batch size: ask with its initial loss and its budget in place of the total."
)


def predict(laws: Laws, query: PredictionQuery) -> Prediction | Refused:
    """Invert L(C) at the initial loss, add the budget, and evaluate the laws there.

    Batch sizes, those of the query included, are in sequences of its own length, or of the laws' if it has none. Raises
    ValueError for a query that contradicts itself (two budgets, tokens without params), TypeError for what is no laws or
    no query.

    >>> answer = isoloss.predict(laws, query)
    >>> isinstance(answer, isoloss.Refused)
    False
    """
    if not isinstance(laws, Laws) or not isinstance(query, PredictionQuery):
        given = f"{type(laws).__name__} and {type(query).__name__}"
        raise TypeError(
            f"predict takes laws, as fit_laws and read_laws return them, and a PredictionQuery, not {given}"
        )
    query.check()
    answer = _naming_a_batch_size(laws, query, _answer(laws, query))
    if query.sequence_length is None or laws.sequence_length is None:
        return answer
    if isinstance(answer, Refused):
        differ = query.sequence_length != laws.sequence_length
        return in_words(answer, laws.sequence_length) if differ else answer
    return for_length(answer, query.round_to, laws.sequence_length, query.sequence_length)


def _answer(laws: Laws, query: PredictionQuery) -> Prediction | Refused:
    """In sequences of the laws' length."""
    if refusals := refuse_query(laws, query, budget_flops(laws, query)):
        return Refused(tuple(refusals), laws.warnings)
    question = resolve(laws, query)
    if isinstance(question, Refusal):
        return Refused((question,), laws.warnings)
    far = refuse_distance(laws, question, query.max_extrapolation)
    if far is not None:
        return of_the_loss(laws, query, question, Refused((far,), laws.warnings))
    budget = question.cpt_flops
    unseen = [FROM_SCRATCH] if budget is None else unseen_sentences(laws, query, budget)
    if question.batch_size is None:
        answer = _best_pair(laws, question, unseen)
    else:
        answer = _at_batch(laws, question, unseen)
    return of_the_loss(laws, query, question, answer) if isinstance(answer, Refused) else answer


def _naming_a_batch_size(
    laws: Laws, query: PredictionQuery, refused: Prediction | Refused
) -> Prediction | Refused:
    """A refusal with a batch size at which there is an answer, if there is one where runs were trained."""
    if not isinstance(refused, Refused):
        return refused
    low, high = laws.rate_at_batch.smallest_batch, laws.rate_at_batch.largest_batch
    if query.batch_size is not None or query.params is None or not (low and high):
        return refused
    if laws.only_batch_size is not None or query.pretraining_learning_rate is not None:
        return refused  # which says so, or does not take one
    batch = min(laws.data.batch_sizes, key=lambda each: abs(np.log(each**2 / (low * high))))
    if query.sequence_length is not None and laws.sequence_length is not None:
        batch *= laws.sequence_length / query.sequence_length
    batch = max(1.0, float(round(batch)))
    at_batch = replace(query, batch_size=batch, batch_size_tolerance=None)
    if not refused.refusals or isinstance(predict(laws, at_batch), Refused):
        return refused
    first, *others = refused.refusals
    message_at_batch = (
        f"{first.message} At a given batch size there is an answer: give one, such as {batch:.0f}."
    )
    return replace(
        refused, refusals=(replace(first, message=message_at_batch), *others), answered_at=batch
    )


def _best_pair(laws: Laws, question: Question, unseen: Sequence[str]) -> Prediction | Refused:
    found = optimum.best_pair(laws, question)
    if found is None:
        return optimum.without_a_place(laws)
    question = composition.with_rate_ratio(question, found.point)
    answer = composition.composed(found.point, question, laws.options.interval)
    errors, of_composition = (
        composition.composition_covariance(question),
        composition.composition_sentences(question),
    )
    refusal = composition.refuse_ratio(question) or refuse_answer(laws, question, found, answer)
    most = largest_batch(laws, question)
    if refusal is not None:
        return Refused((refusal,), laws.warnings)
    batch, multiple = answer.batch_size, question.multiple
    within, of_range = affordable(laws, question, answer, most)
    far = at_far_multiple(question, batch.value) if found.route == "surface" else None
    of_rounding, value = rounding_sentences(batch, multiple), rounded(batch.value, multiple)
    regret = optimum.expected_regret(laws, question, found, errors)
    # The gravest first: pages show three, and a status keeps a few more.
    caveats = (*unseen, *size_answered_for(laws, question), *laws.warnings)
    caveats = (*caveats, *assumptions(laws, found.route))
    if far is not None:
        at_multiple, sentence = far
        answered = _at_batch(laws, at_multiple, unseen)
        return _with_context(answered, within, (sentence, *of_range), caveats)
    warnings = (
        *above_stable_rates(laws, question, answer),
        *of_rounding,
        *caveats,
        *of_range,
        *of_composition,
    )
    given = replace(answer, batch_size=Interval(value, batch.low, batch.high))
    prediction = _prediction(laws, question, found, given, regret, warnings)
    return replace(prediction, batch_size_raw=batch.value, best=answer, affordable=within)


def _at_batch(laws: Laws, question: Question, unseen: Sequence[str]) -> Prediction | Refused:
    """The learning rate at the given batch size, with the best pair if that is known."""
    refusal = refuse_batch(laws, question)
    if refusal is not None:
        return Refused((refusal,), laws.warnings)
    found = optimum.rate_at_batch(laws, question)
    pair = optimum.best_pair(laws, replace(question, batch_size=None))
    answer = composition.composed(found.point, question, laws.options.interval)
    errors, of_composition = (
        composition.composition_covariance(question),
        composition.composition_sentences(question),
    )
    best = None
    if pair is not None and pair.route == "surface":
        best = composition.composed(
            pair.point, replace(question, batch_size=None), laws.options.interval
        )
    refusal = refuse_answer(laws, question, found, answer)
    if refusal is not None:
        return Refused((refusal,), laws.warnings)
    cost = None if best is None else batch_cost(laws, question, answer.batch_size.value, best)
    regret = optimum.expected_regret(laws, question, found, errors)
    warnings = (
        *above_stable_rates(laws, question, answer),
        *unseen,
        *laws.warnings,
        *assumptions(laws, found.route),
        *of_composition,
    )
    prediction = _prediction(laws, question, found, answer, regret, warnings)
    return replace(prediction, batch_size_given=True, best=best, batch_size_cost=cost)


def _prediction(
    laws: Laws,
    question: Question,
    found: optimum.Optimum,
    answer: Point,
    regret: optimum.ExpectedRegret,
    warnings: tuple[str, ...],
) -> Prediction:
    length, batch = float(laws.sequence_length or 1), answer.batch_size
    return Prediction(
        learning_rate=answer.learning_rate,
        batch_size=batch,
        batch_size_raw=batch.value,
        batch_size_tokens=Interval(batch.value * length, batch.low * length, batch.high * length),
        target_loss=question.target_loss,
        equivalent_flops=question.equivalent_flops,
        cpt_flops=question.cpt_flops,
        total_flops=question.total_flops,
        extrapolation=_extrapolation(laws, question),
        route=found.route,
        variants=_variants(laws, question, found),
        interval_level=laws.options.interval,
        provisional=laws.status == "provisional",
        expected_regret=regret.nats,
        expected_regret_flops=regret.flops,
        composition=question.composition
        if question.cpt_flops is not None and question.composes
        else None,
        warnings=warnings,
        sequence_length=laws.sequence_length,
    )


def _with_context(
    answer: Prediction | Refused,
    within: BatchSizeRange | None,
    warnings: Sequence[str],
    caveats: Sequence[str],
) -> Prediction | Refused:
    """The answer at a far multiple with the `warnings` about that first and the best pair's caveats, or why there is none."""
    if isinstance(answer, Refused):
        refusals = tuple(
            replace(
                each,
                message=f"{warnings[0]} The learning rate at the multiple is not known: {each.message} Or round to a smaller multiple.",
            )
            for each in answer.refusals
        )
        return replace(answer, refusals=refusals)
    every = tuple(dict.fromkeys([*warnings, *answer.warnings, *caveats]))
    return replace(answer, affordable=within, warnings=every)


def _extrapolation(laws: Laws, question: Question) -> Extrapolation:
    target, lowest = question.target_loss, laws.data.lowest_loss
    flops, log_params = float(np.exp(question.log_flops)), question.log_params
    factor = None if log_params is None else float(np.exp(log_params)) / max(laws.data.sizes)
    return Extrapolation(
        compute_factor=flops / (laws.data.largest_flops or flops),
        loss_distance=None if target is None or lowest is None else lowest - target.value,
        params_factor=factor,
    )


def _variants(laws: Laws, question: Question, found: optimum.Optimum) -> dict[str, Point]:
    """The laws' answer at C_total by the other composition; and the paper's ablations: A without the
    checkpoint's compute, B with that of its raw tokens."""
    if question.cpt_flops is None or not question.composes:
        return {}
    level, other = laws.options.interval, composition.other_composition(question.composition)
    budgets = {"A": question.cpt_flops}
    if question.past_flops is not None:
        budgets["B"] = question.cpt_flops + question.past_flops
    asked = {name: question.at(laws, flops) for name, flops in budgets.items()}
    found_there = {name: optimum.by_route(laws, asked[name], found.route) for name in asked}
    variants = {
        other.lower(): composition.composed(
            found.point, replace(question, composition=other), level
        )
    }
    for name, there in found_there.items():
        if there is not None:
            variants[name] = composition.composed(there.point, asked[name], level)
    return variants


# ---------------------------------------------------- what an answer rests on, and what speaks against it


def assumptions(laws: Laws, route: Route) -> tuple[str, ...]:
    """What the sweep itself cannot show."""
    found = []
    if route == "surface":
        found += [
            f"The {name.replace('_', ' ')}'s trend over sizes may be noise (without it the largest size was predicted better), so "
            "only half of it is applied."
            for name in laws.surface.halved_trends
        ]
        if laws.options.form == "LinearInLogCompute":
            found.append(
                "The iso-loss laws were refused, and only they have the form LinearInLogCompute. The joint surface answers instead: "
                "its optima are power laws of size and tokens."
            )
    sizes = len(laws.data.sizes)
    if 0 < sizes <= FEWEST_SIZES:
        found.append(
            f"With {sizes} {'size' if sizes == 1 else 'sizes'}, size-to-size scatter cannot be estimated; the intervals assume "
            "as much as published sweeps show."
        )
    return tuple(found)


def size_answered_for(laws: Laws, question: Question) -> list[str]:
    """The size that stands in for one that was not given, and the one that the given FLOPs per token are of."""
    if question.log_params is not None or question.place is None:
        return []
    params, tokens = (float(np.exp(at[0])) for at in question.place)
    sentence = (
        f"No target size was given: the answer is for {params:.3g} parameters and {tokens:.3g} tokens, the ratio of the two that "
        "needs the least compute in this sweep."
    )
    given, total = question.flops_per_token, float(np.exp(question.log_flops))
    if given is None:
        return [f"{sentence} Name the size of your model if it is another."]
    own = given / laws.surface.flops_per_token_per_param
    return [
        f"{sentence} The given {given:.3g} FLOPs per token fit about {own:.3g} parameters, trained on "
        f"{total / given:.3g} tokens: give the size of your model for an answer at it."
    ]


def above_stable_rates(laws: Laws, question: Question, answer: Point) -> list[str]:
    """A sentence if it is above every learning rate that runs of the sweep survived nearby, and a higher one diverged there.

    A parabola through the runs that did not diverge knows nothing of the edge behind them, and its minimum can lie beyond it.
    """
    nearest = nearest_rates(laws, question, answer.batch_size.value)
    if (
        nearest is None
        or nearest.diverged is None
        or answer.learning_rate.value <= nearest.highest
    ):
        return []
    return [
        f"The answer, {answer.learning_rate.value:.3g}, is above every learning rate that was stable nearby: with "
        f"{nearest.params:.3g} parameters and a batch size of {nearest.batch_size:g} sequences, {nearest.highest:.3g} did not "
        f"diverge and {nearest.diverged:.3g} did. Use {nearest.highest:.3g}, or train one between them first."
    ]
