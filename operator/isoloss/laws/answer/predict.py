"""From a checkpoint's initial loss and a budget to a learning rate and a batch size, with intervals."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isoloss.laws.answer import composition, optimum
from isoloss.laws.answer.batch_sizes import (
    affordable,
    batch_cost,
    not_affordable,
    range_sentences,
    refuse_batch,
)
from isoloss.laws.answer.caveats import (
    FROM_SCRATCH,
    above_stable_rates,
    assumptions,
    size_answered_for,
)
from isoloss.laws.answer.limits import (
    implausible,
    largest_batch,
    refuse_distance,
    too_far,
    too_few_steps,
)
from isoloss.laws.answer.query_refusals import (
    law_figures,
    other_units,
    refuse_query,
    unseen_sentences,
)
from isoloss.laws.answer.question import Question, resolve
from isoloss.laws.answer.rounding import far_sentence, is_far, rounded, rounding_sentences
from isoloss.laws.answer.sequence_lengths import for_length
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, RefusalReason
from isoloss.laws.prediction import (
    BatchSizeRange,
    Extrapolation,
    Point,
    Prediction,
    PredictionQuery,
    Refused,
)

MOSTLY_PAST = 0.9
"""Share of the total compute from which on a checkpoint's past, by its initial loss, is what makes a question too far."""


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
    refusals = refuse_query(laws, query)
    if refusals:
        return _naming_a_batch_size(laws, query, Refused(tuple(refusals), laws.warnings))
    question = resolve(laws, query)
    if isinstance(question, Refusal):
        return Refused((question,), laws.warnings)
    far = refuse_distance(laws, question, query.max_extrapolation)
    if far is not None:
        return _of_the_loss(laws, query, question, Refused((far,), laws.warnings))
    unseen = [FROM_SCRATCH] if question.cpt_flops is None else unseen_sentences(laws, query)
    if question.batch_size is None:
        answer = _best_pair(laws, question, unseen)
    else:
        answer = _at_batch(laws, question, unseen)
    if isinstance(answer, Refused):
        answer = _naming_a_batch_size(laws, query, _of_the_loss(laws, query, question, answer))
    if query.sequence_length is None or laws.sequence_length is None:
        return answer
    if isinstance(answer, Refused):
        differ = query.sequence_length != laws.sequence_length
        return _in_words(answer, laws.sequence_length) if differ else answer
    return for_length(answer, query.round_to, laws.sequence_length, query.sequence_length)


def _of_the_loss(laws: Laws, query: PredictionQuery, question: Question, far: Refused) -> Refused:
    """With the units that would fit, where the initial loss makes most of a distance: one in another unit is likelier than such a
    checkpoint."""
    loss = query.initial_loss
    if loss is None or not far.refusals:
        return far
    first = far.refusals[0]
    if first.reason is not RefusalReason.EXTRAPOLATION_TOO_FAR:
        return far
    units, past = other_units(laws, loss), 1.0 - float(np.exp(question.log_share))
    if past < MOSTLY_PAST or not units:
        return far
    message = (
        f"{first.message} The initial loss, {loss:.4g}, makes {past:.0%} of that compute.{units}"
    )
    return replace(far, refusals=(replace(first, message=message), *far.refusals[1:]))


def _naming_a_batch_size(laws: Laws, query: PredictionQuery, refused: Refused) -> Refused:
    """With a batch size at which there is an answer, if there is one where runs were trained."""
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


def _in_words(refused: Refused, length: int) -> Refused:
    """With the unit of the batch sizes that its sentences have."""
    refusals = tuple(
        replace(each, message=f"{each.message} Sequences are the sweep's, of {length} tokens.")
        if "sequences" in each.message
        else each
        for each in refused.refusals
    )
    return replace(refused, refusals=refusals)


def _best_pair(laws: Laws, question: Question, unseen: Sequence[str]) -> Prediction | Refused:
    found = optimum.best_pair(laws, question)
    if found is None:
        return Refused(_no_place(laws), laws.warnings)
    question = composition.with_rate_ratio(question, found.point)
    answer = composition.composed(found.point, question, laws.options.interval)
    refusal = composition.refuse_ratio(question) or _refuse(laws, question, found, answer)
    if refusal is not None:
        return Refused((refusal,), laws.warnings)
    within = _affordable(laws, question, answer)
    of_range = [] if within is None else [*range_sentences(within)]
    if question.tolerance is not None and within is None:
        of_range = [not_affordable(laws, question.tolerance, answer)]
    # The gravest first: pages show three, and a status keeps a few more.
    caveats = (*unseen, *size_answered_for(laws, question), *laws.warnings)
    caveats = (*caveats, *assumptions(laws, found.route))
    batch = answer.batch_size
    if _rounds_far(question, batch.value) and found.route == "surface":
        at_multiple = question.at_batch(rounded(batch.value, question.multiple))
        warnings = (far_sentence(batch.value, question.multiple), *of_range)
        return _with_context(_at_batch(laws, at_multiple, unseen), within, warnings, caveats)
    warnings = (
        *above_stable_rates(laws, question, answer),
        *rounding_sentences(batch, question.multiple),
        *caveats,
        *of_range,
        *composition.composition_sentences(question),
    )
    value = rounded(batch.value, question.multiple)
    given = replace(answer, batch_size=Interval(value, batch.low, batch.high))
    prediction = _prediction(laws, question, found, given, warnings)
    return replace(prediction, batch_size_raw=batch.value, best=answer, affordable=within)


def _at_batch(laws: Laws, question: Question, unseen: Sequence[str]) -> Prediction | Refused:
    """The learning rate at the given batch size, with the best pair if that is known."""
    refusal = refuse_batch(laws, question)
    if refusal is not None:
        return Refused((refusal,), laws.warnings)
    found = optimum.rate_at_batch(laws, question)
    answer = composition.composed(found.point, question, laws.options.interval)
    refusal = _refuse(laws, question, found, answer)
    if refusal is not None:
        return Refused((refusal,), laws.warnings)
    warnings = (
        *above_stable_rates(laws, question, answer),
        *unseen,
        *laws.warnings,
        *assumptions(laws, found.route),
        *composition.composition_sentences(question),
    )
    prediction = _prediction(laws, question, found, answer, warnings)
    pair = optimum.best_pair(laws, replace(question, batch_size=None))
    if pair is None or pair.route != "surface":
        return replace(prediction, batch_size_given=True)
    best = composition.composed(
        pair.point, replace(question, batch_size=None), laws.options.interval
    )
    cost = batch_cost(laws, answer.batch_size.value, best)
    return replace(prediction, batch_size_given=True, best=best, batch_size_cost=cost)


def _no_place(laws: Laws) -> tuple[Refusal, ...]:
    """The surface answers at a size; which one stands in for none is known from the iso-loss laws, and these were refused."""
    return tuple(
        Refusal(
            RefusalReason.LAW_REFUSED,
            f"These laws answer only if the size of your model is named: {why.message}",
            law_figures(why),
        )
        for why in laws.refusals[:1]
    )


def _refuse(
    laws: Laws, question: Question, found: optimum.Optimum, answer: Point
) -> Refusal | None:
    return (
        implausible(laws, found.point)
        or optimum.too_vague(laws, found)
        or too_far(laws, question, optimum.expected_regret(laws, question, found).tokens)
        # Last: where nothing is known, the batch size that a budget has few steps of is no finding.
        or too_few_steps(laws, question, answer.batch_size.value)
    )


def _affordable(laws: Laws, question: Question, answer: Point) -> BatchSizeRange | None:
    if question.tolerance is None:
        return None
    return affordable(laws, question.tolerance, answer, largest_batch(laws, question))


def _rounds_far(question: Question, batch_size: float) -> bool:
    """Whether the multiple that is wanted is so far from the best batch size that another learning rate is best there."""
    if question.log_params is None or question.multiple == 1:
        return False
    return is_far(batch_size, question.multiple)


def _prediction(
    laws: Laws,
    question: Question,
    found: optimum.Optimum,
    answer: Point,
    warnings: tuple[str, ...],
) -> Prediction:
    level, length = laws.options.interval, float(laws.sequence_length or 1)
    batch, equivalent = answer.batch_size, question.log_equivalent
    past = (
        None
        if equivalent is None
        else optimum.exponential(float(equivalent[0]), equivalent[1:], level)
    )
    errors = found.covariance + composition.composition_covariance(question)
    regret = optimum.expected_regret(laws, question, replace(found, covariance=errors))
    return Prediction(
        learning_rate=answer.learning_rate,
        batch_size=batch,
        batch_size_raw=batch.value,
        batch_size_tokens=Interval(batch.value * length, batch.low * length, batch.high * length),
        target_loss=optimum.target_loss(laws, question),
        equivalent_flops=past,
        cpt_flops=question.cpt_flops,
        total_flops=optimum.exponential(question.log_flops, question.log_total[1:], level),
        extrapolation=_extrapolation(laws, question),
        route=found.route,
        variants=_variants(laws, question, found),
        interval_level=level,
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
    target, lowest = optimum.target_loss(laws, question), laws.data.lowest_loss
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
    by_other = replace(question, composition=other)
    variants = {other.lower(): composition.composed(found.point, by_other, level)}
    budgets = {"A": question.cpt_flops}
    if question.past_flops is not None:
        budgets["B"] = question.cpt_flops + question.past_flops
    for name, flops in budgets.items():
        there = question.at(laws, flops)
        if found.route == "fixed-batch":
            point: optimum.Optimum | None = optimum.rate_at_batch(laws, there)
        else:
            point = optimum.best_pair(laws, there)
        if point is not None and point.route == found.route:
            variants[name] = composition.composed(point.point, there, level)
    return variants
