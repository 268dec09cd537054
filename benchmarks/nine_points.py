"""What intervals of the best learning rate hold that are made of nine final losses of one size, and what ours hold.

    python -m benchmarks.nine_points [--seeds 200] [--repetitions 10000]

The sweep is `two-3x3` of `benchmarks.coverage`, with its noise and three times as much. Rivals fit a parabola in ln LR and
ln B to the nine runs of the largest size: the vertex is a ratio, and three degrees of freedom are left.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.coverage import GRIDS, SCENARIOS, sweep_runs
from isoloss.laws import FitOptions, PredictionQuery, Refused, fit_laws, predict

SWEEP = GRIDS["two-3x3"]
WITHIN = 0.8
RESAMPLES = 300
Values = NDArray[np.float64]


def vertices(betas: Values) -> Values:
    """ln LR at the vertex of each parabola; nan where it has no minimum."""
    _, x, y, xx, yy, xy = np.moveaxis(betas, -1, 0)
    determinant = 4 * xx * yy - xy**2
    found = (xy * y - 2 * yy * x) / determinant
    return np.where((xx > 0) & (determinant > 0), found, np.nan)


def said(name: str, noise: float, low: Values, high: Values, truth: float) -> str:
    """A row of the table: without an answer, holds, width."""
    is_there = np.isfinite(low) & np.isfinite(high)
    held = (low <= truth) & (truth <= high)
    widths = np.exp(np.median((high - low)[is_there]))
    return f"|{noise:g}|{name}|{np.mean(~is_there):.0%}|{held[is_there].mean():.0%}|{widths:.2f}|"


def rivals(losses: Values, noise: float, truth: float, random: np.random.Generator) -> list[str]:
    """Intervals of the vertex by its derivatives with two quantiles, and by resampled residuals."""
    axes = np.meshgrid(np.log(SWEEP.rates), np.log(SWEEP.batches), indexing="ij")
    x, y = ((each - each.mean()).ravel() for each in axes)
    design = np.stack([np.ones(9), x, y, x * x, y * y, x * y], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    betas = losses @ design @ inverse
    residuals = losses - betas @ design.T
    centre, best = np.mean(np.log(SWEEP.rates)), vertices(betas)
    steps = 1e-6 * np.eye(6)
    slopes = np.stack([(vertices(betas + step) - best) / 1e-6 for step in steps], axis=1)
    errors = np.sqrt(np.einsum("ni,ij,nj->n", slopes, inverse, slopes) * (residuals**2).sum(1) / 3)
    rows = []
    for name, margin in (
        ("its error, normal", stats.norm.ppf(0.5 + WITHIN / 2)),
        ("its error, Student's of three", stats.t.ppf(0.5 + WITHIN / 2, 3)),
    ):
        half = margin * errors
        rows.append(said(name, noise, centre + best - half, centre + best + half, truth))
    few = slice(0, 1000)
    drawn = random.integers(0, 9, (RESAMPLES, 1, 9))
    again = (betas @ design.T)[few] + np.take_along_axis(residuals[None, few], drawn, axis=2)
    spread = np.nanquantile(vertices(again @ design @ inverse), (0.1, 0.9), axis=0)
    low, high = np.where(np.isfinite(best[few]), centre + spread, np.nan)
    return [*rows, said("resampled residuals", noise, low, high, truth)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=10_000)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    size, tokens = SWEEP.sizes[-1], SWEEP.tokens[-1]
    for scenario in (s for s in SCENARIOS if s.name in ("a inside the grid", "e noise 3 x")):
        noise, surface = scenario.run_noise, scenario.surface
        truth = np.log(surface.rate(size, tokens))
        exact = [surface.loss(size, tokens, b, lr) for lr in SWEEP.rates for b in SWEEP.batches]
        losses = exact + noise * random.standard_normal((given.repetitions, 9))
        for row in rivals(losses, noise, truth, random):
            print(row, flush=True)
        ends = np.full((2, given.seeds), np.nan)
        for seed in range(given.seeds):
            runs = sweep_runs(scenario, SWEEP, np.random.default_rng([seed, 11]))
            laws = fit_laws(runs, FitOptions(bootstrap_samples=100, seed=seed))
            answer = predict(laws, PredictionQuery(total_flops=SWEEP.flops, params=size))
            if not isinstance(answer, Refused):
                interval = answer.learning_rate
                ends[:, seed] = np.log([interval.low, interval.high])
        print(said("isoloss, two sizes", noise, ends[0], ends[1], truth), flush=True)


if __name__ == "__main__":
    main()
