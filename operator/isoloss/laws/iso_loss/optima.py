"""Optima per size and level with their bootstrap draws, and the frontier of least compute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isoloss.laws.arrays import Array, Flags
from isoloss.laws.bootstrap import DECIDE, DrawSource
from isoloss.laws.curves import LossCurve
from isoloss.laws.data.cells import tokens_to
from isoloss.laws.iso_loss.edges import judge_vertex
from isoloss.laws.iso_loss.levels import Size
from isoloss.laws.iso_loss.noise import Noise, draw_log_tokens
from isoloss.laws.iso_loss.parabola import Parabola, fit_parabola
from isoloss.laws.iso_loss.path import Path, Vertices, find_path, read_along, size_curve
from isoloss.laws.model import Refusal, RefusalReason
from isoloss.laws.quadratic import TERMS, vertex_of

CLOSE_CALL = 0.1
"""ln C by which a size without an optimum at a level may undercut the winner there."""


@dataclass(frozen=True)
class SizeOptima:
    """One size's optimum at every level, as draws; draw 0 is the estimate."""

    size: Size
    parabolas: tuple[Parabola | Refusal | None, ...]
    """None: the size does not cover the level."""
    refusals: tuple[Refusal | None, ...]
    log_rate: Array
    """(draws, levels) NaN where there is no optimum."""
    log_batch: Array
    log_tokens: Array

    @property
    def found(self) -> Flags:
        """(levels,) whether there is an optimum."""
        return np.asarray(np.isfinite(self.log_tokens[0]))

    @property
    def log_flops(self) -> Array:
        """(draws, levels)."""
        return np.asarray(self.log_tokens + np.log(self.size.flops_per_token), dtype=float)


def fit_parabolas(size: Size) -> tuple[Parabola | Refusal | None, ...]:
    """One parabola per covered level."""
    return tuple(
        fit_parabola(size, level) if covered else None
        for level, covered in enumerate(size.covered)
    )


def find_optima(
    size: Size,
    parabolas: tuple[Parabola | Refusal | None, ...],
    noise: Noise,
    source: DrawSource,
) -> SizeOptima:
    """The vertex of each parabola under the noise, refused if it is not safely a minimum."""
    levels = len(parabolas)
    solvers = np.zeros((levels, TERMS, len(size.trajectories)))
    for level, parabola in enumerate(parabolas):
        if isinstance(parabola, Parabola):
            solvers[level][:, parabola.points] = parabola.fit.solver
    moved = np.zeros((levels, TERMS, source.draws))
    for part, errors in draw_log_tokens(size, noise, source):
        moved += solvers[:, :, part] @ errors
    out = np.full((3, source.draws, levels), np.nan)
    refusals: list[Refusal | None] = []
    for level, parabola in enumerate(parabolas):
        if not isinstance(parabola, Parabola):
            refusals.append(parabola)
            continue
        coefficients = parabola.fit.coefficients + moved[level].T
        vertices, log_tokens, convex = vertex_of(coefficients, parabola.fit.centre)
        refusal = judge_vertex(
            size, parabola.values, parabola.reached, vertices[DECIDE], convex[DECIDE]
        )
        refusals.append(refusal)
        if refusal is None:
            out[:, :, level] = np.where(
                convex, np.stack([vertices[:, 0], vertices[:, 1], log_tokens]), np.nan
            )
    return SizeOptima(size, parabolas, tuple(refusals), out[0], out[1], out[2])


@dataclass(frozen=True)
class Frontier:
    """The optimum across sizes per level, as draws; draw 0 is the estimate."""

    log_loss: Array
    """(levels,)"""
    log_params: Array
    """(draws, levels) NaN where refused."""
    log_rate: Array
    log_batch: Array
    log_tokens: Array
    log_flops: Array
    refusals: tuple[Refusal | None, ...]

    @property
    def found(self) -> Flags:
        """(levels,) whether there is an optimum."""
        return np.asarray(np.isfinite(self.log_flops[0]))


def least_compute(sizes: Sequence[SizeOptima], log_loss: Array, source: DrawSource) -> Frontier:
    """Per level the compute of the cheapest size, and the optimum at the compute-optimal size.

    If the sizes' costs do not cross, the optimum is the cheapest size's own.
    """
    curves = [size_curve(_fewest_tokens(s), log_loss) for s in sizes]
    refusals: list[Refusal | None] = []
    out = np.full((5, *sizes[0].log_tokens.shape), np.nan)
    for level in range(len(log_loss)):
        candidates = [s for s in sizes if s.found[level]]
        refusal = _unproven(sizes, curves, log_loss, level)
        refusals.append(refusal)
        if refusal is None:
            out[:, :, level] = _cheapest(candidates, level)
    frontier = Frontier(log_loss, out[0], out[1], out[2], out[3], out[4], tuple(refusals))
    path = find_path(
        [float(np.log(s.size.params)) for s in sizes],
        [float(np.log(s.size.flops_per_token)) for s in sizes],
        curves,
        log_loss,
    )
    return frontier if path is None else _along(frontier, sizes, path, source)


def _fewest_tokens(optima: SizeOptima) -> Array:
    """(levels,) ln D at the vertex, or of the best run if there is none but the level is covered."""
    seen = np.where(np.isfinite(optima.size.log_tokens), optima.size.log_tokens, np.inf)
    best = np.where(optima.size.covered, seen.min(axis=0), np.nan)
    best = np.where(np.isfinite(best), best, np.nan)
    return np.where(optima.found, optima.log_tokens[0], best)


def _along(
    frontier: Frontier, sizes: Sequence[SizeOptima], path: Path, source: DrawSource
) -> Frontier:
    """The frontier with its optima read at the compute-optimal size instead of the cheapest."""
    found = [s.found for s in sizes]
    vertices = Vertices(
        np.concatenate(
            [np.full(f.sum(), np.log(s.size.params)) for s, f in zip(sizes, found, strict=True)]
        ),
        *(
            np.concatenate(
                [_column(s, name)[:, f] for s, f in zip(sizes, found, strict=True)], axis=1
            )
            for name in ("log_tokens", "log_rate", "log_batch")
        ),
    )
    log_params, log_flops = path.draw(frontier.log_params, frontier.log_flops, source)
    per_param = float(np.mean([np.log(s.size.flops_per_token / s.size.params) for s in sizes]))
    log_tokens = log_flops - per_param - log_params
    answers = read_along(vertices, log_params, log_tokens)
    if answers is None:
        return frontier
    return replace(
        frontier,
        log_params=log_params,
        log_tokens=log_tokens,
        log_rate=answers[0],
        log_batch=answers[1],
        log_flops=log_flops,
    )


def _column(optima: SizeOptima, name: str) -> Array:
    """Draws without gaps: a draw whose parabola was not convex repeats the estimate."""
    values: Array = getattr(optima, name)
    return np.where(np.isfinite(values), values, values[0])


def _cheapest(candidates: Sequence[SizeOptima], level: int) -> Array:
    """(5, draws): ln N, ln LR, ln B, ln D, ln C of the size of least compute."""
    best = min(candidates, key=lambda c: float(c.log_flops[0, level]))
    columns = (best.log_rate, best.log_batch, best.log_tokens, best.log_flops)
    log_params = np.full(len(best.log_rate), np.log(best.size.params))
    return np.stack([log_params, *(column[:, level] for column in columns)])


def _unproven(
    sizes: Sequence[SizeOptima], curves: Sequence[LossCurve | None], log_loss: Array, level: int
) -> Refusal | None:
    """Refuse a level whose cheapest size may be one without an optimum there: the dearer size's optimum is that of fewer
    parameters or more tokens, and two such sizes bend the laws (tests/benchmarks/test_transfer.py)."""
    candidates = [s for s in sizes if s.found[level]]
    if not candidates:
        reasons = [s.refusals[level] for s in sizes if s.refusals[level] is not None]
        return reasons[-1] if reasons else _not_covered(log_loss, level)
    winner = min(float(c.log_flops[0, level]) for c in candidates)
    for other, curve in zip(sizes, curves, strict=True):
        if other.found[level] or curve is None:
            continue
        cost = float(tokens_to(curve, log_loss[level]))
        if cost + float(np.log(other.size.flops_per_token)) < winner - CLOSE_CALL:
            return other.refusals[level] or _not_covered(log_loss, level, other.size.params)
    return None


def _not_covered(log_loss: Array, level: int, params: float | None = None) -> Refusal:
    loss = float(np.exp(log_loss[level]))
    who = (
        "no size has"
        if params is None
        else f"the cheapest size there ({params:.3g} parameters) does not have"
    )
    figures: dict[str, float | str] = {"loss": loss}
    if params is not None:
        figures["params"] = params
    return Refusal(
        RefusalReason.NO_COMMON_LOSS_RANGE,
        f"At loss {loss:.4g} {who} enough runs that reach it. Train for more tokens, and evaluate runs on the way there.",
        figures,
    )
