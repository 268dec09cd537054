"""Runs that a table has twice, under two names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from isoloss.laws import Run, nominal_values, shared_if_copy

SETTINGS = ("params", "batch_size", "sequence_length", "learning_rate")


@dataclass(frozen=True)
class Copy:
    """Two runs of equal settings with losses that agree to six digits."""

    index: int
    original_index: int
    message: str
    """What to do about it."""


def find_copy(runs: Sequence[Run]) -> Copy | None:
    """The first run that repeats an earlier one of the same settings wherever both have a loss."""
    nominal = {name: nominal_values([getattr(run, name) for run in runs]) for name in SETTINGS}
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if run.tokens.size:
            settings = tuple(nominal[name][getattr(run, name)] for name in SETTINGS)
            groups[settings].append(index)
    found = [copy for group in groups.values() if (copy := _first_copy(runs, group))]
    return min(found, key=lambda copy: copy.index, default=None)


def _first_copy(runs: Sequence[Run], group: Sequence[int]) -> Copy | None:
    """The first one among runs of equal settings."""
    for index, other in ((i, j) for place, i in enumerate(group) for j in group[:place]):
        shared = shared_if_copy(runs[index], runs[other])
        if shared is not None:
            return Copy(index, other, _message(runs[index], runs[other], shared))
    return None


def _message(run: Run, original: Run, shared: int) -> str:
    """`shared` are the token counts that both have."""
    repeats = f"{run.name!r} repeats run {original.name!r}"
    if shared == len(run.tokens) == len(original.tokens):
        return f"{repeats} exactly"
    return (
        f"{repeats} at all {shared} token counts that both have: keep one of the two, "
        "or write the evaluations of both under one name"
    )
