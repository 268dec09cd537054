"""Runs that a table has twice, under two names."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from isoloss.laws import Run, nominal_values, shared_if_copy
from isoloss.tables.formats import SETTINGS, BadTable

Place: TypeAlias = tuple[str, int]
"""The table of a run, and its first row there."""


def refuse_copies(runs: Sequence[Run], places: Sequence[Place]) -> None:
    """Raise BadTable for the first run that repeats an earlier one of the same settings: losses agree to six digits wherever both
    have one."""
    nominal = {name: nominal_values([getattr(run, name) for run in runs]) for name in SETTINGS}
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if run.tokens.size:
            groups[tuple(nominal[name][getattr(run, name)] for name in SETTINGS)].append(index)
    found = [copy for group in groups.values() if (copy := _first_copy(runs, group))]
    if not found:
        return
    index, earlier, shared = min(found)
    run, original = runs[index], runs[earlier]
    (source, row), (other, _) = places[index], places[earlier]
    message = f"{run.name!r} repeats run {original.name!r}"
    if shared == len(run.tokens) == len(original.tokens):
        message += " exactly"
    else:
        message += (
            f" at all {shared} token counts that both have: keep one of the two, "
            "or write the evaluations of both under one name"
        )
    if other != source:
        message += f" (it is in {other})"
    raise BadTable(source, message, row=row, column="run")


def _first_copy(runs: Sequence[Run], group: Sequence[int]) -> tuple[int, int, int] | None:
    """Of runs of equal settings the first that repeats another, that one, and how many token counts both have."""
    for index, other in ((i, j) for place, i in enumerate(group) for j in group[:place]):
        shared = shared_if_copy(runs[index], runs[other])
        if shared is not None:
            return index, other, shared
    return None
