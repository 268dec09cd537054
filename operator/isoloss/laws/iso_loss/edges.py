"""Reasons not to believe a parabola's vertex: too few runs, no minimum, or a minimum on the grid's edge."""

import numpy as np

from isoloss.laws.arrays import Array, Flags
from isoloss.laws.iso_loss.levels import Size
from isoloss.laws.model import DEFAULTS, Refusal, RefusalReason
from isoloss.laws.quadratic import TERMS, is_determined

EDGE_MARGIN = 0.15
"""A vertex closer to the last value than this fraction of the last step is on the edge."""
BELIEVED = DEFAULTS.interval
"""Share of the bootstrap that must have a minimum at all, and one that is not beyond an edge: that of an interval."""


def too_few(size: Size, z: Array, reached: Flags) -> Refusal | None:
    """Refuse what no parabola can be fitted to; name the edge if the best run is on one."""
    runs, (rates, batches) = int(reached.sum()), (len(values) for values in size.lines)
    enough = runs >= TERMS and rates >= 3 and batches >= 3
    if enough and is_determined(size.x[reached], size.y[reached]):
        return None
    edge = edge_by_profile(size, z, reached)
    if edge is not None:
        return edge
    if enough:
        return _no_diagonal(size, runs)
    return Refusal(
        RefusalReason.TOO_FEW_RUNS,
        f"Too few runs of {size.params:.3g} parameters reach this loss (runs: {runs}, learning rates: {rates}, batch "
        f"sizes: {batches}): an optimum needs at least {TERMS} runs on 3 learning rates and 3 batch sizes.",
        {"runs": float(runs), "learning_rates": rates, "batch_sizes": batches},
    )


def _no_diagonal(size: Size, runs: int) -> Refusal:
    return Refusal(
        RefusalReason.TOO_FEW_RUNS,
        f"The {runs} runs of {size.params:.3g} parameters that reach this loss lie in too few rows and columns of "
        "the grid to tell how the best learning rate depends on the batch size. Train one that differs from the best "
        "one in both.",
        {"runs": float(runs), "params": size.params, "missing": "diagonal"},
    )


def edge_by_profile(size: Size, z: Array, reached: Flags) -> Refusal | None:
    """Without a parabola: is the best run on an edge of the grid?"""
    if reached.sum() < 3:
        return None
    best = np.flatnonzero(reached)[np.argmin(z[reached])]
    rates, batches = size.lines
    for values, lines, quantity in (
        (size.y, batches, "batch_size"),
        (size.x, rates, "learning_rate"),
    ):
        if len(lines) < 3:
            continue
        if values[best] in (lines[0], lines[-1]):
            larger = bool(values[best] == lines[-1])
            return edge_refusal(quantity, size, float(np.exp(values[best])), larger, None)
    return None


def edge_refusal(
    quantity: str, size: Size, edge: float, larger: bool, vertex: float | None
) -> Refusal:
    """The optimum is on or beyond the edge of the grid: say which way to extend it."""
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
        f"At {size.params:.3g} parameters the best {words} is at or beyond the "
        f"{'largest' if larger else 'smallest'} one tried, {edge:.4g}: "
        f"extend the grid to {direction} values.",
        figures,
    )


def judge_vertex(
    size: Size, log_tokens: Array, reached: Flags, vertices: Array, convex: Flags
) -> Refusal | None:
    """Refuse a vertex that is not safely a minimum inside the grid.

    `log_tokens` (runs,) where `reached`; `vertices` (draws, 2) and `convex` (draws,) are the
    bootstrap's, the estimate itself first.
    """
    if not convex[0] or convex.mean() < BELIEVED:
        return _not_convex(size, log_tokens, reached, float(convex.mean()))
    for axis, quantity in enumerate(("learning_rate", "batch_size")):
        lines = size.lines[axis]
        low = lines[0] + EDGE_MARGIN * (lines[1] - lines[0])
        high = lines[-1] - EDGE_MARGIN * (lines[-1] - lines[-2])
        found = vertices[convex, axis]
        for outside, larger in ((found > high, True), (found < low, False)):
            if outside[0] or outside.mean() > 1.0 - BELIEVED:
                edge = float(np.exp(lines[-1] if larger else lines[0]))
                return edge_refusal(quantity, size, edge, larger, float(np.exp(found[0])))
    return None


def _not_convex(size: Size, log_tokens: Array, reached: Flags, share: float) -> Refusal:
    """A surface that is flat or a saddle; the edge is to blame if the best run is on one."""
    edge = edge_by_profile(size, log_tokens, reached)
    if edge is not None:
        return edge
    return Refusal(
        RefusalReason.SURFACE_NOT_CONVEX,
        f"At {size.params:.3g} parameters the tokens to this loss have no minimum over learning rate "
        f"and batch size above the noise (convex in {share:.0%} of the bootstrap). "
        "Widen the grid or reduce the evaluation noise.",
        {"params": size.params, "convex_share": share},
    )
