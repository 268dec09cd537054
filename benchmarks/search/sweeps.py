"""Sweeps to search in, whose exhaustive result is known: synthetic surfaces; published.py replays tables."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.science.cases import Truth
from benchmarks.science.shapes import EVALUATION_NOISE, SyntheticJudge, surface
from benchmarks.science.tables import SEQUENCE
from isoloss import design
from isoloss.design import Knowledge, Setting, grid_about
from isoloss.design.setting import FIRST_SHARE
from isoloss.laws import Run
from isoloss.search import Point, Size
from tests.support.synthetic import Skewed, Synthetic, Valley

Place = Literal["inside", "near", "edge", "outside"]
"""Of the largest size's optimum in its grid: over half a line inside, nearer, up to half a line beyond, farther."""
NEAR_STEPS = 0.5
TEN_TIMES = 10.0


@dataclass(frozen=True)
class Target:
    """Where an answer is wanted, and what is true there."""

    params: float
    tokens: float
    truth: Truth


@dataclass(frozen=True)
class KnownSweep(ABC):
    """A sweep that can be trained at will, the same run however often it is asked for."""

    name: str
    """Of its kind; not unique."""
    sizes: tuple[Size, ...]
    """What is trained, dearest last."""
    place: Place
    """Of the largest size's optimum."""

    @abstractmethod
    def train(self, point: Point, tokens: float) -> Run | None:
        """The point's trajectory up to at least `tokens`; None where it cannot be trained."""

    @abstractmethod
    def truth_at(self, params: float, tokens: float) -> Truth:
        """Where the least loss is."""

    @property
    @abstractmethod
    def beyond(self) -> Target | None:
        """More compute than was trained; None where nothing is known there."""

    @property
    def here(self) -> Target:
        """The largest size at its tokens."""
        return self.target(self.sizes[-1].params, self.sizes[-1].tokens)

    def target(self, params: float, tokens: float) -> Target:
        """With its truth."""
        return Target(params, tokens, self.truth_at(params, tokens))

    def expected_regret(self, target: Target) -> float:
        """Nats that an answer there is expected to lose, before a loss is known, from whole grids about their optima."""
        setting, sizes = Setting.usual(), [(size.params, size.tokens) for size in self.sizes]
        params, tokens = np.log(sizes).mean(axis=0)
        # Half of what is read of a run is before a fifth of its tokens.
        centre = float(params), float(tokens) + 0.5 * math.log(FIRST_SHARE)
        shown = []
        for size in self.sizes:
            step = float(np.exp(np.median(np.diff(np.log(size.learning_rates)))))
            lines = len(size.learning_rates)
            grid = grid_about(setting, size.params, size.tokens, lines, factor=step)
            shown.append(design.evidence(setting, grid, size.tokens, centre))
        known = Knowledge.of(setting, sizes, shown, centre)
        return known.outlook(design.Target(target.params, target.tokens)).nats

    def size_of(self, point: Point) -> Size:
        """The point's size."""
        return next(size for size in self.sizes if size.name == point.size)


# ------------------------------------------------------------------------------------- synthetic


@dataclass(frozen=True)
class SyntheticSweep(KnownSweep):
    """Trajectories of 31 evaluations from a surface, with noise of runs and of evaluations."""

    truth: Valley
    noise: float
    """Nats from run to run, the same over a trajectory."""
    seed: int

    def train(self, point: Point, tokens: float) -> Run:
        size = self.size_of(point)
        lr, b = point.learning_rate, point.batch_size
        schedule = np.union1d(np.geomspace(0.02, 1.0, 24), STOPS) * size.tokens
        exact = np.array([self.truth.loss(size.params, t, b, lr) for t in schedule])
        own = [self.seed, round(1e3 * np.log(size.params)), round(1e4 * -np.log(lr)), round(b)]
        rng = np.random.default_rng(own)
        losses = exact + self.noise * rng.standard_normal()
        losses += EVALUATION_NOISE * rng.standard_normal(len(schedule))
        seen = schedule <= tokens * 1.001
        return Run(
            str(point),
            size.params,
            b,
            SEQUENCE,
            lr,
            schedule[seen],
            losses[seen],
        )

    @property
    def beyond(self) -> Target:
        return self.target(*self.farther(TEN_TIMES))

    def farther(self, times: float) -> tuple[float, float]:
        """(parameters, tokens) of so many times the compute of the largest size's runs, both as many times more."""
        factor = float(np.sqrt(times))
        return self.sizes[-1].params * factor, self.sizes[-1].tokens * factor

    def truth_at(self, params: float, tokens: float) -> Truth:
        return SyntheticJudge(self.truth, params, tokens)


STOPS = (0.1, 0.3, 0.6)
"""Shares of the tokens at which runs are evaluated, too: a search stops them at some of these."""
SIZES = (5e7, 1e8, 2e8, 4e8, 8e8)
TOKENS = (5e9, 8e9, 1.2e10, 2e10, 3e10)
SURFACES = ("scattered", "soft", "skewed", "drifting")
FAR_SURFACES = (*SURFACES, "bending", "turning", "following")
"""Those that are asked far away as well."""


def synthetic_surface(shape: str, seed: int) -> Valley:
    """Those of bench-science, and one that is steeper on one side and whose optima drift with tokens fast."""
    if shape != "drifting":
        return surface(shape, seed)
    base = surface("exact", seed)
    assert isinstance(base, Synthetic)
    fast = replace(base, rate_at=(1.2e-3, -0.7, 0.30), batch_at=(128.0, -0.1, 0.57))
    return Skewed(fast, 1.0)


def synthetic_sweeps(seeds: Iterable[int]) -> Iterator[SyntheticSweep]:
    """Every shape, noise and number of sizes with grids of 3 x 3 to 5 x 5 placed at random."""
    for shape in SURFACES:
        for noise in (0.0015, 0.004):
            for count in (2, 3, 4, 5):
                for seed in seeds:
                    yield synthetic_sweep(shape, noise, count, seed)


def synthetic_sweep(shape: str, noise: float, count: int, seed: int) -> SyntheticSweep:
    """One grid for all sizes, as users give it: about the middle size's optimum, or moved away from it."""
    rng = np.random.default_rng([seed, count, round(1e4 * noise), FAR_SURFACES.index(shape)])
    truth = synthetic_surface(shape, seed)
    n, d = SIZES[-count:], TOKENS[-count:]
    lines = int(rng.integers(3, 6))
    middle = count // 2
    off = rng.uniform(-1.0, 1.0, 2) * np.log(2.0) * (0.5 if lines == 3 else 1.0)
    steps = (np.arange(lines) - (lines - 1) / 2) * np.log(2.0)
    rates = truth.rate(n[middle], d[middle]) * np.exp(steps + off[0])
    batches = np.round(truth.batch(n[middle], d[middle]) * np.exp(steps + off[1]))
    sizes = tuple(
        Size(f"n{k}", a, b, tuple(map(float, batches)), tuple(map(float, rates)))
        for k, (a, b) in enumerate(zip(n, d, strict=True))
    )
    vertex = np.log([truth.rate(n[-1], d[-1]), truth.batch(n[-1], d[-1])])
    name = f"synthetic {shape} {noise} {count} sizes {lines}x{lines}"
    return SyntheticSweep(name, sizes, place_of(vertex, rates, batches), truth, noise, seed)


def place_of(vertex: np.ndarray, rates: ArrayLike, batches: ArrayLike) -> Place:
    """Where (ln LR, ln B) lies in a grid."""
    outside = steps_outside(vertex, rates, batches)
    if outside <= -NEAR_STEPS:
        return "inside"
    if outside <= 0.0:
        return "near"
    return "edge" if outside <= NEAR_STEPS else "outside"


def steps_outside(vertex: np.ndarray, rates: ArrayLike, batches: ArrayLike) -> float:
    """How far (ln LR, ln B) lies beyond a grid's edge, in its steps; negative within."""
    found = []
    for at, values in zip(vertex, (rates, batches), strict=True):
        lines = np.log(np.sort(np.asarray(values)))
        step = float(np.median(np.diff(lines)))
        found.append(max((lines[0] - at) / step, (at - lines[-1]) / step))
    return float(max(found))
