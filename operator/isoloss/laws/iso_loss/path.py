"""The path of compute-optimal sizes, and the optima along it.

The size of least compute jumps from one trained size to the next, and the optimal learning rate and
batch size jump with it: a saw that hides their trend. Two sizes reach a loss at equal compute where the
best size is between them; through those crossings the path is a power law of compute. The optima of all
sizes and levels, log-linear in N and D, are then read off along it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.bootstrap import DECIDE, DrawSource
from isoloss.laws.curves import LossCurve
from isoloss.laws.data.cells import best_curve, tokens_to
from isoloss.usual import USUAL_SCATTER

EXPONENT = 0.5
"""Exponent of N* in compute if a single crossing leaves it open: tokens and parameters grow in proportion."""
CROSSING_ERROR = 0.1
"""Error of ln N* at a crossing, and of that exponent."""
NARROWEST, WIDEST = 0.3, 2.0
"""ln of the ratio of two sizes whose crossing is used: closer is noise, farther is no parabola."""
FARTHEST_SIZE = 1.5
"""|ln N - ln N*| up to which the price is a parabola."""
HIGHEST_PRICE = 0.4
BEYOND = 0.25
"""ln L by which size curves are continued beyond their levels to find where they cross."""


@dataclass(frozen=True)
class Path:
    """ln N* = log_params + exponent (ln C* - log_flops), with errors, and the price of leaving it.

    A size off the path needs ln C = ln C* + price (ln N - ln N*)^2 for the same loss.
    """

    log_params: float
    log_flops: float
    exponent: float
    exponent_error: float
    offset_error: float
    price: float

    def draw(self, log_size: Array, log_flops: Array, source: DrawSource) -> tuple[Array, Array]:
        """(ln N*, ln C*) from the trained sizes ln N and what they spent, ln C: (draws, levels) all.

        Draw 0 is the estimate.
        """
        exponent = self.exponent + self.exponent_error * source.normal(1)
        offset = self.log_params + self.offset_error * source.normal(1)
        least = log_flops
        for _ in range(4):
            best = offset + exponent * (least - self.log_flops)
            off = np.clip(log_size - best, -FARTHEST_SIZE, FARTHEST_SIZE)
            least = log_flops - self.price * off**2
        return np.asarray(best, dtype=float), np.asarray(least, dtype=float)


def size_curve(log_tokens: Array, log_losses: Array) -> LossCurve | None:
    """A size's fewest tokens to each level, as a curve; None from fewer than three levels."""
    found = np.isfinite(log_tokens)
    if found.sum() < 3:
        return None
    return best_curve(log_tokens[found], log_losses[found])


def find_path(
    log_params: Sequence[float],
    log_flops_per_token: Sequence[float],
    curves: Sequence[LossCurve | None],
    log_losses: Array,
) -> Path | None:
    """The path through the crossings of pairs of sizes, or None if none cross."""
    grid = np.linspace(log_losses.max() + BEYOND, log_losses.min() - BEYOND, 400)
    crossings = []
    for i, j in combinations(range(len(curves)), 2):
        small, large = curves[i], curves[j]
        width = log_params[j] - log_params[i]
        if small is None or large is None or not NARROWEST <= width <= WIDEST:
            continue
        losses = grid[np.exp(grid) > 1.001 * max(small.irreducible, large.irreducible)]
        if len(losses) < 3:
            continue
        found = _crossing(
            log_flops_per_token[i] + tokens_to(small, losses),
            log_flops_per_token[j] + tokens_to(large, losses),
        )
        if found is not None:
            crossings.append((0.5 * (log_params[i] + log_params[j]), *found, width))
    return _through(np.array(crossings)) if crossings else None


def _crossing(small: Array, large: Array) -> tuple[float, float] | None:
    """ln C at which the smaller size stops being the cheaper one, and how fast it falls behind."""
    difference = small - large
    turns = np.flatnonzero((difference[:-1] <= 0) & (difference[1:] > 0))
    if len(turns) == 0:
        return None
    k = int(turns[0])
    share = difference[k] / (difference[k] - difference[k + 1])
    rate = np.gradient(difference, 0.5 * (small + large))
    return float(small[k] + share * (small[k + 1] - small[k])), float(max(rate[k], 0.0))


def _through(crossings: Array) -> Path:
    n, c, rate, width = crossings.T
    weights = np.minimum(width, 1.0)
    centre_n, centre_c = (
        float(np.average(n, weights=weights)),
        float(np.average(c, weights=weights)),
    )
    spread = float(np.average((c - centre_c) ** 2, weights=weights))
    # The usual exponent counts as much as crossings a factor e of compute apart.
    shared = float(np.average((c - centre_c) * (n - centre_n), weights=weights))
    exponent = float(np.clip((shared + EXPONENT) / (spread + 1.0), 0.2, 0.8))
    # Costs that part at a rate in ln C do so because the path moves by exponent times ln C.
    price = float(np.average(rate / (2.0 * exponent * width), weights=weights))
    price = min(price, HIGHEST_PRICE)
    mean_gap = float(np.average(width**2, weights=weights))
    return Path(
        log_params=centre_n,
        log_flops=centre_c - price * mean_gap / 4.0,
        exponent=exponent,
        exponent_error=CROSSING_ERROR / float(np.sqrt(1.0 + spread)),
        offset_error=CROSSING_ERROR,
        price=price,
    )


@dataclass(frozen=True)
class Vertices:
    """The optima of all sizes and levels that have one: (points,) and draws (draws, points)."""

    log_params: Array
    log_tokens: Array
    log_rate: Array
    log_batch: Array


def read_along(
    vertices: Vertices, log_params: Array, log_tokens: Array
) -> tuple[Array, Array] | None:
    """(ln LR, ln B) (draws, levels) at ln N, ln D (draws, levels), by a log-linear law per draw.

    None if the vertices do not determine all three coefficients.
    """
    n, d = vertices.log_params, vertices.log_tokens[0]
    if len(n) < 3:
        return None
    centre_n, centre_d = n.mean(), d.mean()
    design = np.stack([np.ones_like(n), n - centre_n, d - centre_d], axis=1)
    if np.linalg.matrix_rank(design, tol=1e-3) < 3:
        return None
    answers = []
    for values in (vertices.log_rate, vertices.log_batch):
        weights = 1.0 / np.sqrt(values[DECIDE].var(axis=0) + USUAL_SCATTER**2)
        solver = np.linalg.pinv(design * weights[:, None]) * weights
        c = values @ solver.T
        answers.append(
            c[:, :1] + c[:, 1:2] * (log_params - centre_n) + c[:, 2:] * (log_tokens - centre_d)
        )
    return answers[0], answers[1]
