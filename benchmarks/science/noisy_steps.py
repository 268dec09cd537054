"""A world of another make than the engine's: no valley is written into it, its optima come of noise and steps.

With u the learning rate over a size's usual one, S = D / (B x length) steps and B_n the batch size at which half of an
update is noise,

    L = E + A N^-a + G D^-b + P (S u / sqrt(1 + B_n / B))^-b + Q u B_n / (B + B_n) (1 + B_m / B) + R u^3

are, after what size and data bound, the progress of normalised updates, which noise shortens (McCandlish et al. 1812.06162),
the floor that a constant learning rate leaves, higher where a batch is too small for the optimizer's memory, and what too high a
learning rate breaks. B_n grows with the tokens. Optima are found numerically: they follow no exact power law, and valleys are
no parabolas.
"""

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from scipy.optimize import minimize

LENGTH = 2048
"""Tokens of a sequence."""
USUAL_SIZE, USUAL_TOKENS, USUAL_STEPS = 1e8, 1e10, 1.4e4
"""N and D at which the constants are meant, and steps times u there after which P is left."""


@dataclass(frozen=True)
class NoisySteps:
    """The surface; nats per token."""

    usual_rate: float = 2e-3
    """Learning rate of u = 1 at USUAL_SIZE; it falls as N^-0.5."""
    noise_batch: float = 200.0
    """B_n at USUAL_TOKENS, sequences; it grows as D^0.4."""
    memory_batch: float = 100.0
    """B_m, sequences."""
    floor: float = 0.006
    """Q."""
    breaking: float = 0.004
    """R."""

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        """Nats per token."""
        u = lr / (self.usual_rate * (n / USUAL_SIZE) ** -0.5)
        noise_batch = self.noise_batch * (d / USUAL_TOKENS) ** 0.4
        steps = d / (LENGTH * b) * u / np.sqrt(1.0 + noise_batch / b)
        left = 0.4 * (d / USUAL_TOKENS) ** -0.3 + 0.1 * (steps / USUAL_STEPS) ** -0.3
        floor = self.floor * u * noise_batch / (b + noise_batch) * (1.0 + self.memory_batch / b)
        size = 0.9 * (n / USUAL_SIZE) ** -0.3
        return float(1.7 + size + left + floor + self.breaking * u**3)

    def rate(self, n: float, d: float) -> float:
        """The best learning rate at N, D."""
        return self._best(n, d)[0]

    def batch(self, n: float, d: float) -> float:
        """The best batch size at N, D, sequences."""
        return self._best(n, d)[1]

    def _best(self, n: float, d: float) -> tuple[float, float]:
        usual = self.usual_rate * (n / USUAL_SIZE) ** -0.5
        return optimum(self, n, d, (usual, self.noise_batch / 2))


class Losses(Protocol):
    """What has losses."""

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        """Nats per token."""


@cache
def optimum(
    surface: Losses, n: float, d: float, start: tuple[float, float]
) -> tuple[float, float]:
    """(LR, B) of least loss, sought from a start; the surface is hashable."""

    def loss(place: np.ndarray) -> float:
        rate, batch = np.exp(place)
        return surface.loss(n, d, float(batch), float(rate))

    found = minimize(
        loss,
        np.log(start),
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-12, "maxiter": 4000},
    )
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))
