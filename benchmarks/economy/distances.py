"""Whether far answers lose what they say: whole grids of bench-search's synthetic sweeps, asked up to 100,000 times their compute."""

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from benchmarks.science.shapes import token_slope
from benchmarks.search import strategies
from benchmarks.search.sweeps import SyntheticSweep
from benchmarks.search.targets import SAMPLES, sweeps
from isoloss.laws import FitOptions, PredictionQuery, Refused, fit_laws, predict
from isoloss.laws.answer import optimum
from isoloss.laws.answer.question import Question, resolve
from isoloss.usual import PUBLISHED_WASTE

TIMES = (10, 200, 1000, 5000, 20_000, 100_000)
"""The compute of the largest size's runs."""


@dataclass(frozen=True)
class Far:
    """One question, whether it was answered or not."""

    times: int
    expected: float
    measured: float
    """ln D, both."""
    refused: bool
    held: float
    """Share of learning rate and batch size inside their 80% intervals."""


def asked(sweep: SyntheticSweep) -> list[Far]:
    """All distances, of a sweep whose laws have an optimum."""
    laws = fit_laws(strategies.exhaustive(sweep).runs, FitOptions(bootstrap_samples=SAMPLES))
    found = []
    for times in TIMES:
        params, tokens = sweep.farther(times)
        query = PredictionQuery(total_flops=6.0 * params * tokens, params=params)
        question = resolve(laws, query)
        pair = optimum.best_pair(laws, question) if isinstance(question, Question) else None
        if pair is None:
            continue
        truth = sweep.truth_at(params, tokens)
        intervals = (pair.point.learning_rate, pair.point.batch_size)
        held = [i.low <= x <= i.high for i, x in zip(intervals, np.exp(truth.vertex), strict=True)]
        lost = truth.regret(*(i.value for i in intervals)) / token_slope(
            sweep.truth, params, tokens
        )
        expected = optimum.wasted(laws, pair, pair.mean_error)
        refused = isinstance(predict(laws, query), Refused)
        found.append(Far(times, expected, lost, refused, float(np.mean(held))))
    return found


def table(pool: Executor, seeds: int) -> Iterator[str]:
    """A line for each distance."""
    yield "| asked at | expected | measured | answered | these lose | refused | of these lose less than a published law | holds |"
    yield "|---|---|---|---|---|---|---|---|"
    every = [each for found in pool.map(asked, sweeps(seeds)) for each in found]
    for times in TIMES:
        own = [each for each in every if each.times == times]
        answered = [each.measured for each in own if not each.refused]
        refused = [each.measured for each in own if each.refused]
        yield (
            f"| {times:,} | {np.mean([e.expected for e in own]):.3f} | {np.mean([e.measured for e in own]):.3f} | {len(answered)} "
            f"| {np.mean(answered):.3f} | {len(refused)} | {sum(lost < PUBLISHED_WASTE for lost in refused)} "
            f"| {np.mean([e.held for e in own]):.0%} |"
        )
