"""The iso-loss surface of one size at one loss: tokens over (LR, B), its vertex, or why it has none.

ln D is fitted by a quadratic in (ln LR, ln B). Points far above the minimum weigh less, because the
true surface is a parabola only near its vertex; runs that never reached the loss are bounds, used
where the parabola would otherwise contradict them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoloss.laws.model import Array, Flags, Indices, Refusal, RefusalReason
from isoloss.laws.trajectories import Trajectory, crossings

MISFIT = 0.15
"""Error of the parabola as a fraction of a point's excess ln D over the best."""
BASE_ERROR = 0.02
"""Error of ln D at the best points: 2 % of tokens, about 0.002 nats."""
EDGE_MARGIN = 0.15
"""A vertex closer to the last value than this fraction of the last step is on the edge."""
SAME_LOSS = 1e-9
"""ln L within which two losses are one level."""
QUADRATIC = 6
"""Coefficients of the parabola."""


@dataclass(frozen=True)
class Size:
    """All trajectories of one size, their tokens to every level, and the grid's lines."""

    params: float
    flops_per_token: float
    trajectories: tuple[Trajectory, ...]
    log_tokens: Array
    """(runs, levels) NaN where not reached."""
    slopes: Array
    """(runs, levels) dlnL/dlnD."""
    weights: tuple[Array, ...]
    """Per run (levels, evaluations): see Crossings.weights."""
    covered: Flags
    """(levels,) whether enough runs reach the level."""

    @property
    def x(self) -> Array:
        """ln LR per run."""
        return np.log([t.learning_rate for t in self.trajectories])

    @property
    def y(self) -> Array:
        """ln B per run."""
        return np.log([t.batch_size for t in self.trajectories])


def runs_needed(runs: int) -> int:
    """How many runs of a size must reach a level for the size to take part in it."""
    return min(runs, max(QUADRATIC + 1, int(np.ceil(0.35 * runs))))


def choose_levels(by_size: dict[float, tuple[Trajectory, ...]], count: int) -> Array:
    """Losses (ln nats), descending, evenly spaced over what any of the sizes may cover."""
    ranges = [r for r in (_loss_range(t) for t in by_size.values()) if r is not None]
    if not ranges:
        return np.zeros(0)
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if all(r[1] - r[0] < SAME_LOSS for r in ranges):
        return np.unique([r[0] for r in ranges])[::-1]
    return np.linspace(high, low, count)


def _loss_range(trajectories: tuple[Trajectory, ...]) -> tuple[float, float] | None:
    """(low, high) ln L between the start of the best run and the end of the last run needed."""
    usable = [t for t in trajectories if t.usable]
    if len(usable) < 3:
        return None
    starts = np.sort([t.smooth[0] for t in usable])
    ends = np.sort([t.smooth[-1] for t in usable])
    low = float(ends[min(runs_needed(len(trajectories)), len(usable)) - 1])
    high = float(np.median(starts))
    return (low, high) if high >= low - SAME_LOSS else None


def _covers(trajectories: tuple[Trajectory, ...], log_tokens: Array, level: float) -> bool:
    """Whether enough runs reach a level, none of the best having started below it."""
    reached = np.isfinite(log_tokens)
    if reached.sum() < min(3, len(reached)) or reached.sum() < 0.75 * runs_needed(len(reached)):
        return False
    below = [
        t.log_tokens[0]
        for t, found in zip(trajectories, reached, strict=True)
        if not found and t.usable and t.smooth[0] < level - SAME_LOSS
    ]
    # A run that starts below the level, and late, is a gap in the table and not a better run.
    return not below or min(below) > float(np.nanmin(log_tokens)) + SAME_LOSS


def read_size(params: float, trajectories: tuple[Trajectory, ...], levels: Array) -> Size:
    """Tokens of every run of one size to every level."""
    found = [crossings(t, levels) for t in trajectories]
    log_tokens = np.array([c.log_tokens for c in found]).reshape(len(found), -1)
    covered = [
        _covers(trajectories, log_tokens[:, k], float(level)) for k, level in enumerate(levels)
    ]
    return Size(
        params=params,
        flops_per_token=float(np.median([t.flops_per_token for t in trajectories])),
        trajectories=trajectories,
        log_tokens=log_tokens,
        slopes=np.array([c.slope for c in found]).reshape(len(found), -1),
        weights=tuple(c.weights for c in found),
        covered=np.array(covered, dtype=bool),
    )


@dataclass(frozen=True)
class Parabola:
    """A fitted quadratic and the linear map that made it, for the bootstrap."""

    points: Indices
    """The runs used."""
    values: Array
    """ln D per run; bounds where `bound`."""
    bound: Flags
    weights: Array
    centre: Array
    coefficients: Array
    """(6,) see results.Contour."""
    solver: Array
    """(6, points): coefficients = solver @ values."""
    residuals: Array
    freedom: float
    """Weighted degrees of freedom left."""
    vertex: Array
    """(ln LR, ln B)."""
    log_tokens: float
    """ln D at the vertex."""


def fit_parabola(size: Size, level: int) -> Parabola | Refusal:
    """The quadratic through the runs of `size` at a level, or why there is none."""
    x, y = size.x, size.y
    z, bound = _values_and_bounds(size, level)
    reached = np.isfinite(z) & ~bound
    refusal = _too_few(size, x, y, z, reached)
    if refusal is not None:
        return refusal
    active = reached.copy()
    for _ in range(6):
        parabola = _solve(x, y, z, bound, active)
        outside = bound & np.isfinite(z) & (_evaluate(parabola, x, y) < z)
        if not (outside & ~active).any():
            break
        active = active | outside
    return parabola


def vertex_of(coefficients: Array, centre: Array) -> tuple[Array, Array, Flags]:
    """(vertex (..., 2), ln D there (...,), convex (...,)) of quadratics (..., 6)."""
    c0, c1, c2, c3, c4, c5 = np.moveaxis(coefficients, -1, 0)
    determinant = 4.0 * c3 * c5 - c4**2
    convex = (c3 > 0) & (c5 > 0) & (determinant > 0)
    safe = np.where(convex, determinant, 1.0)
    x = (c4 * c2 - 2.0 * c5 * c1) / safe
    y = (c4 * c1 - 2.0 * c3 * c2) / safe
    value = c0 + 0.5 * (c1 * x + c2 * y)
    return np.stack([x, y], axis=-1) + centre, value, convex


def _values_and_bounds(size: Size, level: int) -> tuple[Array, Flags]:
    """ln D where reached; a lower bound where the run ended or diverged above the level."""
    z = size.log_tokens[:, level].copy()
    missing = ~np.isfinite(z)
    highest = np.nanmax(z) if (~missing).any() else np.nan
    for i in np.flatnonzero(missing):
        run = size.trajectories[i]
        if run.diverged:
            z[i] = max(run.end, highest) if np.isfinite(run.end) else highest
        elif run.usable and len(run.log_tokens) > 1 and run.smooth[-1] > _level_loss(size, level):
            z[i] = run.end
    return z, missing & np.isfinite(z)


def _level_loss(size: Size, level: int) -> float:
    """ln L of a level, from any run that reached it."""
    for i in np.flatnonzero(np.isfinite(size.log_tokens[:, level])):
        run = size.trajectories[i]
        return float(np.interp(size.log_tokens[i, level], run.log_tokens, run.smooth))
    return -np.inf


def _too_few(size: Size, x: Array, y: Array, z: Array, reached: Flags) -> Refusal | None:
    edge = _edge_by_profile(size, x, y, z, reached)
    rates, batches = len(np.unique(x)), len(np.unique(y))
    if (
        reached.sum() >= QUADRATIC
        and rates >= 3
        and batches >= 3
        and not _degenerate(x, y, reached)
    ):
        return None
    if edge is not None:
        return edge
    return Refusal(
        RefusalReason.TOO_FEW_RUNS,
        f"Only {int(reached.sum())} runs of {size.params:.3g} parameters reach this loss, on "
        f"{rates} learning rates and {batches} batch sizes; a vertex needs at least {QUADRATIC} "
        "runs on 3 learning rates and 3 batch sizes.",
        {"runs": float(reached.sum()), "learning_rates": rates, "batch_sizes": batches},
    )


def _degenerate(x: Array, y: Array, reached: Flags) -> bool:
    design = _design(x[reached] - x.mean(), y[reached] - y.mean())
    return bool(np.linalg.matrix_rank(design, tol=1e-6) < QUADRATIC)


def _edge_by_profile(size: Size, x: Array, y: Array, z: Array, reached: Flags) -> Refusal | None:
    """With too few runs for a parabola: is the best run on an edge of the grid?"""
    if reached.sum() < 3:
        return None
    best = np.flatnonzero(reached)[np.argmin(z[reached])]
    for values, quantity in ((y, "batch_size"), (x, "learning_rate")):
        if len(np.unique(values)) < 3:
            continue
        if values[best] in (values.min(), values.max()):
            larger = bool(values[best] == values.max())
            return edge_refusal(quantity, size, float(np.exp(values[best])), larger, None)
    return None


def edge_refusal(
    quantity: str, size: Size, edge: float, larger: bool, vertex: float | None
) -> Refusal:
    """The optimum lies on or beyond the last value of a grid line: say which way to extend."""
    reason = (
        RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE
        if quantity == "learning_rate"
        else RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE
    )
    words = quantity.replace("_", " ")
    direction = "larger" if larger else "smaller"
    figures: dict[str, float | str] = {
        "params": size.params,
        "edge": edge,
        "direction": direction,
        "quantity": quantity,
    }
    if vertex is not None:
        figures["vertex"] = vertex
    return Refusal(
        reason,
        f"With {size.params:.3g} parameters the best {words} lies on or beyond the "
        f"{'largest' if larger else 'smallest'} one tried, {edge:.4g}: "
        f"extend the grid to {direction} values.",
        figures,
    )


def _design(dx: Array, dy: Array) -> Array:
    return np.stack([np.ones_like(dx), dx, dy, dx**2, dx * dy, dy**2], axis=-1)


def _solve(x: Array, y: Array, z: Array, bound: Flags, active: Flags) -> Parabola:
    points = np.flatnonzero(active)
    excess = z[points] - z[points[~bound[points]]].min()
    weights = 1.0 / (BASE_ERROR**2 + (MISFIT * excess) ** 2) * BASE_ERROR**2
    centre = np.array(
        [np.average(x[points], weights=weights), np.average(y[points], weights=weights)]
    )
    design = _design(x[points] - centre[0], y[points] - centre[1])
    root = np.sqrt(weights)
    solver = np.linalg.pinv(design * root[:, None]) * root
    coefficients = solver @ z[points]
    hat = np.einsum("ij,ji->i", design, solver)
    vertex, log_tokens, _ = vertex_of(coefficients, centre)
    return Parabola(
        points=points,
        values=z,
        bound=bound,
        weights=weights,
        centre=centre,
        coefficients=coefficients,
        solver=solver,
        residuals=z[points] - design @ coefficients,
        freedom=float((weights * np.clip(1.0 - hat, 0.0, None)).sum()),
        vertex=vertex,
        log_tokens=float(log_tokens),
    )


def _evaluate(parabola: Parabola, x: Array, y: Array) -> Array:
    design = _design(x - parabola.centre[0], y - parabola.centre[1])
    return np.asarray(design @ parabola.coefficients, dtype=float)


def judge_vertex(size: Size, parabola: Parabola, vertices: Array, convex: Flags) -> Refusal | None:
    """Refuse a vertex that is not safely a minimum inside the grid.

    `vertices` (draws, 2) and `convex` (draws,) are the bootstrap's, the estimate itself first.
    """
    if not convex[0] or convex.mean() < 0.8:
        return _not_convex(size, parabola, float(convex.mean()))
    for axis, quantity, values in ((0, "learning_rate", size.x), (1, "batch_size", size.y)):
        lines = np.unique(values)
        low = lines[0] + EDGE_MARGIN * (lines[1] - lines[0])
        high = lines[-1] - EDGE_MARGIN * (lines[-1] - lines[-2])
        found = vertices[convex, axis]
        for outside, larger in ((found > high, True), (found < low, False)):
            if outside[0] or outside.mean() > 0.2:
                edge = float(np.exp(lines[-1] if larger else lines[0]))
                return edge_refusal(quantity, size, edge, larger, float(np.exp(found[0])))
    return None


def _not_convex(size: Size, parabola: Parabola, share: float) -> Refusal:
    """A surface that is flat or a saddle: blame the edge if the best run lies on one."""
    x, y = size.x, size.y
    reached = np.zeros(len(x), dtype=bool)
    reached[parabola.points] = ~parabola.bound[parabola.points]
    edge = _edge_by_profile(size, x, y, parabola.values, reached)
    if edge is not None:
        return edge
    return Refusal(
        RefusalReason.SURFACE_NOT_CONVEX,
        f"The tokens that {size.params:.3g} parameters need have no minimum over learning rate "
        f"and batch size that stands out of the noise (convex in {share:.0%} of the bootstrap). "
        "Widen the grid or lower the noise of the evaluations.",
        {"params": size.params, "convex_share": share},
    )
