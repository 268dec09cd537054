"""What fits of the law engine cost: CPU time and memory, from few runs to many, and of densely logged ones.

    python -m benchmarks.bench_laws [--most 18]

One core. Each fit has a process of its own, whose memory is counted beyond what it took before.
"""

import argparse
import multiprocessing
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from isoloss.laws import FitOptions, fit_laws
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

NOISE = 0.0015
FITS = ((2, 3, 24), (4, 5, 24), (10, 10, 24), (25, 20, 24), (2, 5, 4000))
"""Sizes, lines of learning rates and of batch sizes of each, and evaluations of each run."""


def fit(sizes: int, lines: int, evaluations: int) -> tuple[float, float]:
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
    parser.add_argument("--most", type=int, default=10_000, help="runs of a fit")
    most = parser.parse_args().most
    for sizes, lines, evaluations in FITS:
        if (count := sizes * lines**2) > most:
            continue
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            taken, memory = process.submit(fit, sizes, lines, evaluations).result()
        print(
            f"{count} runs of {sizes} sizes x {evaluations} evaluations: {taken:.2f} s of CPU, {memory:.0f} MiB"
        )


if __name__ == "__main__":
    main()
