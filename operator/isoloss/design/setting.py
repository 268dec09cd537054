"""What is asked and planned, and what is taken for granted of losses about an optimum before runs show it.

Batch sizes are sequences, of any length as long as it is one. Losses are wasted ln D: the share of tokens that a worse learning
rate or batch size throws away (laws/data/cells.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isoloss import usual
from isoloss.laws import Array, OptimumTrends, Trend

FIRST_SHARE = 0.05
"""Share of its tokens from which on a run is evaluated, if it does not say."""


@dataclass(frozen=True)
class Target:
    """The run that is to be answered for."""

    params: float
    """Active parameters."""
    tokens: float
    """Of a run from scratch with its compute."""

    @property
    def flops(self) -> float:
        """At 6 for each parameter and token."""
        return 6.0 * self.params * self.tokens

    def __post_init__(self) -> None:
        """Raise ValueError for what is no run."""
        _require_positive(self, "params", "tokens", "flops")


def centre_below(target: Target) -> tuple[float, float]:
    """(ln N, ln D) from which designs for the target are compared: the same for all of them, and about where their runs are."""
    return math.log(target.params) - 3.0, math.log(target.tokens) - 2.0


@dataclass(frozen=True)
class PlannedRun:
    """A run that may be trained. Repeats with other seeds are further runs."""

    params: float
    """Active parameters."""
    batch_size: float
    learning_rate: float
    tokens: float
    first_tokens: float | None = None
    """Of its first evaluation; None: a twentieth of `tokens`. As many as `tokens`: its end alone is known."""

    def __post_init__(self) -> None:
        """Raise ValueError for what is no run."""
        _require_positive(self, "params", "batch_size", "learning_rate", "tokens")


@dataclass(frozen=True)
class Setting:
    """Where optima are expected, and how sharply losses show them."""

    optimum: OptimumTrends
    """Runs are read by their distance from it; how far it may be off is Knowledge's."""
    curvature: Array = field(default_factory=lambda: usual.USUAL_CURVATURE * np.eye(2))
    """(2, 2) of wasted ln D over (ln LR, ln B)."""
    run_noise: float = usual.USUAL_RUN_NOISE / usual.USUAL_SLOPE
    """Standard deviation of what all evaluations of a run have in common, wasted ln D."""
    evaluation_noise: float = usual.USUAL_MISFIT + usual.EVALUATION_NOISE / usual.USUAL_TOKEN_SLOPE
    """Standard deviation of each evaluation besides."""

    @property
    def scatter(self) -> Array:
        """(2, 2) covariance of a size's optimum about any law of N and D."""
        turn = np.linalg.inv(self.curvature)
        steep = usual.STEEP_SCATTER**2 * np.diag(self.curvature @ self.curvature)
        slopes = np.diag(usual.FLAT_SCATTER**2 + steep)
        return np.asarray(turn @ slopes @ turn.T, dtype=float)

    def wasted(self, covariance: Array) -> float:
        """ln D that an answer whose errors have these second moments (2, 2) is expected to waste: tr(H S) / 2."""
        return 0.5 * float(np.trace(self.curvature @ covariance))

    def at_optimum(self, params: float, tokens: float) -> tuple[float, float]:
        """(learning rate, batch size) that are expected to be best."""
        rate, batch = self.optimum.at(math.log(params), math.log(tokens))
        return math.exp(float(rate)), math.exp(float(batch))

    @staticmethod
    def usual() -> Setting:
        """Without any run. Where the optimum is does not matter to what runs about it tell, only how it moves along a run: as published
        exponents have it, and over sizes by them as well."""
        of_params, of_tokens = (float(each) for each in usual.USUAL_BATCH_EXPONENTS)
        return Setting(
            OptimumTrends(Trend(0.0, 0.0, 0.0), Trend(0.0, of_params, of_tokens), 0.0, 0.0)
        )


def _require_positive(run: Target | PlannedRun, *names: str) -> None:
    """Raises ValueError."""
    for name in names:
        value = getattr(run, name)
        if not (math.isfinite(value) and value > 0.0):
            raise ValueError(f"{name}: must be positive and finite, not {value}")


def grid_about(
    setting: Setting,
    params: float,
    tokens: float,
    lines: int,
    *,
    first_tokens: float | None = None,
    factor: float = usual.USUAL_STEP,
) -> list[PlannedRun]:
    """`lines` learning rates times as many batch sizes about the optimum that is expected at the end of runs."""
    rate, batch = setting.at_optimum(params, tokens)
    factors = [factor ** (k - (lines - 1) / 2) for k in range(lines)]
    return [
        PlannedRun(params, batch * b, rate * r, tokens, first_tokens)
        for b in factors
        for r in factors
    ]


def token_slope(tokens: float) -> float:
    """-dL/dlnD, nats, that runs usually have at so many tokens."""
    return float(usual.USUAL_TOKEN_SLOPE * (tokens / usual.USUAL_SLOPE_TOKENS) ** -usual.FLATTENS)


def usual_ends(sizes: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(intercept, slope) of ln D at the end of a size's runs over ln N; the slope is between none and that of equal tokens
    per parameter, as in laws/surface/joint_fit.py."""
    log_params, ends = np.log(np.array(sizes, dtype=float)).T
    spread = float(log_params.max() - log_params.min())
    slope = float(np.polyfit(log_params, ends, 1)[0]) if spread > 1e-9 else 0.0
    slope = float(np.clip(slope, 0.0, 1.0))
    return float(np.mean(ends - slope * log_params)), slope
