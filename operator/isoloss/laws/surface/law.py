"""The joint surface's optimum as a law, or the reason why it is not believed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isoloss.laws.arrays import ROUNDING, Array, Indices
from isoloss.laws.bootstrap import DrawSource
from isoloss.laws.curves import OptimumTrends, Trend
from isoloss.laws.data.cells import LATE, Cell, late_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.laws.iso_loss.edges import BELIEVED
from isoloss.laws.model import Refusal, RefusalReason, Status
from isoloss.laws.results import SurfaceLaw
from isoloss.laws.surface.joint_fit import SurfaceFit
from isoloss.laws.surface.terms import Shape, trends
from isoloss.laws.surface.uncertainty import Uncertainty
from isoloss.usual import USUAL_CURVATURE_ERROR, USUAL_STEP

JUST_BEYOND = 0.5
"""Steps of a grid beyond its edge up to which an optimum counts as inside. In 384 simulated sweeps of four kinds, 3 x 3 and 4 x 4 with steps of
1.5 to 3, such answers lose 0.0012 nats in the mean and 0.007 at most, those from farther beyond up to 0.8."""


def surface_law(
    known: Uncertainty,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    shift: Array,
    fitted: Status,
) -> SurfaceLaw:
    """The public record. `shift` (6,) moves the law, and may as well not: whether to is itself not certain."""
    fit = known.fit
    share = convex_share(known)
    if not fit.is_convex:
        return SurfaceLaw("refused", refusal=_not_convex(share))
    optimum = trends(known.law + shift, fit.centre, known.curvatures)
    near = JUST_BEYOND if share >= BELIEVED and shows_curvature(known) else 0.0
    refusal = _judge(fit, trajectories, cells, optimum, near)
    if refusal is not None:
        return SurfaceLaw("refused", refusal=refusal)
    per_param = [t.flops_per_token / t.params for t in trajectories]
    return SurfaceLaw(
        status=fitted,
        optimum=optimum,
        curvature=fit.hessian,
        residual_rms=residual_rms(fit, cells),
        flops_per_token_per_param=float(np.median(per_param)),
        cells=len(cells),
        points=len(fit.runs),
        error=known.error(shift),
        token_slope=_token_slope(cells),
    )


def convex_share(known: Uncertainty) -> float:
    """How often the valley has a minimum, over draws of its curvature."""
    fit, of_curvature = known.fit, slice(Shape.XX, Shape.X)
    solver = fit.valley.solver[of_curvature]
    cubic = solver @ fit.valley.cubic.columns
    covariance = known.noise.covariance(solver) + (cubic * fit.valley.cubic.variances) @ cubic.T
    drawn = fit.valley.coefficients[of_curvature] + DrawSource(0, 2, 0).correlated(covariance)
    xx, xy, yy = drawn.T
    return float(((xx > 0) & (xx * yy > xy**2)).mean())


def shows_curvature(known: Uncertainty) -> bool:
    """Whether runs tell it better than what is usual: one that seems too steep puts an optimum far beyond a grid just beyond it."""
    error = known.noise.covariance(known.fit.valley.solver[Shape.XX : Shape.X])
    return bool((np.diag(error) < USUAL_CURVATURE_ERROR**2).all())


def residual_rms(fit: SurfaceFit, cells: Sequence[Cell]) -> float:
    """Weighted root mean square by which the losses of these cells are off the surface, nats."""
    log_loss = np.average(np.concatenate([c.log_losses for c in cells]), weights=fit.weights)
    weighted = np.average((fit.valley.misfit * fit.scale) ** 2, weights=fit.weights)
    return float(np.sqrt(weighted) * np.exp(log_loss))


def _token_slope(cells: Sequence[Cell]) -> float:
    last = max(cells, key=lambda cell: (cell.log_params, cell.log_tokens))
    return last.slope * float(np.exp(last.log_losses.min()))


def _judge(
    fit: SurfaceFit,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    optimum: OptimumTrends,
    near: float,
) -> Refusal | None:
    """Refuse a surface whose minima are mostly more than `near` steps outside the grids, at the end of runs as well.

    Just beyond an edge the surface still tells it: from the slope there and the curvature that all cells share.

    Noise that leaves no minimum in some draws refuses none that is inside: any point of a ridge is good, and how far one is known is
    judged with the answer.
    """
    late, tried = late_cells(cells), _tried(trajectories)
    quantities = (
        ("learning_rate", optimum.learning_rate, np.log([t.learning_rate for t in tried])),
        ("batch_size", optimum.batch_size, np.log([t.batch_size for t in tried])),
    )
    for quantity, trend, values in quantities:
        sides = _sides(fit, tried, late, trend, values, near)
        # Answers are for the end of runs: what is inside there may have been outside before.
        ends = sides[_last_of_sizes(late)]
        above, below = (
            min(float((side * of > 0).mean()) for of in (sides, ends)) for side in (1, -1)
        )
        if max(above, below) > 0.5:
            outside = _outside_refusal(quantity, values, above > below, max(above, below))
            return _beside_divergence(outside, tried)
        if _sizes_inside(late, sides) < min(2, len(set(fit.sizes))):
            return _beside_divergence(
                _size_outside_refusal(quantity, values, tried, late, sides), tried
            )
    return None


def _last_of_sizes(cells: Sequence[Cell]) -> Indices:
    """Which of the cells has the most tokens of its size."""
    order = sorted(range(len(cells)), key=lambda at: cells[at].log_tokens)
    return np.array(sorted({cells[at].log_params: at for at in order}.values()), dtype=np.intp)


def _sizes_inside(cells: Sequence[Cell], sides: Array) -> int:
    """Sizes whose optimum is inside their grid in some cell: a trend over sizes needs two."""
    return len({c.log_params for c, side in zip(cells, sides, strict=True) if side == 0})


def _not_convex(convex: float) -> Refusal:
    return Refusal(
        RefusalReason.SURFACE_NOT_CONVEX,
        "The joint surface has no minimum over learning rate and batch size above the noise "
        f"(convex in {convex:.0%} of draws). Widen the grid, or reduce the noise.",
        {"convex_share": convex},
    )


def _tried(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that bound the valley: of learning rates at which no run reached the late cells, the lowest.

    Beyond it runs diverge, and no optimum is there.
    """
    found: list[Trajectory] = []
    for size in {t.params for t in trajectories}:
        own = [t for t in trajectories if t.params == size]
        enough = max(t.end for t in own) + np.log(LATE)
        lasting = max(t.learning_rate for t in own if not t.diverged or t.end >= enough)
        gone = [t.learning_rate for t in own if t.learning_rate > lasting]
        highest = min(gone, default=lasting)
        found += [t for t in own if t.learning_rate <= highest]
    return found


def _beside_divergence(refusal: Refusal, tried: Sequence[Trajectory]) -> Refusal:
    """The same refusal, which sends nobody to learning rates that diverge."""
    edge, figures = float(refusal.figures["edge"]), refusal.figures
    wanted = (figures["quantity"], figures["direction"]) == ("learning_rate", "larger")
    last = [t for t in tried if abs(np.log(t.learning_rate / edge)) < ROUNDING]
    if not wanted or not all(t.diverged for t in last):
        return refusal
    message = refusal.message.partition(": extend")[0]
    return replace(
        refusal,
        message=f"{message}, where runs diverge. Add learning rates below it: the valley's upper side is missing.",
        figures={**figures, "direction": "smaller"},
    )


def _sides(
    fit: SurfaceFit,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    trend: Trend,
    values: Array,
    near: float,
) -> Array:
    """(cells,) 1 where the optimum is more than `near` steps above the values that its size was tried at, -1 where below, else 0; beyond
    values at which all runs diverged, any distance counts."""
    params = np.log([t.params for t in trajectories])
    lasted = np.array([not t.diverged for t in trajectories])
    sides = np.zeros(len(cells))
    for i, cell in enumerate(cells):
        own = np.abs(params - cell.log_params) < ROUNDING
        tried = np.unique(values[own])
        step = (tried[-1] - tried[0]) / max(len(tried) - 1, 1) or np.log(USUAL_STEP)
        n = cell.log_params - fit.centre.log_params
        d = cell.log_tokens - fit.centre.log_tokens
        optimum = float(trend.at(n, d))
        edge = tried[-1] if optimum > tried[-1] else tried[0]
        allowed = near * step if lasted[own & (values == edge)].any() else 0.0
        sides[i] = float(optimum > tried[-1] + allowed) - float(optimum < tried[0] - allowed)
    return sides


def _size_outside_refusal(
    quantity: str,
    values: Array,
    trajectories: Sequence[Trajectory],
    cells: Sequence[Cell],
    sides: Array,
) -> Refusal:
    """Of sizes whose optima are all outside their grids, the largest is named."""
    log_params = np.array([c.log_params for c in cells])
    outside = max(n for n in log_params if np.all(sides[log_params == n] != 0))
    larger = bool(sides[log_params == outside].sum() > 0)
    own = np.abs(np.log([t.params for t in trajectories]) - outside) < ROUNDING
    known = _outside_refusal(quantity, values[own], larger, float((sides != 0).mean()))
    return replace(
        known,
        message=f"The best {quantity.replace('_', ' ')} of {np.exp(outside):.3g} parameters is beyond that size's grid, "
        f"{known.figures['edge']:.4g}. A trend over sizes needs two sizes with an optimum inside their grids: "
        f"extend that grid to {known.figures['direction']} values.",
        figures={**known.figures, "params": float(np.exp(outside))},
    )


def _outside_refusal(quantity: str, values: Array, larger: bool, share: float) -> Refusal:
    edge = float(np.exp(values.max() if larger else values.min()))
    direction = "larger" if larger else "smaller"
    return Refusal(
        RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE
        if quantity == "learning_rate"
        else RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE,
        f"From {LATE:.0%} of every size's tokens on, the best {quantity.replace('_', ' ')} is beyond the grid's edge, {edge:.4g}, in "
        f"{share:.0%} of the joint surface's cells: extend the grid to {direction} values.",
        {"edge": edge, "direction": direction, "quantity": quantity, "share": share},
    )
