"""Do the 80% intervals hold the truth, on synthetic sweeps in the shapes that users really run?

    python -m benchmarks.coverage [--seeds 30] [--only WORD] [--grids two-3x3 ...] [--samples 100]

Every scenario is fitted from many seeds and asked at 1, 10 and 50 times the sweep's largest compute, at the
compute-optimal size there. One row says how often there was an answer, how often its intervals of
learning rate and batch size held the truth, and how wide they were (high over low, median). The optima
of every size deviate from their laws by 5.5%, as in published sweeps, but in the exact scenarios. Refusals are never wrong; an answer whose interval misses too often is a defect, marked with a star.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.science.noisy_steps import optimum
from isoloss import laws as engine
from tests.support import synthetic

FACTORS = (1.0, 10.0, 50.0)
FEWEST_ANSWERS = 6
"""A share of fewer answers than this means nothing."""
LEAST_COVERAGE = 0.7


@dataclass(frozen=True)
class NoiseFloor:
    """A surface outside the fitted family: small steps are slow, large steps keep gradient noise.

    L = E + A N^-a + G (D / (1 + B / Bc) / (1 + l / LR))^-b + k LR / B. The optimum has no closed form and
    moves with D because the last term does not fall: trajectories cross late.
    """

    base: synthetic.Synthetic = field(default_factory=synthetic.Synthetic)
    critical_batch: float = 1000.0
    slow_rate: float = 2.5e-5
    floor: float = 2500.0

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        """Nats per token."""
        slow = self.slow_rate * (n / 2e8) ** -0.3
        effective = d / (1.0 + b / self.critical_batch) / (1.0 + slow / lr)
        p = self.base
        return float(
            p.irreducible
            + p.size_coefficient * n**-p.size_exponent
            + p.token_coefficient * effective**-p.token_exponent
            + self.floor * lr / b * (n / 2e8) ** 0.2
        )

    def rate(self, n: float, d: float) -> float:
        """The best learning rate at N, D."""
        return optimum(self, n, d, (2e-4, 128.0))[0]

    def batch(self, n: float, d: float) -> float:
        """The best batch size at N, D, sequences."""
        return optimum(self, n, d, (2e-4, 128.0))[1]

    def best_size(self, flops: float) -> tuple[float, float]:
        """(N, D) of least loss at 6 N D = flops, as on the base surface."""
        return self.base.best_size(flops)


@dataclass(frozen=True)
class Sweep:
    """What is trained: every size on the same absolute grid, as users write it."""

    sizes: tuple[float, ...] = (1e8, 5e8)
    tokens: tuple[float, ...] = (1e10, 2e10)
    rates: tuple[float, ...] = (1e-4, 2e-4, 5e-4)
    batches: tuple[float, ...] = (64, 128, 256)
    evaluations: int = 30

    @property
    def flops(self) -> float:
        """The largest compute of a run."""
        return max(6.0 * n * d for n, d in zip(self.sizes, self.tokens, strict=True))


GRIDS = {
    "two-3x3": Sweep(),
    "two-3x4": Sweep(batches=(48, 96, 192, 384)),
    "three-4x4": Sweep(
        (1e8, 2.5e8, 5e8), (1e10, 1.5e10, 2e10), (1e-4, 2e-4, 4e-4, 8e-4), (48, 96, 192, 384)
    ),
}


def usual(rate: float = 2.2e-4, batch: float = 125.0, **changes: object) -> synthetic.Synthetic:
    """A surface whose optimum at N = 2e8, D = 8e9 is as given."""
    shape = {"rate_at": (rate, -0.3, 0.05), "batch_at": (batch, -0.05, 0.3), **changes}
    return synthetic.Synthetic(**shape)  # type: ignore[arg-type]


def flattening() -> synthetic.CurvedBySize:
    """The usual surface, whose valley is flatter at larger sizes."""
    shape = usual()
    return synthetic.CurvedBySize(rate_at=shape.rate_at, batch_at=shape.batch_at)


@dataclass(frozen=True)
class Scenario:
    """One truth and how it is observed."""

    name: str
    surface: synthetic.Surface
    run_noise: float = 0.0015
    evaluation_noise: float = 0.0005
    evaluations: int | None = None
    diverged: bool = False
    """The run of the largest learning rate and smallest batch diverges halfway."""
    deviates: bool = True
    """Whether the optima of sizes scatter about their laws."""


SCENARIOS = (
    Scenario("a inside the grid", usual()),
    Scenario("a inside, narrower bowl", usual(curvature=(0.8, 0.2, 0.6))),
    Scenario("b LR above the edge", usual(rate=9e-4)),
    Scenario("b LR below the edge", usual(rate=6e-5)),
    Scenario("b LR just above the edge", usual(rate=5.5e-4)),
    Scenario("b LR above at small sizes", usual(rate_at=(3.2e-4, -0.8, 0.05))),
    Scenario("b LR leaves late", usual(rate_at=(2.0e-4, -0.3, -0.5))),
    Scenario("c B below the edge", usual(batch=35.0)),
    Scenario("c B above the edge", usual(batch=450.0)),
    Scenario("c B just above the edge", usual(batch=250.0)),
    Scenario("d flat in B", usual(curvature=(0.45, 0.0, 0.005))),
    Scenario("d nearly flat in B", usual(curvature=(0.45, 0.02, 0.05))),
    Scenario("e noise 3 x", usual(), 0.0045, 0.0015),
    Scenario(
        "f optimum moves fast", usual(rate_at=(2.2e-4, -0.6, -0.6), batch_at=(125.0, 0.2, 0.9))
    ),
    Scenario("g one diverged row", usual(), diverged=True),
    Scenario("h 8 evaluations", usual(), evaluations=8),
    Scenario("h 4 evaluations", usual(), evaluations=4),
    Scenario("i trajectories cross late", NoiseFloor()),
    Scenario("j exact laws", usual(), deviates=False),
    Scenario("j exact, an exponent that bends", synthetic.Bending(usual()), deviates=False),
    Scenario("j exact, steep above the best LR", synthetic.Skewed(usual()), deviates=False),
    Scenario("j exact, flatter at larger sizes", flattening(), deviates=False),
    Scenario("k an exponent that bends", synthetic.Bending(usual())),
    Scenario("k steep above the best LR", synthetic.Skewed(usual())),
    Scenario("k flatter at larger sizes", flattening()),
)


def sweep_runs(scenario: Scenario, sweep: Sweep, rng: np.random.Generator) -> list[engine.Run]:
    """The sweep's runs, with noise of every run and of every evaluation."""
    count = scenario.evaluations or sweep.evaluations
    runs = []
    for n, d in zip(sweep.sizes, sweep.tokens, strict=True):
        tokens = np.geomspace(0.02 * d, d, count)
        for lr in sweep.rates:
            for b in sweep.batches:
                exact = np.array([scenario.surface.loss(n, t, b, lr) for t in tokens])
                offset = scenario.run_noise * rng.standard_normal()
                losses = exact + offset + scenario.evaluation_noise * rng.standard_normal(count)
                run = engine.Run(f"n{n:.3g}-lr{lr:g}-b{b:g}", n, b, 2048, lr, tokens, losses)
                diverges = scenario.diverged and lr == sweep.rates[-1] and b == sweep.batches[0]
                runs.append(_halved(run) if diverges else run)
    return runs


def _halved(run: engine.Run) -> engine.Run:
    half = len(run.tokens) // 2
    return replace(run, tokens=run.tokens[:half], losses=run.losses[:half], diverged=True)


@dataclass
class Tally:
    """What the seeds of one scenario, grid and factor came to."""

    seeds: int = 0
    rate_held: list[bool] = field(default_factory=list)
    batch_held: list[bool] = field(default_factory=list)
    rate_width: list[float] = field(default_factory=list)
    batch_width: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    @property
    def answers(self) -> int:
        """Seeds with an answer."""
        return len(self.rate_held)

    @property
    def defect(self) -> bool:
        """Enough answers, of which too many miss."""
        if self.answers < FEWEST_ANSWERS:
            return False
        least = min(sum(self.rate_held), sum(self.batch_held))
        return least < LEAST_COVERAGE * self.answers

    def add(self, laws: engine.Laws, surface: synthetic.Surface, flops: float) -> None:
        """Ask once and compare with the truth."""
        self.seeds += 1
        n, d = surface.best_size(flops)
        found = engine.predict(laws, engine.PredictionQuery(total_flops=flops, params=n))
        if isinstance(found, engine.Refused):
            first = found.refusals[0]
            self.refusals[str(first.figures.get("law_reason", first.reason))] += 1
            return
        for interval, truth, held, width in (
            (found.learning_rate, surface.rate(n, d), self.rate_held, self.rate_width),
            (found.batch_size, surface.batch(n, d), self.batch_held, self.batch_width),
        ):
            held.append(interval.low <= truth <= interval.high)
            width.append(interval.high / max(interval.low, 1e-300))

    def __str__(self) -> str:
        share = f"{self.answers / max(self.seeds, 1):4.0%}"
        if not self.answers:
            return f"{share}    -           -       {_listed(self.refusals)}"
        star = "*" if self.defect else " "
        return (
            f"{share} {np.mean(self.rate_held):4.0%} x{np.median(self.rate_width):<5.3g} "
            f"{np.mean(self.batch_held):4.0%} x{np.median(self.batch_width):<5.3g}{star} "
            f"{_listed(self.refusals)}"
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(3))


def probe(
    scenario: Scenario, sweep: Sweep, seeds: Sequence[int], samples: int = 100
) -> dict[float, Tally]:
    """One scenario on one grid, per factor of the largest compute."""
    tallies = {factor: Tally() for factor in FACTORS}
    for seed in seeds:
        surface = (
            synthetic.Deviating(scenario.surface, seed) if scenario.deviates else scenario.surface
        )
        observed = replace(scenario, surface=surface)
        runs = sweep_runs(observed, sweep, np.random.default_rng([seed, 11]))
        laws = engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=samples, seed=seed))
        for factor, tally in tallies.items():
            tally.add(laws, surface, factor * sweep.flops)
    return tallies


def rows(
    scenarios: Sequence[Scenario], grids: Sequence[str], seeds: int, samples: int
) -> Iterator[str]:
    """The table's lines as they are found."""
    yield f"{'scenario':28s} {'grid':10s} {'factor':>6s} answers LR held width B held width"
    for scenario in scenarios:
        for grid in grids:
            for factor, tally in probe(scenario, GRIDS[grid], range(seeds), samples).items():
                yield f"{scenario.name:28s} {grid:10s} {factor:5.0f}x {tally}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--samples", type=int, default=100, help="bootstrap samples of each fit")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--grids", nargs="*", default=list(GRIDS), choices=list(GRIDS))
    given = parser.parse_args()
    chosen = [s for s in SCENARIOS if given.only in s.name]
    for line in rows(chosen, given.grids, given.seeds, given.samples):
        print(line, flush=True)


if __name__ == "__main__":
    main()
