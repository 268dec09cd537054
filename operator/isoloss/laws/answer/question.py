"""A query in the laws' own terms, found once: compute, size, tokens, FLOPs per token, and batch sizes in the laws' sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws.arrays import LARGEST_LOG, Array
from isoloss.laws.bootstrap import exponential, interval
from isoloss.laws.curves import LossCurve, count_draws, with_draws
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Interval, Refusal, RefusalReason
from isoloss.laws.prediction import Composition, PredictionQuery
from isoloss.usual import FLATTENS, USUAL_TOKEN_SLOPE

WIDEST_COMPUTE = 100.0
"""Widest interval of total compute, high over low, that an answer may rest on."""


@dataclass(frozen=True)
class Question:
    """What is asked. Arrays (draws,) have the estimate first."""

    log_params: float | None
    """ln N; None: of the size that needs the least compute."""
    flops_per_token: float | None
    """Of the target; None: not known."""
    log_total: Array
    """(draws,) ln C_total."""
    total_flops: Interval
    """C_total."""
    equivalent_flops: Interval | None
    """C_pre; None if the total was given."""
    target_loss: Interval | None
    """L at C_total, nats per token; None if the loss-compute law was refused."""
    cpt_flops: float | None
    """None if the total was given."""
    place: tuple[Array, Array] | None
    """(draws,) ln N and ln D of a run from scratch with C_total, of the target's size or on the sweep's frontier; None: unknown."""
    batch_size: float | None
    """Sequences of the laws, if it is given."""
    multiple: float
    """Sequences of the laws, to whose multiples batch sizes are rounded."""
    tolerance: float | None
    """Nats over the best batch size."""
    composition: Composition
    composition_error: tuple[float, float] | None
    composes: bool
    """False: the laws are of runs that continue checkpoints, and say what is asked."""
    past_flops: float | None
    """FLOPs of the checkpoint's own pre-training tokens."""
    pretraining_rate: float | None = None
    """Learning rate that the checkpoint was pre-trained at; None: not known."""
    log_ratio: float = 0.0
    """Its logarithm, less that of the laws' learning rate; 0 until that is known."""
    slope: float = USUAL_TOKEN_SLOPE
    """-dL/dlnD, nats, at C_total: see loss_slope."""

    @property
    def log_flops(self) -> float:
        """ln C_total of the estimate."""
        return float(self.log_total[0])

    @property
    def log_share(self) -> float:
        """ln(C_cpt / C_total); 0 if the total was given."""
        return 0.0 if self.cpt_flops is None else float(np.log(self.cpt_flops)) - self.log_flops

    @property
    def tokens_per_param(self) -> float | None:
        """Of a run from scratch with C_total; None: not known."""
        if self.place is None:
            return None
        log_params, log_tokens = self.place
        return float(np.exp(log_tokens[0] - log_params[0]))

    def at(self, laws: Laws, flops: float) -> Question:
        """With this total compute, known exactly."""
        total = np.full_like(self.log_total, np.log(flops))
        place = _place(laws, self.log_params, self.flops_per_token, total)
        return replace(
            self,
            log_total=total,
            total_flops=Interval(flops, flops, flops),
            equivalent_flops=None,
            target_loss=_target_loss(laws, total),
            place=place,
            slope=_loss_slope(laws, total, place),
        )


def resolve(laws: Laws, query: PredictionQuery) -> Question | Refusal:
    """The question, if its compute is known. What `refuse_query` refuses must have been ruled out."""
    params, level = query.params, laws.options.interval
    per_token, budget = flops_per_token(laws, query), budget_flops(laws, query)
    compute = _compute(laws, query, budget)
    if isinstance(compute, Refusal):
        return compute
    equivalent, total = compute
    target_loss = _target_loss(laws, total)
    past = None
    if equivalent is not None:
        past = exponential(float(equivalent[0]), equivalent[1:], level)
    total_flops = exponential(float(total[0]), total[1:], level)
    log_params = None if params is None else float(np.log(params))
    ratio = 1.0
    if query.sequence_length is not None and laws.sequence_length is not None:
        ratio = query.sequence_length / laws.sequence_length
    own_tokens, place = query.pretraining_tokens, _place(laws, log_params, per_token, total)
    return Question(
        log_params=log_params,
        flops_per_token=per_token,
        log_total=total,
        total_flops=total_flops,
        equivalent_flops=past,
        target_loss=target_loss,
        cpt_flops=budget,
        place=place,
        slope=_loss_slope(laws, total, place),
        batch_size=None if query.batch_size is None else query.batch_size * ratio,
        multiple=query.round_to * ratio,
        tolerance=query.batch_size_tolerance,
        composition=query.composition,
        composition_error=query.composition_error,
        composes=composes(laws),
        past_flops=None if own_tokens is None or per_token is None else own_tokens * per_token,
        pretraining_rate=query.pretraining_learning_rate,
    )


def composes(laws: Laws) -> bool:
    """Whether laws of runs from scratch are taken to a continued run."""
    return laws.started_from != "Checkpoints"


def flops_per_token(laws: Laws, query: PredictionQuery) -> float | None:
    """Training FLOPs per token of the target: as given, or the runs' FLOPs per parameter times its parameters; None: unknown."""
    if query.flops_per_token is not None or query.params is None:
        return query.flops_per_token
    return laws.surface.flops_per_token_per_param * query.params


def budget_flops(laws: Laws, query: PredictionQuery) -> float | None:
    """C_cpt; None if the total was given."""
    if query.cpt_flops is not None or query.cpt_tokens is None:
        return query.cpt_flops
    return query.cpt_tokens * (flops_per_token(laws, query) or 0.0)


def _loss_curve(laws: Laws, count: int) -> LossCurve | None:
    """L(C) and `count` of its draws, the estimate first; None if it was refused."""
    curve = laws.loss_compute.curve
    return None if curve is None else with_draws(curve, laws.draws.loss_compute, count)


def _target_loss(laws: Laws, total: Array) -> Interval | None:
    curve = _loss_curve(laws, len(total) - 1)
    if curve is None:
        return None
    losses = curve.loss(total)
    return interval(float(losses[0]), losses[1:], laws.options.interval)


def _place(
    laws: Laws, log_params: float | None, per_token: float | None, total: Array
) -> tuple[Array, Array] | None:
    if log_params is None or per_token is None:
        return laws.surface.on_the_frontier(total)
    return np.full_like(total, log_params), total - np.log(per_token)


def loss_slope(
    laws: Laws, log_flops: float | None = None, log_tokens: float | None = None
) -> float:
    """-dL/dlnD, nats: that over ln C at this C_total, as more tokens bring as much as a larger size where the least compute is needed.

    Without a loss-compute law, or C_total, that of the largest size at its most tokens, which falls from there as is usual.
    """
    curve = laws.loss_compute.curve
    if log_flops is not None and curve is not None:
        return float(curve.steepness(log_flops) * curve.loss(log_flops))
    slope, last = laws.surface.token_slope, laws.data.largest_tokens
    slope = USUAL_TOKEN_SLOPE if slope is None else slope
    if log_tokens is None or last is None:
        return slope
    farther = min(log_tokens, LARGEST_LOG) - float(np.log(last))
    return slope * float(np.exp(-FLATTENS * farther))


def _loss_slope(laws: Laws, total: Array, place: tuple[Array, Array] | None) -> float:
    return loss_slope(laws, float(total[0]), None if place is None else float(place[1][0]))


def _compute(
    laws: Laws, query: PredictionQuery, budget: float | None
) -> tuple[Array | None, Array] | Refusal:
    """(draws of ln C_pre, None if the total was given, and of ln C_total)."""
    drawn = laws.draws
    # Without any draws the estimate stands in for one.
    count = count_draws(drawn.learning_rate, drawn.batch_size, drawn.loss_compute) or 1
    if query.total_flops is not None:
        return None, np.full(count + 1, np.log(query.total_flops))
    if not composes(laws):
        assert budget is not None
        return None, np.full(count + 1, np.log(budget))
    curve, loss = _loss_curve(laws, count), query.initial_loss
    assert curve is not None and loss is not None and budget is not None  # noqa: PT018  (refuse_query)
    error = query.initial_loss_standard_error
    rng = np.random.default_rng([laws.options.seed, 3])
    errors = rng.standard_normal(count + 1)
    errors[0] = 0.0
    # A draw below L0 means more compute than can be computed, not none.
    equivalent = np.minimum(curve.log_x(loss + error * errors), LARGEST_LOG)
    total = np.logaddexp(equivalent, np.log(budget))
    spread = interval(float(total[0]), total, laws.options.interval)
    if spread.high - spread.low > np.log(WIDEST_COMPUTE):
        most = f" and at most {np.exp(spread.high):.2g}" if spread.high < LARGEST_LOG else ""
        unknown = f"its equivalent compute is unknown: the total is at least {np.exp(spread.low):.2g}{most} FLOPs"
        exact = replace(query, initial_loss_standard_error=0.0)
        if error and not isinstance(_compute(laws, exact, budget), Refusal):
            return Refusal(
                RefusalReason.INITIAL_LOSS_UNCERTAIN,
                f"The initial loss {loss:.4g} has a standard error of {error:.3g}, so large that {unknown}. "
                "Measure it on more text.",
                {"initial_loss": loss, "standard_error": error},
            )
        below = float((equivalent == LARGEST_LOG).mean())
        return Refusal(
            RefusalReason.IRREDUCIBLE_LOSS_NOT_IDENTIFIED,
            f"The initial loss {loss:.4g} is so close to the irreducible loss that {unknown}, with "
            f"{below:.0%} of the bootstrap below the irreducible loss.",
            {"initial_loss": loss, "share_below": below},
        )
    return equivalent, total
