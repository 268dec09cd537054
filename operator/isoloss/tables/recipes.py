"""Columns that nothing is read from, but in which runs of one fit must not differ: their recipe and their text."""

import math
import re
from collections.abc import Sequence
from typing import Any

from isoloss.tables.cell_values import is_number, text_of
from isoloss.tables.lookup import Lookup

TEXT = ("dataset", "dataset_name", "domain", "split", "tokenizer", "tokenizer_name", "vocab_size")
RECIPE = (
    *("weight_decay", "beta1", "beta2", "adam_beta1", "adam_beta2", "dropout"),
    *("schedule", "scheduler", "lr_schedule", "lr_scheduler", "lr_scheduler_type"),
)
"""Names in configurations of trainers, without what stands before a dot or a slash."""
SHOWN = 3
"""Values that a warning has."""


def is_watched(column: str) -> bool:
    """Whether a column is one of these."""
    return re.split(r"[./]", column)[-1] in (*TEXT, *RECIPE)


def warn_of_differences(lookup: Lookup) -> None:
    """Warn of text that differs within a run, and of a recipe or text in which runs differ."""
    for column in lookup.header():
        if not is_watched(column):
            continue
        name = re.split(r"[./]", column)[-1]
        for found in lookup.pool(column):
            by_run: dict[str, set[str]] = {}
            for run, cell in zip(lookup.runs, found.cells, strict=True):
                if value := _spelt(cell):
                    by_run.setdefault(run, set()).add(value)
            values = sorted(set().union(*by_run.values()))
            if len(values) < 2:
                continue
            words = f"{lookup.place(found)} ({_some(values)})"
            is_within = any(len(own) > 1 for own in by_run.values())
            if is_within and name in TEXT:
                lookup.warn(
                    f"rows of one run differ in {words}, and their losses are taken for one curve: keep the rows of the held-out text"
                )
            elif not is_within:
                what = "text and tokenizer" if name in TEXT else "recipe"
                lookup.warn(
                    f"runs differ in {words}, which is ignored: laws are of one {what}, so fit the runs of each value separately"
                )


def _spelt(cell: Any) -> str:
    """Numbers alike however they are written; empty for NaN, which stands for no value."""
    text = text_of(cell)
    if not is_number(text):
        return text
    return "" if math.isnan(float(text)) else f"{float(text):g}"


def _some(values: Sequence[str]) -> str:
    return ", ".join(values[:SHOWN]) + (", ..." if len(values) > SHOWN else "")
