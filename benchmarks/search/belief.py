"""What a search that follows one rule believes of the valley: where runs so far put it, and what further ones would tell.

The model is that of isoloss.design: with t(n, d) the optimum (ln LR, ln B) of a size and token count, losses are, as wasted ln D,

    z = level + (x - t)' H (x - t) / 2 + cubic terms + noise

linear in what is unknown about t, H and the cubic terms, each with a prior from usual.py. There only a covariance is asked for;
here losses move the means, too, by Gauss and Newton's steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws import FitOptions, Run, screen
from isoloss.laws.arrays import Array, Indices
from isoloss.laws.data.cells import Cell, make_cells
from isoloss.laws.data.trajectories import Trajectory
from isoloss.search import Size
from isoloss.usual import (
    BATCH_EXPONENT_ERRORS,
    EVALUATION_NOISE,
    EXPONENT_SCATTER,
    FLAT_SCATTER,
    RATE_EXPONENT_ERROR,
    RATE_SIZE_EXPONENT_ERROR,
    STEEP_SCATTER,
    TOKEN_CURVATURE_SCATTER,
    USUAL_ASYMMETRY,
    USUAL_BATCH_EXPONENTS,
    USUAL_CURVATURE,
    USUAL_NOISE,
    USUAL_SIZE_CURVATURE,
    USUAL_TOKEN_CURVATURE,
    USUAL_TOKEN_SLOPE,
)

SHARES = (0.1, 0.3, 0.6, 1.0)
"""Of a size's tokens, at which a run may stop and is read. The first, which costs a tenth, is worth most: without it the same answers cost half as
much again."""
MISFIT = 2.0
"""Times the noise of seeds, by which losses scatter about the model."""
WINDOW = 0.08
"""ln D wasted at which a planned point counts half: half of that of a fit, which few points far away lead astray."""
FIT_WINDOW = 0.15
"""The same in estimates (laws/surface/joint_fit.py)."""
FARTHEST_WASTE = 1.5
"""ln D beyond which a point says nothing."""
GRID_ERROR = 0.7
"""Standard deviation of ln LR and ln B of the optimum about the middle of the grids, at the least."""
OF_SPAN = 0.35
"""The same as a share of the grids' span, for wide ones."""
RATE_SIZE_EXPONENT = -0.5
"""Between the published ones, which RATE_SIZE_EXPONENT_ERROR names."""
LEAST_CURVATURE = 0.3
"""Share of USUAL_CURVATURE that every direction of the valley has at the least."""
STEPS = 7
LONGEST_STEP = 0.7
"""ln units by which the law of the optimum may move at once."""
LAW, OF_SIZES = slice(0, 10), 17
"""Unknowns: constant, exponents of N and of D, curvatures over N and D of both optima (10), H (3), cubic terms (4), and 6 a size."""
CURVATURE, CUBIC = slice(10, 13), slice(13, 17)
PER_SIZE = 6


@dataclass(frozen=True)
class Rows:
    """Evaluations as linear in what is unknown."""

    design: Array
    """(rows, unknowns)"""
    known: Array
    """(rows,) wasted ln D of the valley as it is believed."""


@dataclass(frozen=True)
class Belief:
    """Means of everything unknown, about sizes ordered by cost."""

    sizes: tuple[Size, ...]
    theta: Array
    """(unknowns,)"""
    slope: float = USUAL_TOKEN_SLOPE
    """-dL/dlnD at the end of the largest size's runs, nats."""

    @staticmethod
    def of(sizes: Sequence[Size], runs: Sequence[Run], options: FitOptions) -> Belief:
        """After these runs."""
        before = Belief(tuple(sizes), np.zeros(OF_SIZES + PER_SIZE * len(sizes)))
        collected = screen(runs, options).collected if runs else None
        if collected is None or collected.refusals:
            return before
        cells = make_cells(collected.trajectories)
        return _estimate(before, collected.trajectories, cells) if cells else before

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
        """(2, 2), convex whatever the runs say."""
        xx, xy, yy = self.theta[CURVATURE]
        values, vectors = np.linalg.eigh(
            USUAL_CURVATURE * np.eye(2) + np.array([[xx, xy], [xy, yy]])
        )
        return np.asarray(
            (vectors * np.maximum(values, LEAST_CURVATURE * USUAL_CURVATURE)) @ vectors.T
        )

    def optimum(self, size: Indices, log_tokens: Array) -> Array:
        """(rows, 2) ln LR and ln B that are expected to be best."""
        along = np.stack([self.log_params[size], log_tokens], axis=1) - self._centre
        prior = np.array([_middle(self.sizes)[0], *_EXPONENTS]).T
        line = np.concatenate([np.ones((len(along), 1)), along], axis=1) @ prior.T
        moved = np.einsum("mkp,p->mk", self.moves(size, log_tokens), self.theta)
        return np.asarray(line + moved, dtype=float)

    def moves(self, size: Indices, log_tokens: Array) -> Array:
        """(rows, 2, unknowns): derivatives of the optimum."""
        n, d = (np.stack([self.log_params[size], log_tokens], axis=1) - self._centre).T
        past, rows = log_tokens - self.log_tokens[size], np.arange(len(size))
        found = np.zeros((len(size), 2, len(self.theta)))
        for k in range(2):
            for at, column in enumerate((np.ones_like(n), n, d, n**2, d**2)):
                found[:, k, 2 * at + k] = column
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
        away = x - self.optimum(size, log_tokens)
        u, v = away.T
        steep = away @ self.hessian
        design = -np.einsum("mk,mkp->mp", steep, self.moves(size, log_tokens))
        design[:, CURVATURE] = np.stack([u**2 / 2, u * v, v**2 / 2], axis=1)
        cubic = np.stack([u**3 / 6, u**2 * v / 2, v**3 / 6, u * v**2 / 2], axis=1)
        design[:, CUBIC] = cubic
        parabola = 0.5 * (away * steep).sum(axis=1)
        known = np.maximum(parabola + cubic @ self.theta[CUBIC], 0.3 * parabola)
        return Rows(design, known)

    def precision(self) -> Array:
        """(unknowns, unknowns) of the priors."""
        curvature = USUAL_CURVATURE
        scatter = np.sqrt(FLAT_SCATTER**2 + (STEEP_SCATTER * curvature) ** 2) / curvature
        own = np.concatenate([[scatter] * 2, EXPONENT_SCATTER, [TOKEN_CURVATURE_SCATTER] * 2])
        constants = _middle(self.sizes)[1]
        rate = (constants[0], RATE_SIZE_EXPONENT_ERROR, RATE_EXPONENT_ERROR)
        batch = (constants[1], *BATCH_EXPONENT_ERRORS)
        deviations = np.concatenate(
            [
                np.array([rate, batch]).T.ravel(),
                [USUAL_SIZE_CURVATURE] * 2,
                [USUAL_TOKEN_CURVATURE] * 2,
                curvature * np.array([1.0, 0.7, 1.0]),
                curvature * USUAL_ASYMMETRY,
                *[own] * len(self.sizes),
            ]
        )
        return np.diag(deviations**-2.0)

    @property
    def _centre(self) -> Array:
        return np.array([self.log_params.mean(), self.log_tokens.mean()])


_EXPONENTS = np.array(
    [
        [RATE_SIZE_EXPONENT, USUAL_BATCH_EXPONENTS[0]],
        [0.0, USUAL_BATCH_EXPONENTS[1]],
    ]
)
"""(2, 2): of N and of D, of ln LR and ln B."""


def _middle(sizes: Sequence[Size]) -> tuple[Array, Array]:
    """ln LR and ln B in the middle of the grids, and how far the optimum may be: who gives a grid means its middle."""
    lines = [(np.log(size.learning_rates), np.log(size.batch_sizes)) for size in sizes]
    middle = np.array([[values.mean() for values in both] for both in lines]).mean(axis=0)
    span = np.array([[np.ptp(values) for values in both] for both in lines]).mean(axis=0)
    return middle, np.maximum(GRID_ERROR, OF_SPAN * span)


def independent(
    design: Array, run: Indices, log_tokens: Array, slope: Array
) -> tuple[Array, Array]:
    """(rows, k) and (rows,) variances: what each evaluation tells beyond the earlier ones of its run, whose noise they share."""
    shared, own = ((MISFIT * noise / slope) ** 2 for noise in (USUAL_NOISE, EVALUATION_NOISE))
    order = np.lexsort((log_tokens, run))
    found, variances = design.copy(), shared + own
    told, weight, former = np.zeros(design.shape[1]), 0.0, -1
    for at in order:
        if run[at] != former:
            told, weight, former = np.zeros(design.shape[1]), 0.0, int(run[at])
        left = 1.0 / (1.0 / shared[at] + weight)
        found[at] = design[at] - left * told
        variances[at] = own[at] + left
        told, weight = told + design[at] / own[at], weight + 1.0 / own[at]
    return found, variances


def window(excess: Array, width: float) -> Array:
    """Weights of points by the ln D that they waste."""
    near = 1.0 / (1.0 + (np.maximum(excess, 0.0) / width) ** 2)
    return np.where(excess < FARTHEST_WASTE, near, 1e-6)


def _estimate(belief: Belief, trajectories: Sequence[Trajectory], cells: Sequence[Cell]) -> Belief:
    """The means that the cells' losses leave most likely."""
    of_size = {round(float(n), 6): at for at, n in enumerate(belief.log_params)}
    count = [len(cell.runs) for cell in cells]
    cell = np.repeat(np.arange(len(cells)), count)
    runs = np.concatenate([each.runs for each in cells])
    x = np.log([[trajectories[i].learning_rate, trajectories[i].batch_size] for i in runs])
    size = np.array([of_size[round(each.log_params, 6)] for each in cells])[cell]
    log_tokens = np.array([each.log_tokens for each in cells])[cell]
    waste = np.concatenate([each.waste for each in cells])
    slopes = np.array([each.slope * np.exp(each.log_losses.min()) for each in cells])
    weights = window(waste - np.array([each.waste.min() for each in cells])[cell], FIT_WINDOW)
    levels = np.eye(len(cells))[cell]
    last = max(range(len(cells)), key=lambda at: (cells[at].log_params, cells[at].log_tokens))
    slope = float(np.clip(slopes[last], 0.3 * USUAL_TOKEN_SLOPE, 3.0 * USUAL_TOKEN_SLOPE))
    belief, width = replace(belief, slope=slope), len(belief.theta)
    prior = np.zeros((width + len(cells),) * 2)
    prior[:width, :width] = belief.precision()
    prior[width:, width:] = 1e-4 * np.eye(len(cells))
    kept = np.r_[LAW, OF_SIZES:width]
    for _ in range(STEPS):
        rows, hessian = belief.rows(x, size, log_tokens), belief.hessian
        u, v = (x - belief.optimum(size, log_tokens)).T
        wanted = waste - 0.5 * USUAL_CURVATURE * (u**2 + v**2)
        wanted = wanted + rows.design[:, kept] @ belief.theta[kept]
        stacked = np.concatenate([rows.design, levels, wanted[:, None]], axis=1)
        told, variances = independent(stacked, runs, log_tokens, slopes[cell])
        design, values = told[:, :-1], told[:, -1]
        weighted = design * (weights / variances)[:, None]
        solved = np.linalg.solve(prior + weighted.T @ design, weighted.T @ values)
        found = np.array(solved[:width], dtype=float)
        moved = replace(belief, theta=found)
        # The shifts are those of the former curvature: slopes over it.
        linear = (found - belief.theta)[kept].reshape(-1, 2)
        steps = np.linalg.solve(moved.hessian, hessian @ linear.T).T.ravel()
        shorter = min(1.0, LONGEST_STEP / max(float(np.abs(steps[:6]).max()), 1e-9))
        found[kept] = belief.theta[kept] + shorter * steps
        belief = replace(belief, theta=found)
    return belief
