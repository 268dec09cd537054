"""One run under two names: it would count as a second seed, and say that seeds do not differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from isoloss.laws import Run

FEWEST_SHARED = 2
"""Token counts with equal losses that make a copy of a part: at a single one, rounded losses can be equal by chance."""

Evaluation: TypeAlias = tuple[float, float]
"""Tokens and loss."""


@dataclass(frozen=True)
class Copy:
    """Two runs of equal settings with equal losses."""

    index: int
    original_index: int
    run: Run
    original: Run
    shared: int
    """Token counts that both have."""

    @property
    def message(self) -> str:
        """What to do about it."""
        repeats = f"{self.run.name!r} repeats run {self.original.name!r}"
        if self.shared == len(self.run.tokens) == len(self.original.tokens):
            return f"{repeats} exactly"
        return (
            f"{repeats} at all {self.shared} token counts that both have: keep one of the two, "
            "or write the evaluations of both under one name"
        )


def find_copy(runs: Sequence[Run]) -> Copy | None:
    """The first run that repeats an earlier one of the same settings wherever both have a loss."""
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if run.tokens.size:
            settings = (run.params, run.batch_size, run.sequence_length, run.learning_rate)
            groups[settings].append(index)
    found = [copy for group in groups.values() if (copy := _first_copy(runs, group))]
    return min(found, key=lambda copy: copy.index, default=None)


def _first_copy(runs: Sequence[Run], group: Sequence[int]) -> Copy | None:
    """The first one among runs of equal settings."""
    holders: dict[Evaluation, list[int]] = defaultdict(list)
    for index in group if len(group) > 1 else ():
        run = runs[index]
        equal = Counter(other for each in _evaluations(run) for other in holders[each])
        for other, shared in equal.items():
            if _is_copy(run, runs[other], shared):
                return Copy(index, other, run, runs[other], shared)
        for each in _evaluations(run):
            holders[each].append(index)
    return None


def _evaluations(run: Run) -> Iterator[Evaluation]:
    return zip(run.tokens.tolist(), run.losses.tolist(), strict=True)


def _is_copy(run: Run, other: Run, equal: int) -> bool:
    """Whether so many equal evaluations are all that both have in common."""
    if equal == len(run.tokens) == len(other.tokens):
        return True
    return equal >= FEWEST_SHARED and equal == len(np.intersect1d(run.tokens, other.tokens))
