"""Synthetic sweeps whose truth is known: exact laws, scattered optima, soft ridges, asymmetric valleys, laws that bend over sizes or tokens, noisy steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.science.noisy_steps import NoisySteps
from isoloss.laws import Run
from tests.support import synthetic

RUN_NOISE = 0.0015
EVALUATION_NOISE = 0.0005
STEEP = (0.45, 0.15, 0.30)
SOFT = (0.17, 0.09, 0.15)
"""Curvatures of a flat, tilted valley: 0.07 along the ridge, 0.25 across."""
PUBLISHED_SCATTER = 0.016
"""Of a size's gradient, ln D per ln x, as in the published sweeps."""


@dataclass(frozen=True)
class Layout:
    """Sizes with their tokens, and a grid of factors about the first optimum."""

    sizes: tuple[float, ...] = (1e8, 2e8, 4e8)
    tokens: tuple[float, ...] = (8e9, 1.2e10, 2e10)
    rates: int = 5
    batches: int = 5
    step: float = float(np.log(2.0))
    evaluations: int = 30


WIDE = Layout()
SMALL = Layout(rates=3, batches=3)
TWO = Layout(sizes=(1e8, 4e8), tokens=(8e9, 2e10))
ONE = Layout(sizes=(2e8,), tokens=(1.2e10,))
MANY = Layout(sizes=(5e7, 1e8, 2e8, 4e8, 8e8), tokens=(5e9, 8e9, 1.2e10, 2e10, 3e10))


def surface(shape: str, seed: int) -> synthetic.Valley:
    """One of SHAPES; the seed scatters the optima of some."""
    return _surfaces(seed)[shape]


def _surfaces(seed: int) -> Mapping[str, synthetic.Valley]:
    base = synthetic.Synthetic(
        rate_at=(1.2e-3, -0.4, 0.10), batch_at=(128.0, -0.05, 0.40), curvature=STEEP
    )
    return {
        "exact": base,
        "scattered": synthetic.ScatteredGradients(base, seed, PUBLISHED_SCATTER),
        "soft": synthetic.ScatteredGradients(
            replace(base, curvature=SOFT), seed, PUBLISHED_SCATTER
        ),
        "skewed": synthetic.Skewed(base),
        "bending": synthetic.Bending(base),
        "turning": synthetic.BendingOverTokens(base),
        "following": synthetic.FollowingTheLoss(base),
        "saturating": synthetic.Saturating(base),
        "flattening": synthetic.CurvedBySize(
            rate_at=base.rate_at, batch_at=base.batch_at, curvature=STEEP
        ),
        "noisy steps": NoisySteps(),
    }


SHAPES = tuple(_surfaces(0))


def runs_on(
    truth: synthetic.Valley, layout: Layout, seed: int, *, cliff: float = np.inf
) -> tuple[Run, ...]:
    """The sweep's runs, with noise of every run and evaluation.

    Each size's grid is centred within half a step of its optimum at the end. Runs with a learning rate
    more than `cliff` (ln) above the optimum diverge halfway.
    """
    rng = np.random.default_rng([seed, 17])
    runs = []
    for n, d in zip(layout.sizes, layout.tokens, strict=True):
        tokens = np.geomspace(0.02 * d, d, layout.evaluations)
        off = rng.uniform(-0.5, 0.5, 2) * layout.step
        for i in range(layout.rates):
            for j in range(layout.batches):
                x = (i - (layout.rates - 1) / 2) * layout.step + off[0]
                y = (j - (layout.batches - 1) / 2) * layout.step + off[1]
                lr, b = truth.rate(n, d) * np.exp(x), truth.batch(n, d) * np.exp(y)
                exact = np.array([truth.loss(n, t, b, lr) for t in tokens])
                losses = exact + RUN_NOISE * rng.standard_normal()
                losses += EVALUATION_NOISE * rng.standard_normal(len(tokens))
                stop = layout.evaluations // 2 if x > cliff else layout.evaluations
                runs.append(
                    Run(
                        f"n{n:.3g}-lr{i}-b{j}",
                        n,
                        float(b),
                        2048,
                        float(lr),
                        tokens[:stop],
                        losses[:stop],
                        diverged=x > cliff,
                    )
                )
    return tuple(runs)


def token_slope(truth: synthetic.Valley, n: float, d: float) -> float:
    """-dL/dlnD of the least loss at (N, D), nats."""
    least = [
        truth.loss(n, tokens, truth.batch(n, tokens), truth.rate(n, tokens))
        for tokens in (d / 1.1, d * 1.1)
    ]
    return float(least[0] - least[1]) / float(2.0 * np.log(1.1))


@dataclass(frozen=True)
class SyntheticJudge:
    """The truth at one (N, D)."""

    truth: synthetic.Valley
    n: float
    d: float

    @property
    def vertex(self) -> np.ndarray:
        """(ln LR, ln B)."""
        return np.log([self.truth.rate(self.n, self.d), self.truth.batch(self.n, self.d)])

    @property
    def vertex_error(self) -> np.ndarray:
        """None: the truth is known."""
        return np.zeros(2)

    def regret(self, lr: float, b: float) -> float:
        """Nats above the least loss."""
        best = self.truth.loss(
            self.n, self.d, self.truth.batch(self.n, self.d), self.truth.rate(self.n, self.d)
        )
        return self.truth.loss(self.n, self.d, b, lr) - best
