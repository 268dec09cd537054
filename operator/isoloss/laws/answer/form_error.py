"""How far a target's own optimum deviates from a route's law, as the sweep shows it."""

from __future__ import annotations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.estimates import Target
from isoloss.laws.model import Route
from isoloss.laws.results import Laws, SurfaceLaw
from isoloss.laws.surface.form_error import scatter_freedom
from isoloss.usual import ISO_LOSS_FREEDOM, ISO_LOSS_SCATTER


def form_error(laws: Laws, route: Route, target: Target) -> Array:
    """(2,) standard deviations of the target's ln LR and ln B about the law.

    The joint surface's come from all its cells, and grow with the distance from its sizes. The iso-loss laws are
    tested on one held-out size: a single degree of freedom in addition to what is usual.
    """
    if route == "surface" and laws.surface.target_covariance is not None:
        return np.asarray(np.sqrt(np.diag(surface_form(laws.surface, target))), dtype=float)
    score = laws.selection.score_of(route)
    if score is None:
        return np.full(2, ISO_LOSS_SCATTER)
    held_out = np.array(
        [score.unexplained_learning_rate_error, score.unexplained_batch_size_error]
    )
    pooled = ISO_LOSS_FREEDOM * ISO_LOSS_SCATTER**2 + held_out**2
    return np.asarray(np.sqrt(pooled / (ISO_LOSS_FREEDOM + 1.0)), dtype=float)


def surface_form(surface: SurfaceLaw, target: Target) -> Array:
    """(2, 2) covariance of the target's ln LR and ln B about the surface's law, which must stand."""
    place = target.place(surface)
    # It answers there.
    assert surface.target_covariance is not None
    assert surface.bend is not None
    assert surface.token_bend is not None
    assert place is not None
    log_params, log_tokens = (float(np.ravel(value)[0]) for value in place)
    bent = surface.bend.error(log_params) ** 2
    bent = bent + surface.token_bend.error(log_params, log_tokens) ** 2
    return np.asarray(surface.target_covariance + np.diag(bent), dtype=float)


def form_freedom(laws: Laws, route: Route) -> float:
    """Degrees of freedom behind it."""
    if route == "surface":
        return scatter_freedom(len(laws.data.sizes))
    return ISO_LOSS_FREEDOM + 1.0
