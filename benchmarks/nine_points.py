"""What intervals of the best learning rate hold that are made of nine final losses of one size, and what ours hold.

    python -m benchmarks.nine_points [--seeds 200] [--repetitions 10000]

The sweep is `two-3x3` of `benchmarks.coverage`, with its noise and three times as much, with unequal steps of LR, and in a
valley that is no parabola. Rivals fit a parabola in ln LR and ln B to the nine runs of the largest size: the vertex is a
ratio, and three degrees of freedom are left. Then the same of the floor L0 of nine least losses, which scipy fits over a
factor of compute, and the engine from the whole sweep.
"""

import argparse
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from benchmarks.coverage import GRIDS, SCENARIOS, Scenario, Sweep, sweep_runs
from isoloss.laws import FitOptions, PredictionQuery, Refused, fit_laws, predict

SWEEP = GRIDS["two-3x3"]
UNEQUAL = replace(SWEEP, rates=(1e-4, 1.3e-4, 8e-4))
USUAL, NOISY, STEEP = "a inside the grid", "e noise 3 x", "k steep above the best LR"
CASES = (
    ("usual", SWEEP, USUAL),
    ("three times the noise", SWEEP, NOISY),
    ("unequal steps", UNEQUAL, USUAL),
    ("steep above", SWEEP, STEEP),
    ("steep above, unequal steps", UNEQUAL, STEEP),
)
FLOORS = ((USUAL, 16), (USUAL, 4), (NOISY, 4))
"""Of the noise of which scenario, over which factor of compute."""
WITHIN = 0.8
RESAMPLES = 300
Values = NDArray[np.float64]


def vertices(betas: Values) -> Values:
    """ln LR at the vertex of each parabola; nan where it has no minimum."""
    _, x, y, xx, yy, xy = np.moveaxis(betas, -1, 0)
    determinant = 4 * xx * yy - xy**2
    found = (xy * y - 2 * yy * x) / determinant
    return np.where((xx > 0) & (determinant > 0), found, np.nan)


def coverage_row(case: str, name: str, low: Values, high: Values, truth: float) -> str:
    """A row of the table: without an answer, holds, high less low (median)."""
    is_there = np.isfinite(low) & np.isfinite(high)
    held = (low <= truth) & (truth <= high)
    width = np.median((high - low)[is_there])
    return f"|{case}|{name}|{np.mean(~is_there):.1%}|{held[is_there].mean():.0%}|{width:.3f}|"


def rivals(
    losses: Values, case: str, sweep: Sweep, truth: float, random: np.random.Generator
) -> list[str]:
    """Intervals of the vertex by its derivatives with two quantiles, and by resampled residuals."""
    axes = np.meshgrid(np.log(sweep.rates), np.log(sweep.batches), indexing="ij")
    x, y = ((each - each.mean()).ravel() for each in axes)
    design = np.stack([np.ones(9), x, y, x * x, y * y, x * y], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    betas = losses @ design @ inverse
    residuals = losses - betas @ design.T
    centre, best = np.mean(np.log(sweep.rates)), vertices(betas)
    steps = 1e-6 * np.eye(6)
    slopes = np.stack([(vertices(betas + step) - best) / 1e-6 for step in steps], axis=1)
    errors = np.sqrt(np.einsum("ni,ij,nj->n", slopes, inverse, slopes) * (residuals**2).sum(1) / 3)
    rows = []
    for name, margin in (
        ("its error, normal", stats.norm.ppf(0.5 + WITHIN / 2)),
        ("its error, Student's of three", stats.t.ppf(0.5 + WITHIN / 2, 3)),
    ):
        half = margin * errors
        rows.append(coverage_row(case, name, centre + best - half, centre + best + half, truth))
    few = slice(0, 1000)
    drawn = random.integers(0, 9, (RESAMPLES, 1, 9))
    again = (betas @ design.T)[few] + np.take_along_axis(residuals[None, few], drawn, axis=2)
    spread = np.nanquantile(vertices(again @ design @ inverse), (0.1, 0.9), axis=0)
    low, high = np.where(np.isfinite(best[few]), centre + spread, np.nan)
    return [*rows, coverage_row(case, "resampled residuals", low, high, truth)]


def floors(scenario: Scenario, span: float, random: np.random.Generator, count: int) -> str:
    """Student's intervals of L0 by curve_fit from nine least losses over a factor of compute, and how often it is below zero."""
    compute = np.geomspace(1 / span, 1, 9)
    surface = scenario.surface
    sizes = [surface.best_size(SWEEP.flops * each) for each in compute]
    exact = np.array(
        [surface.loss(n, d, surface.batch(n, d), surface.rate(n, d)) for n, d in sizes]
    )
    found = np.full((2, count), np.nan)
    for at in range(count):
        losses = exact + scenario.run_noise * random.standard_normal(9)
        try:
            values, covariance = optimize.curve_fit(
                lambda c, floor, rest, power: floor + rest * c**-power,
                *(compute, losses),
                p0=(1.5, 1.0, 0.2),
                maxfev=10_000,
            )
        except RuntimeError:
            continue
        found[:, at] = values[0], np.sqrt(covariance[0, 0])
    half = stats.t.ppf(0.5 + WITHIN / 2, 6) * found[1]
    row = coverage_row(
        f"L0 over {span:g}, {scenario.name}", "curve_fit", found[0] - half, found[0] + half, 1.7
    )
    return f"{row} below zero {np.mean(found[0] < 0):.1%}"


def engine(scenario: Scenario, sweep: Sweep, seeds: int) -> Values:
    """The engine's intervals of ln LR and of L0, (4, seeds); nan where it refuses."""
    ends = np.full((4, seeds), np.nan)
    for seed in range(seeds):
        runs = sweep_runs(scenario, sweep, np.random.default_rng([seed, 11]))
        laws = fit_laws(runs, FitOptions(bootstrap_samples=100, seed=seed))
        asked = PredictionQuery(total_flops=sweep.flops, params=sweep.sizes[-1])
        answer = predict(laws, asked)
        if not isinstance(answer, Refused):
            interval = answer.learning_rate
            ends[:2, seed] = np.log([interval.low, interval.high])
        if (floor := laws.loss_compute.irreducible_loss_interval) is not None:
            ends[2:, seed] = floor.low, floor.high
    return ends


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=10_000)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    scenarios = {scenario.name: scenario for scenario in SCENARIOS}
    for case, sweep, name in CASES:
        scenario = scenarios[name]
        surface, size, tokens = scenario.surface, sweep.sizes[-1], sweep.tokens[-1]
        truth = np.log(surface.rate(size, tokens))
        exact = [surface.loss(size, tokens, b, lr) for lr in sweep.rates for b in sweep.batches]
        losses = exact + scenario.run_noise * random.standard_normal((given.repetitions, 9))
        low, high, least, most = engine(scenario, sweep, given.seeds)
        rows = rivals(losses, case, sweep, truth, random)
        rows.append(coverage_row(case, "isoloss, two sizes", low, high, truth))
        rows.append(coverage_row(f"L0, {case}", "isoloss, two sizes", least, most, 1.7))
        print(*rows, sep="\n", flush=True)
    for name, span in FLOORS:
        print(floors(scenarios[name], span, random, given.repetitions), flush=True)


if __name__ == "__main__":
    main()
