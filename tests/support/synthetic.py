"""Sweeps drawn from a loss surface whose optima are known, to see whether the laws find them.

L = E + A N^-a + G (D exp(-q))^-b, q a parabola in ln(LR / LR*) and ln(B / B*): a wrong setting wastes
a share of the tokens. LR* and B* are power laws of N and D.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from isoloss.laws import Run


class Valley(Protocol):
    """A loss whose optimum is known at every N, D."""

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        """Nats per token."""
        ...

    def rate(self, n: float, d: float) -> float:
        """The best learning rate at N, D."""
        ...

    def batch(self, n: float, d: float) -> float:
        """The best batch size at N, D, sequences."""
        ...


class Surface(Valley, Protocol):
    """One whose best size is known, too."""

    def best_size(self, flops: float) -> tuple[float, float]:
        """(N, D) of least loss at 6 N D = flops."""
        ...


@dataclass(frozen=True)
class Synthetic:
    """A surface; the defaults are near published fits."""

    irreducible: float = 1.7
    size_coefficient: float = 480.0
    size_exponent: float = 0.34
    token_coefficient: float = 2100.0
    token_exponent: float = 0.37
    rate_at: tuple[float, float, float] = (1.2e-3, -0.5, 0.15)
    """LR* at N = 2e8, D = 8e9, and its exponents of N and D."""
    batch_at: tuple[float, float, float] = (128.0, -0.05, 0.45)
    curvature: tuple[float, float, float] = (0.45, 0.15, 0.30)
    """Of q: xx, xy, yy."""

    def rate(self, n: float, d: float) -> float:
        value, of_n, of_d = self.rate_at
        return float(value * (n / 2e8) ** of_n * (d / 8e9) ** of_d)

    def batch(self, n: float, d: float) -> float:
        value, of_n, of_d = self.batch_at
        return float(value * (n / 2e8) ** of_n * (d / 8e9) ** of_d)

    def curvature_at(self, _n: float) -> tuple[float, float, float]:
        """Of q at a size: the same at all."""
        return self.curvature

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        x, y = np.log(lr / self.rate(n, d)), np.log(b / self.batch(n, d))
        xx, xy, yy = self.curvature_at(n)
        q = 0.5 * xx * x * x + xy * x * y + 0.5 * yy * y * y
        size = self.size_coefficient * n**-self.size_exponent
        tokens = self.token_coefficient * (d * np.exp(-q)) ** -self.token_exponent
        return float(self.irreducible + size + tokens)

    def best_size(self, flops: float) -> tuple[float, float]:
        """(N, D) of least loss at 6 N D = flops."""

        def loss(log_n: float) -> float:
            n = np.exp(log_n)
            d = flops / (6.0 * n)
            return float(self.loss(n, d, self.batch(n, d), self.rate(n, d)))

        n = float(
            np.exp(minimize_scalar(loss, bounds=(np.log(1e6), np.log(1e12)), method="bounded").x)
        )
        return n, flops / (6.0 * n)


@dataclass(frozen=True)
class Moved(ABC):
    """A surface made of another one, whose optimum may be elsewhere."""

    base: Surface

    @abstractmethod
    def moved(self, n: float, d: float) -> tuple[float, float]:
        """Factors of LR* and B* at N, D."""

    def rate(self, n: float, d: float) -> float:
        """The best learning rate at N, D."""
        return self.base.rate(n, d) * self.moved(n, d)[0]

    def batch(self, n: float, d: float) -> float:
        """The best batch size at N, D, sequences."""
        return self.base.batch(n, d) * self.moved(n, d)[1]

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        """Nats per token."""
        rate, batch = self.moved(n, d)
        return self.base.loss(n, d, b / batch, lr / rate)

    def best_size(self, flops: float) -> tuple[float, float]:
        """(N, D) of least loss at 6 N D = flops: that of the base."""
        return self.base.best_size(flops)


@dataclass(frozen=True)
class Deviating(Moved):
    """A surface whose optima deviate from their laws, as those of published sweeps do."""

    seed: int
    deviation: float = 0.055
    """Standard deviation of ln LR* and of ln B* over sizes."""

    def moved(self, n: float, _d: float) -> tuple[float, float]:
        return _deviating(self.deviation, self.seed, n)


@cache
def _deviating(deviation: float, seed: int, n: float) -> tuple[float, float]:
    rate, batch = np.exp(deviation * _random_pair(seed, n))
    return float(rate), float(batch)


@dataclass(frozen=True)
class ScatteredGradients(Moved):
    """A surface on which every size's valley is pushed by a random slope, as those of published sweeps are.

    A slope moves the optimum by the inverse Hessian: little in a steep valley, far along a flat ridge.
    """

    base: Synthetic
    seed: int
    scatter: float
    """Standard deviation of the slope, ln D per ln x."""

    def moved(self, n: float, _d: float) -> tuple[float, float]:
        return _pushed(self.base.curvature, self.scatter, self.seed, n)


@cache
def _pushed(
    curvature: tuple[float, float, float], scatter: float, seed: int, n: float
) -> tuple[float, float]:
    xx, xy, yy = curvature
    slope = scatter * _random_pair(seed, n)
    rate, batch = np.exp(np.linalg.solve([[xx, xy], [xy, yy]], slope))
    return float(rate), float(batch)


def _random_pair(seed: int, n: float) -> NDArray[np.float64]:
    """(2,) normal variables of a size."""
    return np.random.default_rng([seed, round(n)]).standard_normal(2)


@dataclass(frozen=True)
class Bending(Moved):
    """A surface whose exponents of N change with the size, so that no line over ln N holds its optima."""

    bends: tuple[float, float] = (0.05, 0.0)
    """Coefficients of (ln N)^2 in ln LR* and ln B*, counted from N = 2e8."""

    def moved(self, n: float, _d: float) -> tuple[float, float]:
        rate, batch = np.exp(np.array(self.bends) * np.log(n / 2e8) ** 2)
        return float(rate), float(batch)


@dataclass(frozen=True)
class BendingOverTokens(Moved):
    """A surface whose exponents of D change along every run, so that no line over ln D holds its optima."""

    bends: tuple[float, float] = (0.04, 0.0)
    """Coefficients of (ln D)^2 in ln LR* and ln B*, counted from `from_tokens`."""
    from_tokens: float = 8e9

    def moved(self, _n: float, d: float) -> tuple[float, float]:
        rate, batch = np.exp(np.array(self.bends) * np.log(d / self.from_tokens) ** 2)
        return float(rate), float(batch)


@dataclass(frozen=True)
class Saturating(Moved):
    """A surface whose best batch size rises fast early in training and then stays, as Merrill et al. 2505.23971 find."""

    half: float = 2e9
    """D at which B* is half of where it ends."""

    def moved(self, n: float, d: float) -> tuple[float, float]:
        ends_at = self.base.batch(n, 8e9) / self.base.batch(n, d)
        return 1.0, ends_at / (1.0 + self.half / d)


@dataclass(frozen=True)
class FollowingTheLoss(Moved):
    """A surface whose optima are powers of the least loss at N, D, as in the iso-loss laws: bent over ln N and ln D alike."""

    powers: tuple[float, float] = (5.6, -3.9)
    """Of L in LR* and B*, which are 1e-3 and 128 at 3 nats."""

    def moved(self, n: float, d: float) -> tuple[float, float]:
        rate, batch = self.base.rate(n, d), self.base.batch(n, d)
        least = self.base.loss(n, d, batch, rate) / 3.0
        return 1e-3 * least ** self.powers[0] / rate, 128.0 * least ** self.powers[1] / batch


@dataclass(frozen=True)
class Skewed(Moved):
    """A surface that is much steeper above the best learning rate than below: a cliff.

    The parabola's x^2 / 2 becomes (e^(s x) - 1 - s x) / s^2, of the same curvature at the optimum.
    """

    base: Synthetic
    skew: float = 1.5

    def moved(self, _n: float, _d: float) -> tuple[float, float]:
        return 1.0, 1.0

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        """Nats per token."""
        x, s = float(np.log(lr / self.rate(n, d))), self.skew
        excess = (np.exp(s * x) - 1.0 - s * x) / s**2 - 0.5 * x * x
        wasted = float(np.exp(-self.base.curvature[0] * excess))
        # Wasted tokens of the valley's asymmetric part act like fewer tokens at the same optimum.
        rest, at = self.base.loss(n, d, b, lr), self.base
        floor = at.irreducible + at.size_coefficient * n**-at.size_exponent
        return float(floor + (rest - floor) * wasted**-at.token_exponent)


@dataclass(frozen=True)
class CurvedBySize(Synthetic):
    """A surface whose valley becomes flatter with the size."""

    flattening: float = -0.2
    """Exponent of N in the curvature."""

    def curvature_at(self, n: float) -> tuple[float, float, float]:
        """Of q at a size."""
        xx, xy, yy = self.curvature
        factor = (n / 2e8) ** self.flattening
        return xx * factor, xy * factor, yy * factor


@dataclass(frozen=True)
class Grid:
    """What is trained: sizes with their tokens and a grid around their optimum."""

    sizes: Sequence[float] = (1e8, 3e8)
    tokens: Sequence[float] = (1e10, 2e10)
    rates: int = 3
    batches: int = 3
    step: float = np.log(2.0)
    evaluations: int = 30
    seen_from: float = 0.01
    """First evaluation, as a fraction of the tokens."""
    shift: tuple[float, float] = (0.0, 0.0)
    """Of the grid's centre from the optimum at the tokens' geometric middle, in ln LR and ln B."""


def synthetic_runs(
    surface: Surface,
    grid: Grid,
    rng: np.random.Generator,
    evaluation_noise: float = 0.0,
    run_noise: float = 0.0,
) -> list[Run]:
    runs = []
    for n, d in zip(grid.sizes, grid.tokens, strict=True):
        tokens = np.geomspace(grid.seen_from * d, d, grid.evaluations)
        middle = 0.5 * d
        for i in range(grid.rates):
            for j in range(grid.batches):
                lr = surface.rate(n, middle) * np.exp(
                    (i - (grid.rates - 1) / 2) * grid.step + grid.shift[0]
                )
                b = surface.batch(n, middle) * np.exp(
                    (j - (grid.batches - 1) / 2) * grid.step + grid.shift[1]
                )
                loss = np.array([surface.loss(n, t, b, lr) for t in tokens])
                loss = loss + evaluation_noise * rng.standard_normal(len(tokens))
                loss = loss + run_noise * rng.standard_normal()
                runs.append(Run(f"n{n:.3g}-lr{i}-b{j}", n, b, 2048, lr, tokens, loss))
    return runs
