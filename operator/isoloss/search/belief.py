"""What a search believes of the valley: where runs so far put the optimum, and what further ones would show of it.

The model is that of isoloss.design: with t(n, d) the optimum (ln LR, ln B) of a size and token count, losses are, as wasted ln D,

    z = level + (x - t)' H (x - t) / 2 + cubic terms + noise

linear in what is unknown about t, H and the cubic terms, each with a prior from usual.py. A design asks for a covariance alone;
here losses move the means, too, by Gauss-Newton steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isoloss import usual
from isoloss.design import effects
from isoloss.laws import Array, FitOptions, Screened, screen
from isoloss.search.model import Seen, Size

MISFIT = 2.0
"""Times the noise of seeds, by which losses scatter about the model."""
FARTHEST_WASTE = 1.5
"""ln D beyond which a point shows nothing."""
OF_SPAN = 0.35
"""Standard deviation of ln LR and ln B of the optimum about the middle of the grids, as a share of their span; a step at the least."""
RATE_SIZE_EXPONENT = -0.5
"""Between the published ones, which RATE_SIZE_EXPONENT_ERROR names."""
LEAST_CURVATURE = 0.3
"""Share of USUAL_CURVATURE that every direction of the valley has at the least."""
STEPS = 7
LONGEST = math.log(usual.USUAL_STEP)
"""ln units by which the law of the optimum may move in one of them."""

CURVATURE, LAW, CUBIC = slice(0, 3), slice(3, 13), slice(13, 17)
"""Unknowns as design.effects has them: H; of the optima's law the constant, exponents of N and of D, curvatures over N and D; the cubic
terms."""
OF_SIZES, PER_SIZE = 17, 6
"""After them those of each size: its own optimum, exponent of D and curvature over D."""
_EXPONENTS = np.array(
    [[RATE_SIZE_EXPONENT, usual.USUAL_BATCH_EXPONENTS[0]], [0.0, usual.USUAL_BATCH_EXPONENTS[1]]]
)
"""(2, 2): of N and of D, of ln LR and ln B."""

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Rows:
    """Evaluations as linear in what is unknown."""

    design: Array
    """(rows, unknowns)"""
    known: Array
    """(rows,) wasted ln D of the valley as it is believed."""
    away: Array
    """(rows, 2) ln LR and ln B from the optimum."""


@dataclass(frozen=True)
class Belief:
    """Means of everything unknown, about sizes ordered by cost."""

    sizes: tuple[Size, ...]
    middle: Array
    """(2,) ln LR and ln B where the optimum of the middle size is expected before any loss."""
    theta: Array
    """(unknowns,)"""
    slope: float = usual.USUAL_TOKEN_SLOPE
    """-dL/dlnD at the end of the largest size's runs, nats."""

    @staticmethod
    def of(sizes: Sequence[Size], seen: Sequence[Seen], options: FitOptions) -> Belief:
        """After what was seen. Raises InvalidRunError if a run's numbers are impossible."""
        unknowns = OF_SIZES + PER_SIZE * len(sizes)
        before = Belief(tuple(sizes), _middle(sizes, seen), np.zeros(unknowns))
        runs = [s.run for s in seen if s.run is not None and len(s.run.tokens)]
        # Before they diverge, runs may well show a minimum among themselves: that of those that come next is lower.
        screened = screen(runs, options) if any(not run.diverged for run in runs) else None
        if screened is None or screened.collected.refusals or not screened.cells:
            return before
        names = [size.name for size in sizes]
        of_size = {s.run.params: names.index(s.point.size) for s in seen if s.run is not None}
        return _estimated(before, screened, of_size)

    # ------------------------------------------------------------------------------- the valley

    @property
    def log_params(self) -> Array:
        """(sizes,)"""
        return np.log([size.params for size in self.sizes])

    @property
    def log_tokens(self) -> Array:
        """(sizes,) at the end of runs."""
        return np.log([size.tokens for size in self.sizes])

    @property
    def hessian(self) -> Array:
        """(2, 2), convex whatever the runs show."""
        xx, xy, yy = self.theta[CURVATURE]
        values, vectors = np.linalg.eigh(
            usual.USUAL_CURVATURE * np.eye(2) + np.array([[xx, xy], [xy, yy]])
        )
        values = np.maximum(values, LEAST_CURVATURE * usual.USUAL_CURVATURE)
        return np.asarray((vectors * values) @ vectors.T)

    def optimum(self, size: Indices, log_tokens: Array) -> Array:
        """(rows, 2) ln LR and ln B that are expected to be best."""
        along = self._from_centre(size, log_tokens)
        moved = np.einsum("mkp,p->mk", self.moves(size, log_tokens), self.theta)
        return np.asarray(self.middle + along @ _EXPONENTS + moved, dtype=float)

    def moves(self, size: Indices, log_tokens: Array) -> Array:
        """(rows, 2, unknowns): derivatives of the optimum."""
        n, d = self._from_centre(size, log_tokens).T
        past, rows = log_tokens - self.log_tokens[size], np.arange(len(size))
        found = np.zeros((len(size), 2, len(self.theta)))
        for k in range(2):
            for at, column in enumerate((np.ones_like(n), n, d, n**2, d**2)):
                found[:, k, LAW.start + 2 * at + k] = column
            for at, column in enumerate((np.ones_like(n), past, past**2)):
                found[rows, k, OF_SIZES + PER_SIZE * size + 2 * at + k] = column
        return found

    def moves_at(self, log_params: float, log_tokens: float) -> Array:
        """(2, unknowns) at a size that is not of the sweep's."""
        n, d = np.array([log_params, log_tokens]) - self._centre
        found = np.zeros((2, len(self.theta)))
        found[:, LAW] = np.kron(np.array([[1.0, n, d, n**2, d**2]]), np.eye(2))
        return found

    def rows(self, x: Array, size: Indices, log_tokens: Array) -> Rows:
        """Of evaluations at x (rows, 2)."""
        away, hessian = x - self.optimum(size, log_tokens), self.hessian
        n, d = self._from_centre(size, log_tokens).T
        past = log_tokens - self.log_tokens[size]
        shared, own = effects(away, hessian, n, d, past, farthest=math.inf)
        design = np.zeros((len(x), len(self.theta)))
        design[:, :OF_SIZES] = np.concatenate(shared, axis=1)
        at = OF_SIZES + PER_SIZE * size[:, None] + np.arange(PER_SIZE)
        design[np.arange(len(x))[:, None], at] = own
        parabola = 0.5 * ((away @ hessian) * away).sum(axis=1)
        cubic = design[:, CUBIC] @ self.theta[CUBIC]
        known = np.maximum(parabola + cubic, LEAST_CURVATURE * parabola)
        return Rows(design, known, away)

    def precision(self) -> Array:
        """(unknowns, unknowns) of the priors."""
        curvature = usual.USUAL_CURVATURE
        steep = usual.STEEP_SCATTER * curvature
        scatter = math.hypot(usual.FLAT_SCATTER, steep) / curvature
        own = [scatter, scatter, *usual.EXPONENT_SCATTER, *[usual.TOKEN_CURVATURE_SCATTER] * 2]
        constants = np.maximum(math.log(usual.USUAL_STEP), OF_SPAN * _spans(self.sizes))
        rate = (constants[0], usual.RATE_SIZE_EXPONENT_ERROR, usual.RATE_EXPONENT_ERROR)
        batch = (constants[1], *usual.BATCH_EXPONENT_ERRORS)
        deviations = np.concatenate(
            [
                curvature * np.array([1.0, 0.7, 1.0]),
                np.array([rate, batch]).T.ravel(),
                [usual.USUAL_SIZE_CURVATURE] * 2,
                [usual.USUAL_TOKEN_CURVATURE] * 2,
                curvature * usual.USUAL_ASYMMETRY,
                *[own] * len(self.sizes),
            ]
        )
        return np.diag(deviations**-2.0)

    def _from_centre(self, size: Indices, log_tokens: Array) -> Array:
        """(rows, 2) ln N and ln D."""
        return np.stack([self.log_params[size], log_tokens], axis=1) - self._centre

    @property
    def _centre(self) -> Array:
        return np.array([self.log_params.mean(), self.log_tokens.mean()])


def _middle(sizes: Sequence[Size], seen: Sequence[Seen]) -> Array:
    """(2,) the middle of the grids: who gives a grid means that. If every run diverged, a step below the lowest learning rate."""
    lines = [(np.log(size.learning_rates), np.log(size.batch_sizes)) for size in sizes]
    middle = np.array([[values.mean() for values in both] for both in lines]).mean(axis=0)
    runs = [s for s in seen if s.run is not None]
    if runs and all(s.diverged for s in runs):
        lowest = min(s.point.learning_rate for s in runs)
        middle[0] = min(middle[0], math.log(lowest / usual.USUAL_STEP))
    return np.asarray(middle)


def _spans(sizes: Sequence[Size]) -> Array:
    """(2,) ln LR and ln B from end to end of a grid."""
    spans = [[np.ptp(np.log(v)) for v in (s.learning_rates, s.batch_sizes)] for s in sizes]
    return np.asarray(np.mean(spans, axis=0))


def independent(
    design: Array, run: Indices, log_tokens: Array, slope: Array
) -> tuple[Array, Array]:
    """(rows, k) and (rows,) variances: what each evaluation shows beyond the earlier ones of its run, whose noise they share."""
    noises = (usual.USUAL_NOISE, usual.EVALUATION_NOISE)
    shared, own = ((MISFIT * noise / slope) ** 2 for noise in noises)
    order = np.lexsort((log_tokens, run))
    found, variances = design.copy(), shared + own
    total, weight, former = np.zeros(design.shape[1]), 0.0, -1
    for at in order:
        if run[at] != former:
            total, weight, former = np.zeros(design.shape[1]), 0.0, int(run[at])
        left = 1.0 / (1.0 / shared[at] + weight)
        found[at] = design[at] - left * total
        variances[at] = own[at] + left
        total, weight = total + design[at] / own[at], weight + 1.0 / own[at]
    return found, variances


def window(excess: Array, width: float = usual.NEAR_OPTIMUM) -> Array:
    """Weights of points by the ln D that they waste. Half of the width of an estimate is that of a plan, which few points far away lead
    astray."""
    near = 1.0 / (1.0 + (np.maximum(excess, 0.0) / width) ** 2)
    return np.where(excess < FARTHEST_WASTE, near, 1e-6)


def _estimated(belief: Belief, screened: Screened, of_size: Mapping[float, int]) -> Belief:
    """The means that the losses of cells leave most likely; sizes by the parameters of their runs."""
    trajectories, cells = screened.collected.trajectories, screened.cells
    counts = [len(each.runs) for each in cells]
    cell = np.repeat(np.arange(len(cells)), counts)
    runs = np.concatenate([each.runs for each in cells])
    x = np.log([[trajectories[i].learning_rate, trajectories[i].batch_size] for i in runs])
    # Screening may round parameters to those of other runs.
    params, indices = np.log(list(of_size)), np.array(list(of_size.values()), dtype=np.intp)
    nearest = [int(np.argmin(np.abs(params - each.log_params))) for each in cells]
    size = indices[nearest][cell]
    log_tokens = np.array([each.log_tokens for each in cells])[cell]
    waste = np.concatenate([each.waste for each in cells])
    slopes = np.array([each.slope * np.exp(each.log_losses.min()) for each in cells])
    # A steeper one is of another unit, in which the noise of seeds would vanish.
    slopes = np.minimum(slopes, usual.USUAL_SLOPES[1])
    weights = window(
        waste - np.array([each.waste.min() for each in cells])[cell], 2.0 * usual.NEAR_OPTIMUM
    )
    levels = np.eye(len(cells))[cell]
    last = max(range(len(cells)), key=lambda at: (cells[at].log_params, cells[at].log_tokens))
    usual_slopes = 0.3 * usual.USUAL_TOKEN_SLOPE, 3.0 * usual.USUAL_TOKEN_SLOPE
    belief = replace(belief, slope=float(np.clip(slopes[last], *usual_slopes)))
    width = len(belief.theta)
    prior = np.zeros((width + len(cells),) * 2)
    prior[:width, :width] = belief.precision()
    prior[width:, width:] = 1e-4 * np.eye(len(cells))
    places = np.r_[LAW, OF_SIZES:width]
    for _ in range(STEPS):
        rows, hessian = belief.rows(x, size, log_tokens), belief.hessian
        u, v = rows.away.T
        wanted = waste - 0.5 * usual.USUAL_CURVATURE * (u**2 + v**2)
        wanted = wanted + rows.design[:, places] @ belief.theta[places]
        stacked = np.concatenate([rows.design, levels, wanted[:, None]], axis=1)
        shown, variances = independent(stacked, runs, log_tokens, slopes[cell])
        design, values = shown[:, :-1], shown[:, -1]
        weighted = design * (weights / variances)[:, None]
        solved = np.linalg.solve(prior + weighted.T @ design, weighted.T @ values)
        found = np.array(solved[:width], dtype=float)
        moved = replace(belief, theta=found)
        # The shifts are those of the former curvature: slopes over it.
        linear = (found - belief.theta)[places].reshape(-1, 2)
        steps = np.linalg.solve(moved.hessian, hessian @ linear.T).T.ravel()
        shorter = min(1.0, LONGEST / max(float(np.abs(steps[:6]).max()), 1e-9))
        found[places] = belief.theta[places] + shorter * steps
        belief = replace(belief, theta=found)
    return belief
