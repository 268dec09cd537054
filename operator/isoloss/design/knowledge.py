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
conditioned on runs, which needs no loss: it depends on where runs lie alone. A run is a handful of rows, and changes the
covariance by as many ranks.

Points far from the optimum count for less (NEAR_OPTIMUM), as in the fit: no valley is a parabola there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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

CURVATURE, LAW, CURVATURES, CUBIC = SHARED = ("curvature", "law", "curvatures", "cubic")
Block = tuple[str, float, int]
"""What unknowns belong to: a kind, ln N of a size, and the number of a token count; 0 where there is none."""


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
class _Rows:
    """A run's evaluations."""

    columns: dict[Block, Array]
    """(rows, unknowns of the block)"""
    noise: Array
    """(rows, rows)"""


@dataclass(frozen=True)
class Knowledge:
    """Everything unknown, as far as runs tell it. Immutable: a further run gives another."""

    setting: Setting
    centre: tuple[float, float]
    """ln N and ln D."""
    ends: tuple[float, float]
    """Of the runs of a size: see usual_ends."""
    own_runs: bool
    """Whether every token count has runs of its own, as in published tables, and a run one evaluation."""
    blocks: tuple[Block, ...]
    covariance: Array
    """Of all unknowns, in the order of the blocks."""

    @staticmethod
    def of(
        setting: Setting,
        sizes: Sequence[tuple[float, float]],
        runs: Iterable[PlannedRun] = (),
        *,
        own_runs: bool = False,
    ) -> Knowledge:
        """What `runs` tell; `sizes` are (parameters, tokens at the end of most runs) of each size.

        Raises ValueError for no size.
        """
        if not sizes:
            raise ValueError("sizes: at least one is needed")
        log_params, log_tokens = np.log(np.array(sizes, dtype=float)).T
        # Half of what is read of a run is before a fifth of its tokens.
        middle = 0.0 if own_runs else 0.5 * math.log(FIRST_SHARE)
        centre = float(log_params.mean()), float(log_tokens.mean()) + middle
        known = Knowledge._before(setting, centre, sizes, own_runs)
        for run in runs:
            known = known.with_run(run)
        return known

    @staticmethod
    def of_evidence(
        setting: Setting,
        sizes: Sequence[tuple[float, float]],
        evidence: Sequence[Array],
        centre: tuple[float, float],
    ) -> Knowledge:
        """The same from the `evidence` of each size, about this centre (ln N, ln D): made once for a size, it serves every design
        with it. What such knowledge tells of a target is whole; it takes no further runs of these sizes."""
        known = Knowledge._before(setting, centre, sizes, own_runs=False)
        information = np.linalg.inv(known.covariance) + np.sum(evidence, axis=0)
        return replace(known, covariance=np.linalg.inv(information))

    @staticmethod
    def _before(
        setting: Setting,
        centre: tuple[float, float],
        sizes: Sequence[tuple[float, float]],
        own_runs: bool,
    ) -> Knowledge:
        """Before any run."""
        blocks: tuple[Block, ...] = tuple((kind, 0.0, 0) for kind in SHARED)
        known = Knowledge(setting, centre, usual_ends(sizes), own_runs, blocks, np.zeros((0, 0)))
        return replace(known, covariance=_diagonal([known._prior(block) for block in blocks]))

    def with_run(self, run: PlannedRun) -> Knowledge:
        """After a further run."""
        rows = self._rows(run)
        known = self._covering(rows)
        design = known._stacked(rows)
        between = known.covariance @ design.T
        gain = np.linalg.solve(design @ between + rows.noise, between.T)
        covariance = known.covariance - between @ gain
        return replace(known, covariance=0.5 * (covariance + covariance.T))

    def outlook(self, target: Target) -> Outlook:
        """Of an answer at the target."""
        covariance = self._error(target, self.covariance[self._law, self._law])
        wasted = self.setting.wasted(covariance)
        return Outlook(covariance, wasted, wasted * token_slope(target.tokens))

    # ------------------------------------------------------------------------------- the target

    @property
    def _law(self) -> slice:
        """Where law and curvatures of it are among the unknowns: one block after the other."""
        first = self._width(self.blocks[0])
        return slice(first, first + sum(self._width(block) for block in self.blocks[1:3]))

    def _error(self, target: Target, covariance: Array) -> Array:
        """(2, 2) second moments of the error of an answer, with this covariance of law and curvatures."""
        asked = self._asked(target)
        known = asked @ covariance @ asked.T
        return np.asarray(known + self._own(target), dtype=float)

    def _asked(self, target: Target) -> Array:
        """(2, law and curvatures of it): ln LR and ln B at the target are this times them."""
        n, d = self._from_centre(target.params, target.tokens)
        return np.kron(np.array([[1.0, n, d, n**2, d**2]]), np.eye(2))

    def _own(self, target: Target) -> Array:
        """(2, 2) of the target's size, of which no run tells."""
        scatter = self.setting.scatter
        if self.own_runs:
            return scatter
        past = self._past_end(math.log(target.params), math.log(target.tokens))
        own = usual.TOKEN_CURVATURE_SCATTER * past**2
        return np.asarray(
            scatter + np.diag((usual.EXPONENT_SCATTER * past) ** 2 + own**2), dtype=float
        )

    def _from_centre(self, params: float, tokens: float) -> tuple[float, float]:
        return math.log(params) - self.centre[0], math.log(tokens) - self.centre[1]

    def _past_end(self, log_params: float, log_tokens: float) -> float:
        return log_tokens - self.ends[0] - self.ends[1] * log_params

    # --------------------------------------------------------------------------------- the rows

    def _covering(self, rows: _Rows) -> Knowledge:
        """With the unknowns that these rows are the first to have."""
        new = tuple(block for block in rows.columns if block not in self.blocks)
        if not new:
            return self
        covariance = _diagonal([self.covariance, *(self._prior(block) for block in new)])
        return replace(self, blocks=(*self.blocks, *new), covariance=covariance)

    def _stacked(self, rows: _Rows) -> Array:
        """(rows, unknowns)"""
        count = len(rows.noise)
        parts = [
            rows.columns[block] if block in rows.columns else np.zeros((count, self._width(block)))
            for block in self.blocks
        ]
        return np.concatenate(parts, axis=1)

    def _rows(self, run: PlannedRun) -> _Rows:
        setting, log_params = self.setting, math.log(run.params)
        cells, log_tokens = _read_at(run)
        rate, batch = setting.optimum.at(log_params, log_tokens)
        x = np.stack(
            [math.log(run.learning_rate) - rate, math.log(run.batch_size) - batch], axis=1
        )
        n = log_params - self.centre[0]
        past = log_tokens - self.ends[0] - self.ends[1] * log_params
        shared, own = effects(x, setting.curvature, n, log_tokens - self.centre[1], past)
        size = round(log_params, 6)
        columns: dict[Block, Array] = dict(zip(self.blocks[: len(SHARED)], shared, strict=True))
        if self.own_runs:
            columns["size", size, 0] = shifts = own[:, :2]
            for at, cell in enumerate(cells):
                columns["cell", size, cell] = shifts * (np.arange(len(cells)) == at)[:, None]
        else:
            columns["size", size, 0] = own
        for at, cell in enumerate(cells):
            columns["level", size, cell] = (np.arange(len(cells)) == at)[:, None].astype(float)
        return _Rows(columns, self._noise(x))

    def _noise(self, x: Array) -> Array:
        """(rows, rows) of points at these distances (rows, 2)."""
        setting = self.setting
        excess = 0.5 * np.einsum("ij,jk,ik->i", x, setting.curvature, x)
        excess = excess + 0.5 * setting.misplaced**2 * np.trace(setting.curvature)
        growth = np.sqrt(1.0 + (excess / usual.NEAR_OPTIMUM) ** 2)
        shared = setting.run_noise**2 * np.outer(growth, growth)
        return np.asarray(shared + np.diag((setting.evaluation_noise * growth) ** 2), dtype=float)

    # ------------------------------------------------------------------------------- the priors

    def _width(self, block: Block) -> int:
        if block[0] == "size":
            return 2 if self.own_runs else 6
        return _WIDTHS[block[0]]

    def _prior(self, block: Block) -> Array:
        """Covariance of a block's unknowns."""
        kind = block[0]
        if kind in ("size", "cell"):
            scatter = self.setting.scatter
            if self.own_runs:
                return scatter * (
                    1.0 - usual.SHARED_SCATTER if kind == "cell" else usual.SHARED_SCATTER
                )
            own = np.full(2, usual.TOKEN_CURVATURE_SCATTER)
            return _diagonal([scatter, np.diag(usual.EXPONENT_SCATTER**2), np.diag(own**2)])
        if kind == CUBIC:
            xx, yy = np.diag(self.setting.curvature)
            mixed = math.sqrt(xx * yy)
            return np.diag((usual.USUAL_ASYMMETRY * np.array([xx, mixed, yy, mixed])) ** 2)
        of_params, of_tokens = usual.BATCH_EXPONENT_ERRORS
        deviations = {
            CURVATURE: [usual.USUAL_CURVATURE_ERROR] * 3,
            LAW: [
                *(OPEN, OPEN),
                *(usual.RATE_SIZE_EXPONENT_ERROR, of_params),
                *(usual.RATE_EXPONENT_ERROR, of_tokens),
            ],
            CURVATURES: [
                *[math.sqrt(usual.MEAN_CURVATURE_SHARE) * usual.USUAL_SIZE_CURVATURE] * 2,
                *[math.sqrt(usual.MEAN_CURVATURE_SHARE) * usual.USUAL_TOKEN_CURVATURE] * 2,
            ],
            "level": [OPEN],
        }
        return np.diag(np.array(deviations[kind], dtype=float) ** 2)


def effects(
    x: Array,
    curvature: Array,
    n: Array | float,
    d: Array,
    past: Array,
    farthest: float = usual.FARTHEST_CUBIC,
) -> tuple[tuple[Array, ...], Array]:
    """What changes losses at x (rows, 2) from the optimum by a unit of each unknown: of those of SHARED, and of those of a size.

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
    setting: Setting, runs: Sequence[PlannedRun], tokens: float, centre: tuple[float, float]
) -> Array:
    """(17, 17) information that the runs of one size, most of which end at `tokens`, hold on what all sizes share.

    What only this size has (its own optimum, its levels) is integrated out.
    """
    known = Knowledge._before(setting, centre, [(runs[0].params, tokens)], own_runs=False)
    shared = len(known.covariance)
    every = [known._rows(run) for run in runs]
    for rows in every:
        known = known._covering(rows)
    information = np.linalg.inv(known.covariance)
    information[:shared, :shared] = 0.0
    for rows in every:
        design = known._stacked(rows)
        information += design.T @ np.linalg.solve(rows.noise, design)
    between = information[:shared, shared:]
    return np.asarray(
        information[:shared, :shared]
        - between @ np.linalg.solve(information[shared:, shared:], between.T),
        dtype=float,
    )


_WIDTHS = {CURVATURE: 3, LAW: 6, CURVATURES: 4, CUBIC: 4, "cell": 2, "level": 1}


def _read_at(run: PlannedRun) -> tuple[list[int], Array]:
    """Numbers of the token counts at which a run is read, and ln D there: the last is its end."""
    end = math.log(run.tokens)
    first = math.log(run.first_tokens or FIRST_SHARE * run.tokens)
    step = math.log(2.0) / CELLS_PER_OCTAVE
    last = math.ceil(end / step - 1e-6) - 1
    cells = list(range(min(math.ceil(first / step - 1e-6) - 1, last), last + 1))
    log_tokens = np.array([min((cell + 1) * step, end) for cell in cells])
    return cells, log_tokens


def _diagonal(blocks: Sequence[Array]) -> Array:
    """Blocks along the diagonal."""
    ends = np.cumsum([len(block) for block in blocks])
    whole = np.zeros((int(ends[-1]), int(ends[-1])))
    for end, block in zip(ends, blocks, strict=True):
        at = slice(int(end) - len(block), int(end))
        whole[at, at] = block
    return whole
