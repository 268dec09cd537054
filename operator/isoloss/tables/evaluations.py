"""Rows of a log that are evaluations, and runs whose losses end in NaN."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isoloss.tables.cell_values import is_blank, is_written_nan
from isoloss.tables.formats import REQUIRED
from isoloss.tables.lookup import Lookup

RUN_STATES = ("State", "status")
"""Columns in which W&B and MLflow keep how a run ended, …"""
UNFINISHED = ("crashed", "failed", "killed", "running", "preempted", "preempting")
"""… and what they say of one that did not reach its end."""


def evaluations(cells: Mapping[str, Sequence[Any]]) -> tuple[list[int], int]:
    """Rows with a loss, and how many repeat another: a Trainer evaluates its last step twice."""
    kept: list[int] = []
    seen: set[tuple[str, ...]] = set()
    repeated = 0
    for index, loss in enumerate(cells["loss"]):
        if is_blank(loss):
            continue
        row = tuple(str(cells[name][index]) for name in REQUIRED)
        if row in seen:
            repeated += 1
            continue
        seen.add(row)
        kept.append(index)
    return kept, repeated


def without_missing(lookup: Lookup, losses: Sequence[Any], tokens: Sequence[Any]) -> Sequence[Any]:
    """Losses in which NaN is nothing, where some run has a number after it: no training comes back from NaN."""
    if not any(map(is_written_nan, losses)):
        return losses
    nan: dict[str, float] = {}
    last: dict[str, float] = {}
    ends: dict[str, tuple[float, bool]] = {}
    for index, (loss, count) in enumerate(zip(losses, tokens, strict=True)):
        at = lookup.number("tokens", index, count)
        if at is None or is_blank(loss):
            continue
        run = lookup.runs[index]
        is_nan = is_written_nan(loss)
        extremes, extreme = (nan, min) if is_nan else (last, max)
        extremes[run] = extreme(at, extremes.get(run, at))
        ends[run] = max((at, is_nan), ends.get(run, (at, is_nan)))
    if not any(last.get(run, at) > at for run, at in nan.items()):
        return losses
    ended = [run for run, (_, is_nan) in ends.items() if is_nan]
    if 0 < len(ended) < len(ends):
        names = ", ".join(ended[:5]) + (", ..." if len(ended) > 5 else "")
        lookup.warn(
            f"NaN was read as no loss, because numbers follow it in some runs. Runs that end in NaN: {len(ended)} ({names}). Mark those "
            "that diverged in a column diverged"
        )
    return [None if is_written_nan(loss) else loss for loss in losses]


def warn_of_unfinished(lookup: Lookup, kept: Iterable[int]) -> None:
    """Warn of runs that crashed or still run by what the tracker says of them: why, it does not say."""
    states = next((found for name in RUN_STATES for found in lookup.pool(name)), None)
    if states is None:
        return
    runs = {lookup.runs[i]: str(states.cells[i]).lower() for i in kept}
    ended = {run: state for run, state in runs.items() if state in UNFINISHED}
    if ended:
        names = ", ".join(sorted(ended)[:5]) + (", ..." if len(ended) > 5 else "")
        lookup.warn(
            f"{lookup.place(states)}: runs that did not finish ({', '.join(sorted({*ended.values()}))}): {len(ended)} ({names}). "
            "Their evaluations are used as they are: mark those that diverged in a column diverged, or leave them out (isoloss fit --exclude)"
        )


def diverged_runs(
    lookup: Lookup, losses: Sequence[Any], kept: Iterable[int]
) -> dict[str, list[str]]:
    """Runs whose loss was written as NaN or infinity have diverged; a number that is missing says nothing."""
    gone = {lookup.runs[i] for i in kept if is_written_nan(losses[i])}
    if not gone:
        return {}
    if len(gone) > 1 and gone == {lookup.runs[i] for i in kept}:
        first = next(i for i in kept if is_written_nan(losses[i]))
        message = f"every run has a loss of {losses[first]}: leave out rows without an evaluation"
        raise lookup.table.bad(first, "loss", message)
    names = ", ".join(sorted(gone)[:5]) + (", ..." if len(gone) > 5 else "")
    lookup.warn(f"runs with a loss of NaN or infinity, taken as diverged: {len(gone)} ({names})")
    return {"diverged": [str(run in gone).lower() for run in lookup.runs]}
