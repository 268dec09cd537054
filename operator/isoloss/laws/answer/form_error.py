"""How far a target's own optimum deviates from a route's law, as the sweep shows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.curves import HyperparameterCurve
from isoloss.laws.estimates import Target
from isoloss.laws.fitted_laws import Laws
from isoloss.laws.model import Route
from isoloss.laws.results import HyperparameterLaw, Optimum, SurfaceLaw
from isoloss.usual import ISO_LOSS_FREEDOM, ISO_LOSS_SCATTER, USUAL_COMPUTE_BEND

LEVELS = 24
"""Places on a frontier, evenly spaced, that stand for its own."""
MOST = 50.0
"""Largest difference of logarithms: anything beyond is refused."""


def form_error(laws: Laws, route: Route, target: Target) -> Array:
    """(2,) standard deviations of the target's ln LR and ln B about the law.

    The joint surface's come from all its cells, and grow with the distance from its sizes. The iso-loss laws are
    tested on one held-out size: a single degree of freedom in addition to what is usual. Theirs grow with the distance
    from the compute of the frontier, and with that of a target's size from the frontier's.
    """
    if route == "surface" and laws.surface.target_covariance is not None:
        return np.asarray(np.sqrt(np.diag(surface_form(laws.surface, target))), dtype=float)
    errors = (
        _iso_loss_scatter(laws, route),
        _far_off(laws, target),
        _off_the_frontier(laws.surface, target),
    )
    return np.asarray(np.sqrt(sum(error**2 for error in errors)), dtype=float)


def _iso_loss_scatter(laws: Laws, route: Route) -> Array:
    """(2,) of optima near the frontier's compute."""
    score = next((each for each in laws.held_out if each.route == route), None)
    if score is None:
        return np.full(2, ISO_LOSS_SCATTER)
    held_out = np.array(
        [score.unexplained_learning_rate_error, score.unexplained_batch_size_error]
    )
    pooled = ISO_LOSS_FREEDOM * ISO_LOSS_SCATTER**2 + held_out**2
    return np.asarray(np.sqrt(pooled / (ISO_LOSS_FREEDOM + 1.0)), dtype=float)


def _far_off(laws: Laws, target: Target) -> Array:
    """(2,) how far ln LR and ln B may be off because the iso-loss laws' form is one of several.

    A law of the loss or of compute is a line over ln C as far as the frontier can tell. If it bends, what its line leaves
    grows with the square of the distance, as in surface/bend.py, less so where a long frontier shows no bend.
    """
    shown = [
        optimum for optimum in laws.frontier if None not in (optimum.flops, optimum.learning_rate)
    ]
    seen = np.log([float(optimum.flops or 1.0) for optimum in shown])
    if len(seen) < 2:
        seen = _evenly(laws)
    if len(seen) == 0:
        return np.zeros(2)
    at, centre = float(np.ravel(target.log_flops)[0]), float(seen.mean())
    n = seen - centre
    level, slope = float(np.mean(n**2)), 0.0
    if np.ptp(n) > 0.0:
        slope, level = (float(value) for value in np.polyfit(n, n**2, 1))
    left = n**2 - level - slope * n
    reach = abs((at - centre) ** 2 - level - slope * (at - centre))
    bends = [
        _possible_bend(left, _deviations(law, shown), len(laws.data.sizes))
        for law in (laws.learning_rate, laws.batch_size)
    ]
    between = _between_forms(laws.batch_size.curve, at, float(seen.min()), float(seen.max()))
    return np.hypot(np.array(bends) * reach, [0.0, between])


def _off_the_frontier(surface: SurfaceLaw, target: Target) -> Array:
    """(2,) how far ln LR and ln B of the target's size are from those of the size that needs the least compute.

    The iso-loss laws answer for the latter alone; the joint surface, where it stands, knows how much that matters.
    """
    log_flops = float(np.ravel(target.log_flops)[0])
    frontier = surface.on_the_frontier(np.asarray(log_flops))
    if surface.planes is None or frontier is None:
        return np.zeros(2)
    place = target.place(surface)
    assert place is not None
    asked, least = (
        [float(np.ravel(value)[0]) for value in surface.planes.at(*where)]
        for where in (place, frontier)
    )
    return np.abs(np.subtract(asked, least))


def _evenly(laws: Laws) -> Array:
    """ln C of levels of a frontier whose points are not known; empty without any."""
    most = laws.data.largest_flops
    if most is None:
        return np.zeros(0)
    return np.linspace(np.log(laws.data.smallest_flops or most), np.log(most), LEVELS)


def _deviations(law: HyperparameterLaw, shown: Sequence[Optimum]) -> Array:
    """(points,) ln of the frontier's optima over the law's; empty without both."""
    curve = law.curve
    found = [(o.loss, o.flops, getattr(o, law.quantity)) for o in shown]
    if curve is None or not found or any(value is None for _, _, value in found):
        return np.zeros(0)
    losses, flops, values = np.array(found, dtype=float).T
    return np.asarray(np.log(values) - curve.log_value(losses, np.log(flops)), dtype=float)


def _possible_bend(left: Array, deviations: Array, sizes: int) -> float:
    """Root mean square of a coefficient of (ln C)^2, which moves optima by `left` times it, given how these deviate.

    The levels of one size deviate as one.
    """
    prior = USUAL_COMPUTE_BEND**-2
    if len(deviations) != len(left):
        return float(prior**-0.5)
    seen = sizes * float(np.mean(left**2)) / ISO_LOSS_SCATTER**2
    mean = sizes * float(np.mean(left * deviations)) / ISO_LOSS_SCATTER**2 / (prior + seen)
    return float(np.sqrt(mean**2 + 1.0 / (prior + seen)))


def _between_forms(curve: HyperparameterCurve | None, at: float, low: float, high: float) -> float:
    """|difference| at ln C = `at` between ln B linear in ln C and the law, if that is B linear in ln C instead.

    Between `low` and `high`, the frontier's ln C, they are one law as far as it can tell.
    """
    if curve is None or curve.form != "LinearInLogCompute":
        return 0.0
    seen = np.linspace(low, high, LEVELS)
    values = curve.log_value(1.0, seen)
    # Below no sequence at all the law is none.
    seen, values = seen[values > 0.0], values[values > 0.0]
    if len(seen) < 2 or np.ptp(seen) <= 0.0:
        return 0.0
    line = np.polyfit(seen, values, 1)
    return min(abs(float(curve.log_value(1.0, at)) - float(np.polyval(line, at))), MOST)


def bend_shown(surface: SurfaceLaw, target: Target) -> Array:
    """(2,) the part of it that every size's own runs show, standard deviations: a bend over tokens. 0 of a law without one."""
    place = target.place(surface)
    if surface.token_bend is None or place is None:
        return np.zeros(2)
    log_params, log_tokens = (float(np.ravel(value)[0]) for value in place)
    return surface.token_bend.error(log_params, log_tokens)


def surface_form(surface: SurfaceLaw, target: Target) -> Array:
    """(2, 2) covariance of the target's ln LR and ln B about the surface's law, which must stand."""
    shown = np.diag(bend_shown(surface, target) ** 2)
    return np.asarray(unseen_form(surface, target) + shown, dtype=float)


def unseen_form(surface: SurfaceLaw, target: Target) -> Array:
    """(2, 2) the part of it that is taken as usual as far as few sizes do not show it."""
    place = target.place(surface)
    # It answers there.
    assert surface.target_covariance is not None
    assert surface.bend is not None
    assert place is not None
    log_params = float(np.ravel(place[0])[0])
    found = surface.target_covariance + np.diag(surface.bend.error(log_params) ** 2)
    if target.log_params is None:
        moved = surface.frontier_error(float(np.ravel(target.log_flops)[0]))
        found = found + np.outer(moved, moved)
    return np.asarray(found, dtype=float)
