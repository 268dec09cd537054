"""What runs leave open of the optimum at a target: one Gaussian model, before a run of it is trained.

The law engine reads losses z, as wasted ln D, about the optimum t(n, d) = (ln LR, ln B) of a size and token count:

    z = level + (x - t)' H (x - t) / 2 + noise

With x counted from where the optimum is expected, everything that moves it adds -(H x) times the move, and everything that
is wrong with the valley's shape its own column, so that z is linear in what is unknown:

    curvature        three terms of H                                   USUAL_CURVATURE_ERROR
    law              t = c + a n + b d, for LR and for B                published exponents
    curvatures       B n^2, C d^2                                       USUAL_SIZE_CURVATURE, USUAL_TOKEN_CURVATURE
    cubic            a valley that is steeper on one side               USUAL_ASYMMETRY
    size             u_s + w_s (d - end) + t_s (d - end)^2              scatter, EXPONENT_SCATTER, TOKEN_CURVATURE_SCATTER
    level            of every size and token count                      free

These are the effects of laws/surface/random_effects.py. There the residuals of a fit show them; here their covariance is
conditioned on runs, which needs no loss: it depends on where runs lie alone.

Points far from the optimum count for less (NEAR_OPTIMUM), as in the fit: no valley is a parabola there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from isoloss import usual
from isoloss.design.setting import (
    FIRST_SHARE,
    PlannedRun,
    Setting,
    Target,
    token_slope,
    usual_ends,
)
from isoloss.laws import Array, FitOptions

CELLS_PER_OCTAVE = 2
"""Token counts that are read of each run, per factor of 2: a fit cuts runs of twenty times their first evaluation at eight."""
OPEN = 1.0
"""Prior standard deviation of what runs alone tell: ln LR and ln B at the centre, and a cell's level in ln D."""
SHARED, LAW = 17, slice(3, 13)
"""What all sizes have in common, in the order of `effects`, and law and curvatures of it among them."""


@dataclass(frozen=True)
class Outlook:
    """What an answer is expected to be worth."""

    covariance: Array
    """(2, 2) second moments of the error of ln LR and ln B at the target."""
    wasted: float
    """ln D that this wastes on average: the share of the target's tokens, and so of its compute at its size."""
    nats: float
    """The same as loss."""

    def times(self, factor: float) -> Outlook:
        """If so many times as much was lost."""
        return Outlook(factor * self.covariance, factor * self.wasted, factor * self.nats)

    def factors(self) -> tuple[float, float]:
        """By what factor learning rate and batch size may be off on either side, at the level of intervals."""
        reach = NormalDist().inv_cdf(0.5 + FitOptions().interval / 2)
        rate, batch = np.exp(reach * np.sqrt(np.diag(self.covariance)))
        return float(rate), float(batch)


@dataclass(frozen=True)
class Knowledge:
    """What runs tell of what all sizes have in common, and of a target by that."""

    setting: Setting
    centre: tuple[float, float]
    """ln N and ln D."""
    ends: tuple[float, float]
    """Of the runs of a size: see usual_ends."""
    covariance: Array
    """(17, 17)"""
    own_runs: bool
    """Whether every token count has runs of its own, as in published tables, and a run one evaluation."""

    @staticmethod
    def of(
        setting: Setting,
        sizes: Sequence[tuple[float, float]],
        evidence: Sequence[Array],
        centre: tuple[float, float],
        *,
        own_runs: bool = False,
    ) -> Knowledge:
        """By the `evidence` of each size about this centre (ln N, ln D), which serves every design with that size. `sizes` are
        (parameters, tokens at the end of most runs) of each."""
        covariance = np.linalg.inv(_precision(setting) + np.sum(evidence, axis=0))
        return Knowledge(setting, centre, usual_ends(sizes), covariance, own_runs)

    def outlook(self, target: Target) -> Outlook:
        """Of an answer at the target."""
        log_params, log_tokens = math.log(target.params), math.log(target.tokens)
        n, d = log_params - self.centre[0], log_tokens - self.centre[1]
        asked = np.kron(np.array([[1.0, n, d, n**2, d**2]]), np.eye(2))
        covariance = asked @ self.covariance[LAW, LAW] @ asked.T + self.setting.scatter
        if not self.own_runs:
            # No run tells of how the target's own optimum moves beyond the usual end of runs.
            past = log_tokens - self.ends[0] - self.ends[1] * log_params
            bent = usual.TOKEN_CURVATURE_SCATTER * past**2
            covariance += np.diag((usual.EXPONENT_SCATTER * past) ** 2 + bent**2)
        wasted = self.setting.wasted(covariance)
        return Outlook(covariance, wasted, wasted * token_slope(target.tokens))


def _precision(setting: Setting) -> Array:
    """(17, 17) of the priors of what all sizes have in common."""
    xx, yy = np.diag(setting.curvature)
    mixed = math.sqrt(xx * yy)
    of_params, of_tokens = usual.BATCH_EXPONENT_ERRORS
    share = math.sqrt(usual.MEAN_CURVATURE_SHARE)
    deviations = np.array(
        [
            *[usual.USUAL_CURVATURE_ERROR] * 3,
            *(OPEN, OPEN),
            *(usual.RATE_SIZE_EXPONENT_ERROR, of_params),
            *(usual.RATE_EXPONENT_ERROR, of_tokens),
            *[share * usual.USUAL_SIZE_CURVATURE] * 2,
            *[share * usual.USUAL_TOKEN_CURVATURE] * 2,
            *(usual.USUAL_ASYMMETRY * np.array([xx, mixed, yy, mixed])),
        ]
    )
    return np.diag(deviations**-2.0)


def effects(
    x: Array,
    curvature: Array,
    n: Array | float,
    d: Array,
    past: Array,
    farthest: float = usual.FARTHEST_CUBIC,
) -> tuple[tuple[Array, ...], Array]:
    """What changes losses at x (rows, 2) from the optimum by a unit of each unknown: of those that all sizes share
    (curvature, law, curvatures of it, cubic), and of those of a size.

    `n` and `d` are ln N and ln D from the centre, `past` ln D from the end of the size's runs, each (rows,). Cubic terms grow
    up to `farthest`.
    """
    (u, v), shifts = x.T, -(x @ curvature)
    n, d, past = (np.broadcast_to(each, len(x))[:, None] for each in (n, d, past))
    fu, fv = np.clip((u, v), -farthest, farthest)
    shared = (
        np.stack([0.5 * u**2, u * v, 0.5 * v**2], axis=1),
        np.concatenate([shifts, shifts * n, shifts * d], axis=1),
        np.concatenate([shifts * n**2, shifts * d**2], axis=1),
        np.stack([fu**3 / 6, fu**2 * fv / 2, fv**3 / 6, fu * fv**2 / 2], axis=1),
    )
    return shared, np.concatenate([shifts, shifts * past, shifts * past**2], axis=1)


def evidence(
    setting: Setting,
    runs: Sequence[PlannedRun],
    tokens: float,
    centre: tuple[float, float],
    *,
    own_runs: bool = False,
) -> Array:
    """(17, 17) information that the runs of one size, most of which end at `tokens`, hold on what all sizes share.

    What only this size has (its own optimum, its levels) is integrated out. `own_runs` as in Knowledge.
    """
    every = [_read(setting, run, tokens, centre) for run in runs]
    cells = sorted({cell for run in every for cell in run.cells})
    scatter, many = setting.scatter, len(cells)
    if own_runs:
        of_cells = (1.0 - usual.SHARED_SCATTER) * scatter
        own = [usual.SHARED_SCATTER * scatter, *[of_cells] * many]
    else:
        moves = (usual.EXPONENT_SCATTER, np.full(2, usual.TOKEN_CURVATURE_SCATTER))
        own = [scatter, *(np.diag(deviations**2) for deviations in moves)]
    alone = 2 * len(own)
    information = np.zeros((SHARED + alone + many,) * 2)
    for k, prior in enumerate(own):
        at = slice(SHARED + 2 * k, SHARED + 2 * k + 2)
        information[at, at] = np.linalg.inv(prior)
    information[SHARED + alone :, SHARED + alone :] = OPEN**-2.0 * np.eye(many)
    for run in every:
        levels = np.equal.outer(run.cells, cells).astype(float)
        columns = run.own
        if own_runs:
            shifts = run.own[:, :2]
            each = (levels[:, :, None] * shifts[:, None]).reshape(len(levels), -1)
            columns = np.concatenate([shifts, each], axis=1)
        design = np.concatenate([run.shared, columns, levels], axis=1)
        information += design.T @ np.linalg.solve(run.noise, design)
    between = information[:SHARED, SHARED:]
    return np.asarray(
        information[:SHARED, :SHARED]
        - between @ np.linalg.solve(information[SHARED:, SHARED:], between.T),
        dtype=float,
    )


@dataclass(frozen=True)
class _Read:
    """A run's evaluations."""

    cells: list[int]
    """Numbers of their token counts."""
    shared: Array
    """(rows, 17) as `effects` has them."""
    own: Array
    """(rows, 6)"""
    noise: Array
    """(rows, rows)"""


def _read(setting: Setting, run: PlannedRun, tokens: float, centre: tuple[float, float]) -> _Read:
    """With the last evaluation at the end of the run."""
    end, log_params = math.log(run.tokens), math.log(run.params)
    first = math.log(run.first_tokens or FIRST_SHARE * run.tokens)
    step = math.log(2.0) / CELLS_PER_OCTAVE
    last = math.ceil(end / step - 1e-6) - 1
    cells = list(range(min(math.ceil(first / step - 1e-6) - 1, last), last + 1))
    log_tokens = np.array([min((cell + 1) * step, end) for cell in cells])
    rate, batch = setting.optimum.at(log_params, log_tokens)
    x = np.stack([math.log(run.learning_rate) - rate, math.log(run.batch_size) - batch], axis=1)
    shared, own = effects(
        x,
        setting.curvature,
        log_params - centre[0],
        log_tokens - centre[1],
        log_tokens - math.log(tokens),
    )
    return _Read(cells, np.concatenate(shared, axis=1), own, _noise(setting, x))


def _noise(setting: Setting, x: Array) -> Array:
    """(rows, rows) of points at these distances (rows, 2)."""
    excess = 0.5 * np.einsum("ij,jk,ik->i", x, setting.curvature, x)
    growth = np.sqrt(1.0 + (excess / usual.NEAR_OPTIMUM) ** 2)
    shared = setting.run_noise**2 * np.outer(growth, growth)
    return np.asarray(shared + np.diag((setting.evaluation_noise * growth) ** 2), dtype=float)
