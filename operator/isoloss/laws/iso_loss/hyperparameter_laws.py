"""f and g: the optimal batch size and learning rate along the frontier, as laws of loss or compute."""

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array
from isoloss.laws.bootstrap import DrawSource, interval, with_misfit
from isoloss.laws.curves import HyperparameterCurve, Quantity
from isoloss.laws.iso_loss.levels import FEWEST_LEVELS, too_few_levels
from isoloss.laws.model import FitOptions, Refusal, RefusalReason, Status
from isoloss.laws.results import HyperparameterLaw
from isoloss.usual import USUAL_SCATTER, USUAL_STEP

MISFIT_STREAMS: dict[Quantity, int] = {"learning_rate": 7, "batch_size": 8}


def fit_hyperparameter_law(
    quantity: Quantity,
    losses: Array,
    log_flops: Array,
    log_values: Array,
    options: FitOptions,
    fitted: Status,
    deciding: int | None = None,
) -> tuple[HyperparameterLaw, HyperparameterCurve | None]:
    """The law from the frontier's draws (draw 0 the estimate), and its draws in the same order.

    `losses` (K,), `log_flops` and `log_values` (draws, K). The first `deciding` draws (None: all) say how
    much a level weighs and whether there is a trend.
    """
    form = options.form
    if len(losses) < FEWEST_LEVELS:
        refusal = too_few_levels(len(losses))
        return HyperparameterLaw(quantity, "refused", form, refusal=refusal), None
    # What no straight line follows keeps one level from ruling the fit.
    weights = 1.0 / (log_values[:deciding].var(axis=0) + USUAL_SCATTER**2)
    linear_batch = form == "LinearInLogCompute" and quantity == "batch_size"
    y = np.exp(log_values) if linear_batch else log_values
    x = np.broadcast_to(np.log(losses), y.shape) if form == "PowerLawOfLoss" else log_flops
    intercept, slope = _lines(x[:1], y[:1], weights)
    source = DrawSource(options.seed, MISFIT_STREAMS[quantity], len(y))
    y = with_misfit(y, intercept[0] + slope[0] * x[0], 2, deciding, source)
    intercept, slope = _lines(x, y, weights)
    doubt = _refuse_trend(quantity, slope[:deciding], x[0], y[0], linear_batch, options)
    if doubt is not None:
        return HyperparameterLaw(quantity, "refused", form, refusal=doubt), None
    covariance = np.cov(intercept[:deciding], slope[:deciding])
    if form == "LinearInLogCompute":
        covariance = _of_inverse(covariance, float(intercept[0]), float(slope[0]))
        # Fitted with the noisy hyperparameter as response, written as ln C = a y + b.
        slope, intercept = 1.0 / slope, -intercept / slope
    law = HyperparameterLaw(
        quantity=quantity,
        status=fitted,
        form=form,
        intercept=float(intercept[0]),
        slope=float(slope[0]),
        covariance=covariance,
        points=len(losses),
        slope_interval=interval(float(slope[0]), slope, options.interval),
    )
    return law, HyperparameterCurve(quantity, form, intercept, slope)


def _lines(x: Array, y: Array, weights: Array) -> tuple[Array, Array]:
    """(intercepts, slopes) of weighted straight lines, one per draw."""
    w = weights / weights.sum()
    mean_x, mean_y = (x * w).sum(-1), (y * w).sum(-1)
    dx, dy = x - mean_x[:, None], y - mean_y[:, None]
    slope = (dx * dy * w).sum(-1) / (dx**2 * w).sum(-1)
    return mean_y - slope * mean_x, slope


def _of_inverse(covariance: Array, intercept: float, slope: float) -> Array:
    """(2, 2) of -intercept / slope and 1 / slope to first order, given that of intercept and slope.

    Draws of a quotient have heavy tails, whose covariance is that of the one draw nearest to a slope of 0; to first order the
    answer's error is that of the line as it was fitted.
    """
    moves = np.array([[-1.0 / slope, intercept / slope**2], [0.0, -1.0 / slope**2]])
    return np.asarray(moves @ covariance @ moves.T, dtype=float)


def _refuse_trend(
    quantity: Quantity, slope: Array, x: Array, y: Array, linear: bool, options: FitOptions
) -> Refusal | None:
    found = interval(float(slope[0]), slope, options.interval)
    span = float(np.ptp(x)) / (float(np.exp(np.log(y).mean())) if linear else 1.0)
    undecided = (found.high - found.low) * span
    inverted = options.form == "LinearInLogCompute" and abs(slope[0]) < ROUNDING
    # A trend that may be none stands if it leaves less than a step of a grid open over the data.
    decided = found.low > 0 or found.high < 0 or undecided < np.log(USUAL_STEP)
    if not inverted and decided:
        return None
    words = quantity.replace("_", " ")
    return Refusal(
        RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE,
        f"The optimal {words} may rise or fall over the losses seen: the interval of its slope is "
        f"[{found.low:.3g}, {found.high:.3g}]. Add sizes or tokens, or reduce the noise.",
        {"slope": found.value, "low": found.low, "high": found.high},
    )
