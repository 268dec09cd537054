"""How far a target's own optimum deviates from a route's law, as the sweep shows it."""

from __future__ import annotations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.model import Route
from isoloss.laws.results import Laws
from isoloss.laws.surface.form_error import scatter_freedom
from isoloss.usual import ISO_LOSS_FREEDOM, ISO_LOSS_SCATTER


def form_error(laws: Laws, route: Route) -> Array:
    """(2,) standard deviations of ln LR and ln B about the law.

    The joint surface's come from all its cells. The iso-loss laws are tested on one held-out size: a single
    degree of freedom in addition to what is usual.
    """
    if route == "surface" and laws.surface.target_covariance is not None:
        return np.asarray(np.sqrt(np.diag(laws.surface.target_covariance)), dtype=float)
    score = laws.selection.score_of(route)
    if score is None:
        return np.full(2, ISO_LOSS_SCATTER)
    held_out = np.array(
        [score.unexplained_learning_rate_error, score.unexplained_batch_size_error]
    )
    pooled = ISO_LOSS_FREEDOM * ISO_LOSS_SCATTER**2 + held_out**2
    return np.asarray(np.sqrt(pooled / (ISO_LOSS_FREEDOM + 1.0)), dtype=float)


def form_freedom(laws: Laws, route: Route) -> float:
    """Degrees of freedom behind it."""
    if route == "surface":
        return scatter_freedom(len(laws.data.sizes))
    return ISO_LOSS_FREEDOM + 1.0
