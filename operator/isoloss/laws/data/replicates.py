"""Runs of one configuration that differ only in their seed: averaged, and a measure of the noise.

Two runs of one size, batch size and learning rate with different losses at the same tokens are such
replicates if their seeds are known to differ, or as long as they differ by no more than seeds do. Annealed and constant schedules, or two corpora,
differ by more: those are refused, because their average would be the loss of neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.copies import SAME_TOKENS, shared_if_copy
from isoloss.laws.model import Refusal, RefusalReason, Run
from isoloss.laws.results import Exclusion
from isoloss.laws.run_noise import RunNoise

LARGEST_DIFFERENCE = 0.01
"""Largest difference of ln L between two seeds, if there are too few replicates to show what is usual in this
sweep."""
LARGEST_USUAL = 0.02
"""Upper limit of that difference in ln L, however much the replicates differ."""
TIMES_USUAL = 6.0
FEWEST_PAIRS = 3
THIRDS = 3
"""Parts of the shared tokens that are compared: schedules differ at the end before they do on average."""


@dataclass(frozen=True)
class Replicates:
    """One run in place of several, and how much they scatter."""

    run: Run
    squares: float = 0.0
    """Sum of squares of the runs' mean offsets in ln L over the last third of their shared tokens: young models differ
    by more than those that laws speak of."""
    freedom: int = 0
    """Degrees of freedom of that: runs less one."""
    late_squares: float = 0.0
    """Sum of squares of the runs' losses about their mean, nats^2, averaged over the last third of their shared tokens."""
    differences: tuple[tuple[str, str, float], ...] = ()
    """Pairs of names with the largest difference of ln L over a third of their shared tokens, if they are
    not known to be replicates."""

    @property
    def variance(self) -> float:
        """Variance of ln L of this average, estimated from its own replicates."""
        return self.squares / max(self.freedom, 1) / (self.freedom + 1)


def merge_replicates(group: Sequence[Run], excluded: list[Exclusion]) -> list[Replicates]:
    """Runs of one configuration, those that overlap averaged and those that repeat one another left out."""
    merged: list[list[Run]] = []
    for run in _without_copies(group, excluded):
        touching = [part for part in merged if any(_overlap(run, other) for other in part)]
        rest = [part for part in merged if not any(part is other for other in touching)]
        merged = [*rest, [*(other for part in touching for other in part), run]]
    return [_average(part, excluded) for part in merged]


def _without_copies(group: Sequence[Run], excluded: list[Exclusion]) -> list[Run]:
    """The runs in their order; of those that repeat one another, the one with the most evaluations."""
    if len(group) < 2:
        return list(group)
    kept: list[int] = []
    for index in sorted(range(len(group)), key=lambda i: -len(group[i].tokens)):
        run = group[index]
        copied = next((i for i in kept if shared_if_copy(run, group[i]) is not None), None)
        if copied is None:
            kept.append(index)
        else:
            reason = f"the same evaluations as run {group[copied].name}"
            excluded.append(Exclusion(run.name, reason))
    return [group[index] for index in sorted(kept)]


def largest_difference(replicates: Sequence[Replicates]) -> float:
    """Largest difference of ln L between two seeds of one configuration: beyond it something else differs."""
    found = [difference for part in replicates for _, _, difference in part.differences]
    if len(found) < FEWEST_PAIRS:
        return LARGEST_DIFFERENCE
    return float(np.clip(TIMES_USUAL * np.median(found), LARGEST_DIFFERENCE, LARGEST_USUAL))


def refuse_differences(replicates: Sequence[Replicates]) -> Refusal | None:
    """Refuse runs that are no replicates: the worst pair of them all, if it differs too much."""
    limit = largest_difference(replicates)
    pairs = [(pair, part.run) for part in replicates for pair in part.differences]
    if not pairs:
        return None
    (one, other, difference), run = max(pairs, key=lambda found: found[0][2])
    if difference <= limit:
        return None
    return Refusal(
        RefusalReason.DUPLICATED_RUN,
        f"Runs {one} and {other} have the same size, batch size and learning rate and cover the same tokens, "
        f"but their losses differ by {difference:.2%}; seeds of one configuration differ by at most {limit:.2%}. "
        "If they differ in schedule (annealed or not), horizon or data, fit them separately; if in nothing but the seed, "
        "name it in the column seed; otherwise keep one of them.",
        {
            "params": run.params,
            "batch_size": run.batch_size,
            "learning_rate": run.learning_rate,
            "difference": difference,
            "limit": limit,
        },
    )


def measured_noise(replicates: Sequence[Replicates]) -> RunNoise | None:
    """What they show of the noise between seeds; None if nothing was trained twice."""
    freedom = sum(part.freedom for part in replicates)
    if not freedom:
        return None
    return RunNoise(sum(part.late_squares for part in replicates), freedom)


def replicate_warning(replicates: Sequence[Replicates]) -> str | None:
    """What was averaged, in a sentence; None if nothing was."""
    averaged = [part for part in replicates if part.freedom]
    if not averaged:
        return None
    noise = np.sqrt(sum(p.squares for p in averaged) / sum(p.freedom for p in averaged))
    return (
        f"{'1 configuration was' if len(averaged) == 1 else f'{len(averaged)} configurations were'} trained more than "
        "once: the losses are averaged, and differ "
        f"by {noise:.2%} from seed to seed."
    )


def _are_stated(run: Run, other: Run) -> bool:
    """Whether they are known to differ in nothing but their seed."""
    known = None not in (run.configuration, run.seed, other.seed)
    return known and run.configuration == other.configuration and run.seed != other.seed


def _overlap(run: Run, other: Run) -> bool:
    """Whether both have losses of this configuration at the same tokens."""
    if len(run.tokens) == 0 or len(other.tokens) == 0:
        return run.tokens.shape == other.tokens.shape
    if len(run.tokens) == 1 and len(other.tokens) == 1:
        return bool(abs(np.log(run.tokens[0] / other.tokens[0])) < SAME_TOKENS)
    return bool(run.tokens[0] <= other.tokens[-1] and other.tokens[0] <= run.tokens[-1])


def _average(part: list[Run], excluded: list[Exclusion]) -> Replicates:
    """One run at the mean of the others' losses; seeds that diverged when others did not are left out."""
    steady = [run for run in part if _is_steady(run)]
    if not steady:
        excluded.extend(
            Exclusion(run.name, f"another seed of run {part[0].name}, which diverged as well")
            for run in part[1:]
        )
        return Replicates(part[0])
    excluded.extend(
        Exclusion(run.name, f"diverged, while run {steady[0].name} with the same settings did not")
        for run in part
        if not _is_steady(run)
    )
    return Replicates(steady[0]) if len(steady) == 1 else _mean(steady)


def _is_steady(run: Run) -> bool:
    return not run.diverged and len(run.tokens) > 0


def _mean(runs: list[Run]) -> Replicates:
    tokens = _distinct(np.concatenate([run.tokens for run in runs]))
    values = np.array([_at(run, tokens) for run in runs])
    shared = np.isfinite(values).all(axis=0)
    offsets = np.zeros(len(runs))
    if shared.any():
        offsets = (values[:, shared] - values[:, shared].mean(axis=0)).mean(axis=1)
    # Once a run has ended, the others' own offsets must not show as a step.
    losses = np.exp(np.nanmean(values - offsets[:, None], axis=0))
    there = np.isfinite(losses)
    run = replace(
        runs[0],
        tokens=tokens[there],
        losses=losses[there],
        finished=all(run.finished for run in runs),
    )
    pairs = tuple(
        (runs[i].name, runs[j].name, _difference(values[i, shared], values[j, shared]))
        for i, j in combinations(range(len(runs)), 2)
        if shared.any() and not _are_stated(runs[i], runs[j])
    )
    freedom = len(runs) - 1 if shared.any() else 0
    if not freedom:
        return Replicates(run)
    late = np.array_split(values[:, shared], min(THIRDS, int(shared.sum())), axis=1)[-1]
    lasting = (late - late.mean(axis=0)).mean(axis=1)
    losses_late = np.exp(late)
    late_squares = ((losses_late - losses_late.mean(axis=0)) ** 2).sum(axis=0).mean()
    return Replicates(run, float((lasting**2).sum()), freedom, float(late_squares), pairs)


def _distinct(tokens: Array) -> Array:
    """Ascending, those that are one count merged."""
    ordered = np.unique(tokens)
    apart = np.diff(np.log(ordered)) > SAME_TOKENS
    return np.asarray(ordered[np.concatenate([[True], apart])], dtype=float)


def _at(run: Run, tokens: Array) -> Array:
    """ln L at these tokens, NaN outside the run."""
    near = np.log(tokens)
    own = np.log(run.tokens)
    inside = (near >= own[0] - SAME_TOKENS) & (near <= own[-1] + SAME_TOKENS)
    return np.where(inside, np.interp(near, own, np.log(run.losses)), np.nan)


def _difference(one: Array, other: Array) -> float:
    """Largest mean difference over a third of the shared tokens."""
    parts = np.array_split(one - other, min(THIRDS, len(one)))
    return max(float(abs(part.mean())) for part in parts)
