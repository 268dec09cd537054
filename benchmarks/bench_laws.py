"""How fast the law engine fits, against the same chain written with scipy.optimize in a loop.

    python -m benchmarks.bench_laws [--repeats 3] [--rival-samples 10] [--skip-large]

One core. The rival does for each bootstrap sample what is usually written: perturb the losses, fit every
trajectory with curve_fit, find the tokens to each level, fit a parabola per size and level, take the
cheapest size, fit f, g and L(C) with curve_fit. Its time per sample is measured and scaled up. The last lines have CPU time
and memory of fits in processes of their own: few runs to many, and densely logged ones.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.optimize import curve_fit, minimize

from isoloss.laws import FitOptions, Run, fit_laws
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

SAMPLES = 1000
LEVELS = 24
NOISE = 0.0015


def rival_sample(runs: Sequence[Run], rng: np.random.Generator) -> np.ndarray | None:
    """One bootstrap sample of the chain: coefficients of f, g and L(C)."""
    tokens_of = [_trajectory(run, rng) for run in runs]
    lowest = max(min(np.exp(t[1])) for t in tokens_of)
    highest = min(max(np.exp(t[1])) for t in tokens_of)
    optima = []
    for level in np.linspace(np.log(highest), np.log(lowest), LEVELS):
        best = min(
            (v for v in (_vertex(n, runs, tokens_of, level) for n in _sizes(runs)) if v),
            key=lambda v: v[2],
            default=None,
        )
        if best is not None:
            optima.append((level, *best))
    if len(optima) < 4:
        return None
    level, rate, batch, flops = np.array(optima).T
    line = lambda x, a, b: a + b * x  # noqa: E731
    f, _ = curve_fit(line, level, batch)
    g, _ = curve_fit(line, level, rate)
    curve, _ = curve_fit(
        lambda c, l0, a, k: l0 + np.exp(a - k * (c - 43.0)),
        flops,
        np.exp(level),
        p0=[1.5, 0.0, 0.15],
        bounds=([0.0, -5.0, 0.01], [np.exp(level).min(), 5.0, 1.0]),
    )
    return np.concatenate([f, g, curve])


def _sizes(runs: Sequence[Run]) -> list[float]:
    return sorted({run.params for run in runs})


def _trajectory(run: Run, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(ln D, ln L) of a power law with a floor fitted to the perturbed losses."""
    losses = run.losses + NOISE * rng.standard_normal(len(run.losses))
    x = run.tokens / run.tokens[-1]
    fit, _ = curve_fit(
        lambda d, e, a, b: e + a * d**-b,
        x,
        losses,
        p0=[0.8 * losses[-1], 0.2 * losses[-1], 0.3],
        bounds=([0.0, 0.0, 0.01], [losses[-1], 10.0, 2.0]),
    )
    grid = np.geomspace(x[0], 1.0, 200)
    return np.log(grid * run.tokens[-1]), np.log(fit[0] + fit[1] * grid ** -fit[2])


def _vertex(
    params: float,
    runs: Sequence[Run],
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    level: float,
) -> tuple[float, float, float] | None:
    """(ln LR, ln B, ln C) of one size's parabola at a level."""
    own = [(run, curve) for run, curve in zip(runs, curves, strict=True) if run.params == params]
    x = np.log([run.learning_rate for run, _ in own])
    y = np.log([run.batch_size for run, _ in own])
    z = np.array([np.interp(-level, -curve[1], curve[0]) for _, curve in own])

    def parabola(p: np.ndarray, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
        return a + b * p[0] + c * p[1] + d * p[0] ** 2 + e * p[0] * p[1] + f * p[1] ** 2

    centre = np.array([x.mean(), y.mean()])
    fit, _ = curve_fit(parabola, np.stack([x - centre[0], y - centre[1]]), z)
    found = minimize(lambda p, *_: float(parabola(p, *fit)), [0.0, 0.0], method="BFGS")
    if not found.success or np.abs(found.x).max() > 3.0:
        return None
    return found.x[0] + centre[0], found.x[1] + centre[1], found.fun + np.log(6.0 * params)


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Wall time of each repeat."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def spread(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.3f} s [{min(times):.3f}, {max(times):.3f}]"


LONE_FITS = ((2, 3, 24), (4, 5, 24), (10, 10, 24), (25, 20, 24), (2, 5, 4000))
"""Sizes, lines of learning rates and of batch sizes of each, and evaluations of each run."""


def lone_fit(sizes: int, lines: int, evaluations: int) -> tuple[float, float]:
    """(CPU seconds, MiB beyond what the process took before) of a fit of sizes x lines x lines runs."""
    params = tuple(5e7 * 1.25**i for i in range(sizes))
    grid = Grid(
        params,
        tuple(40 * n for n in params),
        rates=lines,
        batches=lines,
        step=float(np.log(32.0)) / lines,
        evaluations=evaluations,
    )
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), NOISE, NOISE)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    fit_laws(runs, FitOptions())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return time.process_time() - start, (after - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rival-samples", type=int, default=10)
    parser.add_argument("--skip-large", action="store_true", help="leave out the 2,000 runs")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    options = FitOptions(bootstrap_samples=SAMPLES)
    small = synthetic_runs(Synthetic(), Grid(evaluations=40), rng, NOISE)
    ours = seconds(lambda: fit_laws(small, options), arguments.repeats)
    print(f"{len(small)} runs x 40 evaluations, {SAMPLES} bootstrap samples: {spread(ours)}")
    warnings.simplefilter("ignore")
    per_sample = seconds(lambda: rival_sample(small, rng), arguments.rival_samples)
    rival = [t * SAMPLES for t in per_sample]
    print(f"rival, scipy.optimize in a loop, scaled from {len(rival)} samples: {spread(rival)}")
    ratios = [r / statistics.median(ours) for r in rival]
    print(
        f"ratio rival / isoloss: {statistics.median(ratios):.0f} "
        f"[{min(ratios):.0f}, {max(ratios):.0f}]"
    )
    if not arguments.skip_large:
        grid = Grid(
            sizes=tuple(5e7 * 1.5**i for i in range(8)),
            tokens=tuple(5e9 * 1.5**i for i in range(8)),
            rates=16,
            batches=16,
            step=float(np.log(1.3)),
            evaluations=40,
        )
        large = synthetic_runs(Synthetic(), grid, rng, NOISE)[:2000]
        times = seconds(lambda: fit_laws(large, options), min(arguments.repeats, 3))
        print(f"{len(large)} runs x 40 evaluations, {SAMPLES} bootstrap samples: {spread(times)}")
    for sizes, lines, evaluations in LONE_FITS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            taken, memory = process.submit(lone_fit, sizes, lines, evaluations).result()
        count = sizes * lines**2
        print(
            f"{count} runs of {sizes} sizes x {evaluations} evaluations: {taken:.2f} s of CPU, {memory:.0f} MiB"
        )


if __name__ == "__main__":
    main()
