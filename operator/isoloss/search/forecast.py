"""How far above the leader a point's loss will end, from what both have reached.

Two runs of one size have the same tokens, data and shape of curve, so they are compared with each other: the
error of any curve's own extrapolation, which both share, drops out, and "a lower bound above the leader's
upper bound" is one bound, of the difference. It is carried to the end not in nats but as wasted tokens, the
ln of what the run has used over what the leader needed for the same loss: where the best learning rate and
batch size drift as powers of the tokens, that is a straight line in ln D.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isoloss import usual
from isoloss.laws import Run
from isoloss.search.model import Point
from isoloss.usual import SURELY

FEWEST_SHARE = 0.3
"""Share of the size's tokens below which no point is judged, as ranks that early do not last, and of those that runs have in common from
which on they tell how the waste changes."""
ENOUGH_FOR_SCATTER = 5


@dataclass(frozen=True)
class Excess:
    """Nats above the leader at the size's tokens."""

    mean: float
    deviation: float
    steepness: float
    """-dL/dlnD there, nats."""

    @property
    def low(self) -> float:
        """The lower bound, SURELY below the mean."""
        return self.mean - SURELY * self.deviation

    @property
    def risk(self) -> float:
        """Probability of ending below the leader, if errors are normal."""
        return 0.5 * math.erfc(self.mean / self.deviation / math.sqrt(2.0))


def leader_of(
    runs: Mapping[Point, Run], tokens: float, noise: float
) -> tuple[Point, dict[Point, Excess]]:
    """The point expected to end lowest at `tokens`, and every other's excess over it.

    `noise` is the standard deviation of a loss from seed to seed, nats. Raises ValueError without runs.
    Points without a common evaluation with the leader are left out.
    """
    if not runs:
        raise ValueError("there is no run to lead")
    leader = min(runs, key=lambda p: (_loss_at_common(runs, p), p))
    for _ in range(len(runs)):
        found = _excesses(leader, runs, tokens, noise)
        best = min(found, key=lambda p: (found[p].mean, p), default=leader)
        if best == leader or found[best].mean >= 0.0:
            return leader, found
        leader = best
    return leader, _excesses(leader, runs, tokens, noise)


def _loss_at_common(runs: Mapping[Point, Run], point: Point) -> float:
    """At the most tokens that all runs have reached."""
    shared = min(float(run.tokens[-1]) for run in runs.values())
    return float(np.interp(math.log(shared), np.log(runs[point].tokens), runs[point].losses))


def _excesses(
    leader: Point, runs: Mapping[Point, Run], tokens: float, noise: float
) -> dict[Point, Excess]:
    found = {p: excess(p, run, leader, runs[leader], tokens, noise) for p, run in runs.items()}
    return {p: e for p, e in found.items() if p != leader and e is not None}


def excess(
    point: Point, run: Run, leader: Point, best: Run, tokens: float, noise: float
) -> Excess | None:
    """How far `run` ends above `best`; None if they have no range of tokens in common."""
    low = max(run.tokens[0], best.tokens[0]) * 0.999
    high = min(run.tokens[-1], best.tokens[-1]) * 1.001
    at = np.log(run.tokens[(run.tokens >= low) & (run.tokens <= high)])
    if not len(at):
        return None
    at = at[at >= at[-1] + math.log(FEWEST_SHARE)]
    steepness = _steepness(best, float(at[-1]))
    waste = _waste(run, best, at, steepness)
    larger = math.log(point.batch_size / leader.batch_size)
    faster = math.log(point.learning_rate / leader.learning_rate)
    ahead = max(math.log(tokens) - float(at[-1]), 0.0)
    last, slope, slope_error, level_error = _line(
        at - at[-1],
        waste,
        -usual.CATCHES_UP * larger,
        usual.DRIFT_ERROR * (abs(larger) + abs(faster)),
        math.sqrt(2.0) * np.array([noise, usual.EVALUATION_NOISE]) / steepness,
    )
    waste_error = math.sqrt(
        level_error**2 + (ahead * slope_error) ** 2 + (ahead * usual.BENDS * last) ** 2
    )
    flatter = math.exp(-usual.FLATTENS * ahead)
    final = last + ahead * slope
    mean = flatter * _nats(best, float(at[-1]), final, steepness)
    below = flatter * _nats(best, float(at[-1]), final - waste_error, steepness)
    deviation = math.sqrt(
        2.0 * noise**2 + (mean - below) ** 2 + (usual.SCALE_ERROR * ahead * mean) ** 2
    )
    return Excess(mean, deviation, flatter * steepness)


def _steepness(run: Run, log_tokens: float) -> float:
    """-dL/dlnD of a run about its last e-fold before `log_tokens`, nats."""
    at = np.log(run.tokens)
    late = (at <= log_tokens + 1e-3) & (at >= log_tokens - 1.0)
    if late.sum() < 2:
        late = at <= log_tokens + 1e-3
    if late.sum() < 2:
        return usual.USUAL_TOKEN_SLOPE
    slope = -float(np.polyfit(at[late], run.losses[late], 1)[0])
    return max(slope, 0.1 * usual.USUAL_TOKEN_SLOPE)


def _waste(run: Run, best: Run, at: np.ndarray, steepness: float) -> np.ndarray:
    """(n,) ln of the run's tokens over those that the leader needed for the same losses, at ln D = `at`."""
    losses = np.interp(at, np.log(run.tokens), run.losses)
    falling = np.minimum.accumulate(best.losses)
    needed = np.interp(-losses, -falling, np.log(best.tokens))
    # Beyond the leader's own losses on either side, by its slope.
    needed += np.maximum(falling[-1] - losses, 0.0) / steepness
    needed -= np.maximum(losses - falling[0], 0.0) / steepness
    return np.asarray(at - needed)


def _nats(best: Run, log_tokens: float, waste: float, steepness: float) -> float:
    """Nats by which a run is above the leader at ln D after wasting so many ln tokens: the inverse of _waste."""
    at = np.log(best.tokens)
    back = log_tokens - max(waste, 0.0)
    here, there = np.interp([log_tokens, back], at, np.minimum.accumulate(best.losses))
    beyond = max(float(at[0]) - back, 0.0) + min(waste, 0.0)
    return float(there - here) + steepness * beyond


def _line(
    x: np.ndarray, y: np.ndarray, expected: float, spread: float, errors: np.ndarray
) -> tuple[float, float, float, float]:
    """(value at x = 0, slope, errors of slope and value); the slope is expected at `expected` ± `spread`.

    `errors` are those of y from run to run and from evaluation to evaluation.
    """
    scatter = float(errors[0])
    if len(x) >= ENOUGH_FOR_SCATTER:
        # Evaluations of one run share its noise: their scatter about a line is all that bends it.
        residuals = y - np.polyval(np.polyfit(x, y, 1), x)
        scatter = max(float(np.sqrt((residuals**2).sum() / (len(x) - 2))), float(errors[1]))
    middle, mean = float(x.mean()), float(y.mean())
    precision = float(((x - middle) ** 2).sum()) / scatter**2
    prior = 1.0 / max(spread, 1e-6) ** 2
    measured = float(((x - middle) * (y - mean)).sum()) / scatter**2
    slope = (measured + prior * expected) / (precision + prior)
    slope_error = 1.0 / math.sqrt(precision + prior)
    level_error = math.hypot(scatter / math.sqrt(len(x)), middle * slope_error)
    return mean - middle * slope, slope, slope_error, level_error
