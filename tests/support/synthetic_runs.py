"""Runs on a surface whose optimum is known: what a report and a command line can be shown."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from isoloss import laws as engine
from tests.support.tables import HEADER

Number = TypeVar("Number", float, NDArray[np.float64])

SIZES = (30e6, 100e6, 300e6)
BATCHES = (32, 64, 128, 256, 512)
RATES = (1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3)
NOISE = 0.0015
"""Standard deviation of an evaluation, nats."""


def synthetic_runs(
    *,
    sizes: Sequence[float] = SIZES,
    batches: Sequence[int] = BATCHES,
    rates: Sequence[float] = RATES,
    noise: float = NOISE,
    evaluations: int = 24,
    seed: int = 0,
) -> tuple[engine.Run, ...]:
    """A full grid of trajectories: L = 1.7 + 400/N^0.34 + 410/D^0.28 plus a bowl in (ln LR, ln B).

    The bowl's bottom moves with tokens: LR falls, B grows. The largest rate at the smallest batch of
    each size diverges half-way, and the last run of the largest size still trains.
    """
    rng = np.random.default_rng(seed)
    runs = [
        _run(size, batch, rate, noise, evaluations, rng)
        for size in sizes
        for batch in batches
        for rate in rates
    ]
    half = evaluations // 2
    for index, run in enumerate(runs):
        if run.batch_size == batches[0] and run.learning_rate == rates[-1]:
            runs[index] = replace(_until(run, half), diverged=True)
    runs[-1] = replace(_until(runs[-1], evaluations - 6), finished=False)
    return tuple(runs)


def _until(run: engine.Run, count: int) -> engine.Run:
    """Its first evaluations."""
    return replace(run, tokens=run.tokens[:count], losses=run.losses[:count])


def _run(
    size: float, batch: int, rate: float, noise: float, evaluations: int, rng: np.random.Generator
) -> engine.Run:
    tokens = np.geomspace(0.5e9, 60 * size + 3e9, evaluations)
    loss = 1.7 + 400 / size**0.34 + 410 / tokens**0.28 + bowl(rate, batch, size, tokens)
    return engine.Run(
        name=f"n{size / 1e6:.0f}m-b{batch}-lr{rate:g}",
        params=size,
        batch_size=float(batch),
        sequence_length=2048,
        learning_rate=rate,
        tokens=tokens,
        losses=loss + noise * rng.standard_normal(evaluations),
    )


def synthetic_optimum(size: float, tokens: Number) -> tuple[Number, Number]:
    """Learning rate and batch size (sequences) at the bottom of the bowl."""
    return 6e-4 * (size / 1e8) ** -0.25 * (tokens / 4e9) ** -0.15, 110 * (tokens / 4e9) ** 0.45


def bowl(rate: float, batch: float, size: float, tokens: Number) -> Number:
    """What a learning rate and a batch size lose over the best ones, nats."""
    best_rate, best_batch = synthetic_optimum(size, tokens)
    x, y = np.log(rate / best_rate), np.log(batch / best_batch)
    return 0.02 * x**2 + 0.012 * y**2 - 0.008 * x * y


def write_runs(path: Path, runs: Sequence[engine.Run]) -> Path:
    """The runs as a table, their divergence marked."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*HEADER, "diverged"])
        for run in runs:
            for tokens, loss in zip(run.tokens, run.losses, strict=True):
                numbers = (run.params, int(run.batch_size), run.sequence_length, run.learning_rate)
                writer.writerow([run.name, *numbers, tokens, loss, str(run.diverged).lower()])
    return path


@cache
def fitted_laws(*, provisional: bool = False) -> engine.Laws:
    """Laws of a sweep whose optimum lies inside its grid."""
    return engine.fit_laws(
        synthetic_runs(), engine.FitOptions(bootstrap_samples=20), provisional=provisional
    )


@cache
def one_batch_size_laws() -> engine.Laws:
    """Laws of a sweep of one batch size, 128 sequences, whose best learning rate lies inside its grid."""
    return engine.fit_laws(synthetic_runs(batches=(128,)), engine.FitOptions(bootstrap_samples=20))


def answered(
    laws: engine.Laws, query: engine.PredictionQuery | None = None, **asked: Any
) -> engine.Prediction:
    """The answer to a query, or to one with these fields; fails where it is refused."""
    found = engine.predict(laws, query or engine.PredictionQuery(**asked))
    assert isinstance(found, engine.Prediction)
    return found


def refusal_of(laws: engine.Laws, query: engine.PredictionQuery) -> engine.Refused:
    """Why a query has no answer; fails where it has one."""
    found = engine.predict(laws, query)
    assert isinstance(found, engine.Refused)
    return found
