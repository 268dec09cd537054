"""L(C) = L0 + alpha C^-gamma along the frontier of least compute, with its intervals."""

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import DrawSource, interval, with_misfit
from isoloss.laws.curve_fitting import fit_curves
from isoloss.laws.curves import LossCurve
from isoloss.laws.iso_loss.levels import FEWEST_LEVELS, too_few_levels
from isoloss.laws.model import FitOptions, Refusal, RefusalReason, Status
from isoloss.laws.results import LossComputeLaw

FAR_OFF, TIMES_WORSE = 0.05, 3.0
"""Root mean square of ln C by which a law with a given L0 is off its own losses, and how many times that of a free one,
above which that is said."""


def fit_loss_compute(
    losses: Array,
    log_flops: Array,
    options: FitOptions,
    fitted: Status,
    deciding: int | None = None,
) -> tuple[LossComputeLaw, LossCurve | None]:
    """The law from the frontier's draws (draw 0 the estimate), and its draws in the same order.

    `losses` (K,) in nats per token, `log_flops` (draws, K), of which the first `deciding` (None: all) say
    how much a level weighs. Refuses too few levels, a fixed L0 above
    a loss seen, and a loss that does not fall with compute.
    """
    refusal = _refuse(losses, log_flops, options)
    if refusal is not None:
        return LossComputeLaw("refused", refusal=refusal), None
    weights = 1.0 / (log_flops[:deciding].var(axis=0) + 1e-4)
    along = fit_curves(losses, log_flops[:1], weights, options.irreducible_loss).log_x(losses)
    source = DrawSource(options.seed, 6, len(log_flops))
    log_flops = with_misfit(log_flops, along, 3, deciding, source)
    draws = fit_curves(losses, log_flops, weights, options.irreducible_loss)
    level = options.interval
    irreducible, log_alpha, gamma = (
        np.asarray(a) for a in (draws.irreducible, draws.log_alpha, draws.gamma)
    )
    intervals = [interval(float(a[0]), a, level) for a in (irreducible, gamma)]
    predicted = draws.take(slice(1)).loss(log_flops[0])
    likely = interval(float(irreducible[0]), irreducible[:deciding], level)
    wide = likely.high - likely.low > 0.5 * losses.min()
    at_zero = options.irreducible_loss is None and irreducible[0] <= 0.0
    law = LossComputeLaw(
        status=fitted,
        irreducible_loss=float(irreducible[0]),
        log_alpha=float(log_alpha[0]),
        gamma=float(gamma[0]),
        irreducible_loss_fixed=options.irreducible_loss is not None,
        irreducible_loss_identified=not (wide or at_zero),
        rmse=float(np.sqrt(np.mean((losses - predicted) ** 2))),
        points=len(losses),
        irreducible_loss_interval=intervals[0],
        gamma_interval=intervals[1],
    )
    return law, draws


def contradicted_floor(law: LossComputeLaw, losses: Array, log_flops: Array) -> str | None:
    """That a given L0 does not go with these losses and their least ln C (K,), which the law was fitted to; None if it does."""
    if not law.irreducible_loss_fixed or law.curve is None:
        return None
    free = fit_curves(losses, log_flops[None, :], np.ones(len(losses)), None)
    off, least = (
        float(np.sqrt(np.mean((curve.log_x(losses) - log_flops) ** 2)))
        for curve in (law.curve, free)
    )
    if off < max(FAR_OFF, TIMES_WORSE * least):
        return None
    return (
        f"The irreducible loss is set to {law.irreducible_loss:.4g}, and these runs contradict it: the loss-compute law misses "
        f"the compute of its own losses by {np.expm1(off):.0%}, for {np.expm1(least):.1%} with the one that fits best. A "
        "checkpoint's equivalent compute is further off, which no interval shows. Leave the irreducible loss free, or set that of this "
        "validation text."
    )


def _refuse(losses: Array, log_flops: Array, options: FitOptions) -> Refusal | None:
    if len(losses) < FEWEST_LEVELS:
        return too_few_levels(len(losses))
    fixed = options.irreducible_loss
    if fixed is not None and fixed >= losses.min():
        return Refusal(
            RefusalReason.INITIAL_LOSS_BELOW_IRREDUCIBLE,
            f"The irreducible loss is set to {fixed:.4g}, but a run reached {losses.min():.4g}. Set it lower, or leave it free.",
            {"irreducible_loss": fixed, "lowest_loss": float(losses.min())},
        )
    slope = np.polyfit(np.log(losses), log_flops[0], 1)[0]
    if slope >= 0:
        return Refusal(
            RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE,
            "The loss does not fall with compute along the frontier. Train for more tokens.",
            {"slope": float(slope)},
        )
    return None
