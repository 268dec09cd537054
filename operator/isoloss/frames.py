"""Rows as Arrow tables and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pyarrow takes a quarter of a second to import, and pandas more
    import pandas
    import pyarrow


def as_arrow(rows: Sequence[Mapping[str, Any]], heads: Sequence[str] = ()) -> pyarrow.Table:
    """A table of these rows; `heads` are its columns if there is none."""
    import pyarrow

    if not rows:
        return pyarrow.table({head: pyarrow.array([], pyarrow.string()) for head in heads})
    return pyarrow.Table.from_pylist(list(rows))


def as_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Raises ModuleNotFoundError, which says what to do, if pandas is not installed."""
    try:
        return table.to_pandas()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_pandas needs pandas: pip install pandas. to_arrow gives the same table without it",
            name=error.name,
        ) from error
