"""For which target a search is worth its cost: searches for larger and smaller ones, asked at the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks.science.contenders import answering
from benchmarks.science.scores import Score, record
from benchmarks.science.shapes import token_slope
from benchmarks.search import strategies
from benchmarks.search.sweeps import FAR_SURFACES, SyntheticSweep, synthetic_sweep
from isoloss.design import Target
from isoloss.laws import FitOptions, fit_laws
from isoloss.search import SearchOptions

ASKED = (40, 100, 200, 500, 1000)
SEARCHED = (20, 40, 100, 200, 500, 1000, 2500, 5000)
"""Targets, in the compute of the largest size's runs."""
SAMPLES = 60


@dataclass(frozen=True)
class Outcome:
    """Of one search, or of the whole grids."""

    searched: int | None
    """Its target; None: the whole grids."""
    share: float
    """FLOPs over those of the grids."""
    lost: dict[int, tuple[float, float] | None]
    """By ASKED: what the answer loses and what was trained, as shares of the target's compute; None: refused."""


def sweeps(seeds: int) -> Iterator[SyntheticSweep]:
    """Two to four sizes."""
    for shape, noise, count, seed in product(
        FAR_SURFACES, (0.0015, 0.004), (2, 3, 4), range(seeds)
    ):
        yield synthetic_sweep(shape, noise, count, seed)


def outcomes(sweep: SyntheticSweep) -> list[Outcome]:
    """Of all searches, and of the whole grids."""
    options = SearchOptions(
        max_added_points=6 * len(sweep.sizes), jobs=16, fit=FitOptions(bootstrap_samples=SAMPLES)
    )
    every = [_outcome(sweep, None, strategies.exhaustive(sweep))]
    for times in SEARCHED:
        target = Target(*sweep.farther(times))
        search = strategies.sequential(replace(options, target=target))
        every.append(_outcome(sweep, times, search(sweep)))
    return every


def _outcome(sweep: SyntheticSweep, searched: int | None, trained: strategies.Searched) -> Outcome:
    answer = answering(fit_laws(trained.runs, FitOptions(bootstrap_samples=SAMPLES)))
    lost = dict[int, tuple[float, float] | None]()
    for times in ASKED:
        params, tokens = sweep.farther(times)
        found = answer(params, tokens)
        regret = None
        if found is not None:
            regret = record(Score(), found, sweep.truth_at(params, tokens))
        spent = trained.flops / (6.0 * params * tokens)
        lost[times] = (
            None if regret is None else (regret / token_slope(sweep.truth, params, tokens), spent)
        )
    whole = sum(size.grid_flops for size in sweep.sizes)
    return Outcome(searched, trained.flops / whole, lost)


def table(pool: Executor, seeds: int) -> Iterator[str]:
    """By the target that searches were for (rows) and the one that is asked for: answers, cost and loss as shares of its compute."""
    found = list(pool.map(outcomes, sweeps(seeds)))
    yield f"{'':14s}" + "".join(f"{f'asked at {asked}':>28s}" for asked in ASKED)
    for searched, own in zip((None, *SEARCHED), zip(*found, strict=True), strict=True):
        share = np.mean([each.share for each in own])
        cells = "".join(f"{_cell([each.lost[asked] for each in own]):>28s}" for asked in ASKED)
        yield f"{searched or 'grids':>6}   {share:5.2f}{cells}"
    for asked in ASKED:
        at = SEARCHED.index(asked) + 1
        pairs = [
            (a[0], b[0])
            for each in found
            if (a := each[0].lost[asked]) and (b := each[at].lost[asked])
        ]
        whole, searched_loss = np.mean(pairs, axis=0)
        yield f"a search for {asked} loses {searched_loss / whole:.2f} of what the grids lose there, {len(pairs)} sweeps"


def _cell(lost: Sequence[tuple[float, float] | None]) -> str:
    known = [each for each in lost if each is not None]
    loss, cost = np.mean(known, axis=0) if known else (np.nan, np.nan)
    return f"{len(known)}: {cost:.3f} + {loss:.3f} = {cost + loss:.3f}"
