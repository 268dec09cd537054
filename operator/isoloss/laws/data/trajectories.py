"""From runs to smooth trajectories, and from those to the tokens that a loss needs.

Runs of one configuration (N, B, LR) at several token counts, as in published tables of final
losses, are one trajectory here. The tokens to a loss come from a local straight line in
(ln D, ln L) over several evaluations: a first crossing would be early by the noise.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from isoloss.laws.arrays import Array, Flags, Indices
from isoloss.laws.data.copies import nominal_values
from isoloss.laws.data.evaluations import Evaluations
from isoloss.laws.data.replicates import (
    Replicates,
    measured_noise,
    merge_replicates,
    refuse_differences,
    replicate_warning,
)
from isoloss.laws.data.smoothing import DENSE, smoothed, smoother_at
from isoloss.laws.model import InvalidRunError, Refusal, Run
from isoloss.laws.results import Exclusion
from isoloss.laws.run_noise import RunNoise
from isoloss.usual import FEWEST_RUNS

EARLY_FRACTION = 0.04
"""Dense trajectories are used from this fraction of their size's longest run on; warm-up comes before."""
LARGEST_LOSS_RATIO = 1.5
"""A final loss this many times the size's median means a diverged run, even if it is not marked."""
RISE_NATS = 1.0
"""So does a loss this far above the run's lowest at its end. The trainer calls a lasting rise by as much
divergence; smoothed and not increasing, it would look like a run that learns nothing more."""


@dataclass(frozen=True)
class Trajectory:
    """Loss over tokens of one configuration, smoothed."""

    names: tuple[str, ...]
    params: float
    batch_size: float
    learning_rate: float
    flops_per_token: float
    log_tokens: Array
    """Increasing."""
    log_losses: Array
    """As evaluated; means of evaluations if these are many."""
    smooth: Array
    """ln L, smoothed, not increasing."""
    residuals: Array
    """Errors of `log_losses`, estimated from the trajectory."""
    end: float
    """ln D of the last evaluation, or of the divergence: losses not reached need more tokens."""
    diverged: bool
    sources: Indices
    """(n,) which of `names` an evaluation is from."""
    replicate_squares: float = 0.0
    """Variance of ln L, as replicates of this configuration show it for their average, times its freedom."""
    replicate_freedom: int = 0

    @property
    def name(self) -> str:
        """The first run's name stands for the configuration."""
        return self.names[0]

    @property
    def usable(self) -> bool:
        """Whether there is a curve to read tokens from."""
        return len(self.log_tokens) > 0

    @property
    def smoother(self) -> Array:
        """(n, n): smooth = smoother @ log_losses before it was made monotone."""
        return smoother_at(self.log_tokens)


@dataclass(frozen=True)
class Collected:
    """All trajectories of a fit, what was left out, and what forbids a fit altogether."""

    trajectories: tuple[Trajectory, ...]
    excluded: tuple[Exclusion, ...]
    refusals: tuple[Refusal, ...]
    warnings: tuple[str, ...] = ()
    run_noise: RunNoise | None = None
    """None: nothing was trained with two seeds."""
    made: Mapping[tuple[object, ...], tuple[Trajectory, int]] = field(default_factory=dict)
    """The trajectories, and how many evaluations of each are a bound alone, by what they follow from."""


def has_few_runs(trajectories: Sequence[Trajectory]) -> str | None:
    """What to train if no size has the runs that show a minimum, however often they were evaluated; None if one has."""
    most = max(Counter(t.params for t in trajectories if t.usable).values(), default=0)
    if not 0 < most < FEWEST_RUNS:
        return None
    return (
        f"No size has more than {most} settings, and a minimum takes at least {FEWEST_RUNS}: train more learning rates and batch "
        "sizes of each size."
    )


def validate_run(run: Run) -> None:
    """Raise InvalidRunError for an impossible number."""
    for name in ("params", "batch_size", "sequence_length", "learning_rate"):
        value = getattr(run, name)
        if not (np.isfinite(value) and value > 0):
            raise InvalidRunError(run.name, name, f"is {value}, not positive and finite")
    if run.tokens.shape != run.losses.shape or run.tokens.ndim != 1:
        raise InvalidRunError(run.name, "losses", "and tokens differ in length")
    if not (np.isfinite(run.tokens).all() and (run.tokens > 0).all()):
        raise InvalidRunError(run.name, "tokens", "are not all positive and finite")
    if (np.diff(run.tokens) < 0).any():
        raise InvalidRunError(run.name, "tokens", "are not in increasing order")
    finite = run.losses[np.isfinite(run.losses)]
    if (finite <= 0).any():
        raise InvalidRunError(run.name, "losses", "are not all positive")
    if len(finite) < len(run.losses) and not run.diverged:
        raise InvalidRunError(
            run.name, "losses", "are not all finite, and the run is not marked as diverged"
        )
    if run.flops_per_token is not None and not (
        np.isfinite(run.flops_per_token) and run.flops_per_token > 0
    ):
        raise InvalidRunError(run.name, "flops_per_token", "is not positive and finite")


def collect(runs: Sequence[Run], others: Collected | None = None) -> Collected:
    """Group the runs by configuration and smooth each; runs in any order give the same result.

    `others` is what was collected of nearly the same runs: their trajectories are taken, not made again.
    """
    for run in () if others else runs:
        validate_run(run)
    runs = _on_nominal_values(runs)
    groups: dict[tuple[float, float, float], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda r: (r.params, r.batch_size, r.learning_rate, r.name)):
        groups[run.params, run.batch_size, run.learning_rate].append(run)
    longest = _longest_tokens(runs)
    limits = _loss_limits(runs)
    known = others.made if others else {}
    made: dict[tuple[object, ...], tuple[Trajectory, int]] = {}
    excluded: list[Exclusion] = []
    replicates: list[Replicates] = []
    for group in groups.values():
        merged = merge_replicates(group, excluded)
        replicates += merged
        first = merged[0].run
        single = any(len(part.run.losses) == 1 for part in merged)
        follows = longest[first.params], limits.get(first.params, np.inf) if single else np.inf
        key = (
            first.params,
            first.batch_size,
            first.learning_rate,
            *follows,
            *(r.name for r in group),
        )
        made[key] = known.get(key) or _trajectory(merged, *follows)
        if bounds := made[key][1]:
            reason = f"evaluations after divergence are used as a bound: {bounds}"
            excluded.append(Exclusion(first.name, reason))
    refusal, warning = refuse_differences(replicates), replicate_warning(replicates)
    return Collected(
        tuple(trajectory for trajectory, _ in made.values()),
        tuple(excluded),
        () if refusal is None else (refusal,),
        () if warning is None else (warning,),
        measured_noise(replicates),
        made,
    )


def _on_nominal_values(runs: Sequence[Run]) -> list[Run]:
    """Runs with sizes, batch sizes and learning rates that differ by rounding made equal.

    Two spellings of one learning rate would otherwise look like two lines of the grid, and the noise
    between them like curvature.
    """
    params, batches, rates = (
        nominal_values([getattr(run, name) for run in runs])
        for name in ("params", "batch_size", "learning_rate")
    )
    return [
        replace(
            run,
            params=params[run.params],
            batch_size=batches[run.batch_size],
            learning_rate=rates[run.learning_rate],
        )
        if (run.params, run.batch_size, run.learning_rate)
        != (params[run.params], batches[run.batch_size], rates[run.learning_rate])
        else run
        for run in runs
    ]


def _longest_tokens(runs: Sequence[Run]) -> dict[float, float]:
    longest: dict[float, float] = {}
    for run in runs:
        if len(run.tokens):
            longest[run.params] = max(longest.get(run.params, 0.0), float(run.tokens[-1]))
    return {run.params: longest.get(run.params, 0.0) for run in runs}


def _loss_limits(runs: Sequence[Run]) -> dict[float, float]:
    finals: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        if not run.diverged and len(run.losses):
            finals[run.params].append(float(run.losses[-1]))
    return {size: LARGEST_LOSS_RATIO * float(np.median(own)) for size, own in finals.items()}


def _trajectory(parts: list[Replicates], longest: float, limit: float) -> tuple[Trajectory, int]:
    """Of one configuration, and how many of its evaluations tell no more than that it diverged.

    `longest` are the most tokens of a run of its size, `limit` is the loss above which a single one has diverged.
    """
    group = [part.run for part in parts]
    first = group[0]
    tokens = np.concatenate([run.tokens for run in group])
    losses = np.concatenate([run.losses for run in group])
    diverged_at = np.concatenate([_diverged(run, limit) for run in group])
    sources = np.concatenate([np.full(len(run.tokens), i) for i, run in enumerate(group)])
    order = np.argsort(tokens, kind="stable")
    tokens, losses, diverged_at = tokens[order], losses[order], diverged_at[order]
    diverged = bool(diverged_at.any()) or any(run.diverged for run in group)
    end = float(np.log(tokens[-1])) if len(tokens) else -np.inf
    keep = ~diverged_at
    if np.count_nonzero(np.diff(tokens[keep])) + 1 >= DENSE:
        keep &= tokens >= EARLY_FRACTION * longest
    with np.errstate(invalid="ignore"):
        log_losses = np.log(losses)
    every = Evaluations(
        np.log(tokens),
        log_losses,
        sources[order].astype(np.intp),
    )
    kept = every.where(keep).at_distinct_tokens().binned()
    smooth, residuals = smoothed(kept.log_tokens, kept.log_losses)
    trajectory = Trajectory(
        names=tuple(run.name for run in group),
        params=first.params,
        batch_size=first.batch_size,
        learning_rate=first.learning_rate,
        flops_per_token=first.flops_per_token or 6.0 * first.params,
        log_tokens=kept.log_tokens,
        log_losses=kept.log_losses,
        smooth=smooth,
        residuals=residuals,
        end=end,
        diverged=diverged,
        sources=kept.sources,
        replicate_squares=sum(part.variance * part.freedom for part in parts),
        replicate_freedom=sum(part.freedom for part in parts),
    )
    return trajectory, int(diverged_at.sum())


def _diverged(run: Run, limit: float) -> Flags:
    """(evaluations,) that show no more than that the run diverged."""
    bad = ~np.isfinite(run.losses)
    if len(run.losses) == 0:
        return bad
    if len(run.losses) == 1:
        return bad | run.diverged | (np.nan_to_num(run.losses, nan=np.inf) > limit)
    best = int(np.nanargmin(np.where(bad, np.inf, run.losses)))
    if run.diverged or run.losses[-1] > run.losses[best] + RISE_NATS:
        bad = bad | (np.arange(len(run.losses)) > best)
    return bad
