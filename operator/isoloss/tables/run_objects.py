"""Runs that were never cells of a table, checked as those of a table are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from isoloss.laws import InvalidRunError, Run
from isoloss.tables.cells import Numbers
from isoloss.tables.formats import SETTINGS, BadTable, Table
from isoloss.tables.grouping import check_whole_table
from isoloss.tables.units import check_units, large_rates_warning

SOURCE = "list of runs"
"""What warnings call them."""
FIELDS = {
    "loss": "losses",
    "flops": "flops_per_token",
    "bytes": "bytes_per_token",
}
"""Where a field is not named as its column."""


def check_runs(runs: Sequence[Run]) -> tuple[str, ...]:
    """Warnings about numbers that may be in another unit. Raises InvalidRunError for one that must be.

    What no arithmetic on units shows, such as tokens out of order, is left to the fit.
    """
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            raise InvalidRunError(name, "name", f"is that of {count} runs")
    trained = [_evaluated(run) for run in runs if run.tokens.shape == run.losses.shape]
    trained = [run for run in trained if run.tokens.size]
    if not trained:
        return ()
    numbers, rows_of = _numbers_of(trained)
    try:
        check_units(numbers)
        check_whole_table(numbers, rows_of)
    except BadTable as error:
        column = error.column or ""
        name = numbers.names[error.row or 0]
        raise InvalidRunError(name, FIELDS.get(column, column), error.message) from error
    return (*numbers.warnings, *filter(None, [large_rates_warning(trained, SOURCE)]))


def _evaluated(run: Run) -> Run:
    """Without evaluations that have no loss."""
    seen = np.isfinite(run.losses)
    return replace(run, tokens=run.tokens[seen], losses=run.losses[seen])


def _numbers_of(runs: Sequence[Run]) -> tuple[Numbers, dict[str, list[int]]]:
    """A row for each evaluation, and those of each run."""
    counts = [run.tokens.size for run in runs]
    ends = np.cumsum([0, *counts]).tolist()
    tokens = np.concatenate([run.tokens for run in runs])
    values = {
        **{
            name: np.repeat([float(getattr(run, name)) for run in runs], counts)
            for name in SETTINGS
        },
        "tokens": tokens,
        "loss": np.concatenate([run.losses for run in runs]),
    }
    for column in ("flops", "bytes"):
        per_token = [getattr(run, FIELDS[column]) for run in runs]
        if None not in per_token:
            values[column] = np.repeat(per_token, counts) * tokens
    numbers = Numbers(
        Table(SOURCE, {}, range(len(tokens))),
        [run.name for run, count in zip(runs, counts, strict=True) for _ in range(count)],
        values,
        np.repeat([run.diverged for run in runs], counts),
    )
    names = (run.name for run in runs)
    return numbers, {n: list(range(*span)) for n, span in zip(names, pairwise(ends), strict=True)}
