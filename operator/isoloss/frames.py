"""Laws and answers as Arrow tables and data frames, one row per law, optimum or quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from isoloss.summaries import law_rows

if TYPE_CHECKING:  # pyarrow takes a quarter of a second to import, and pandas more
    import pandas
    import pyarrow

    from isoloss.laws import Laws, Prediction

FitTable = Literal["optima", "laws", "excluded"]
"""optima: what the laws are fitted to, of the frontier and of each size. laws: a row for each law.
excluded: the runs that were left out, and why."""


def laws_arrow(laws: Laws, table: FitTable) -> pyarrow.Table:
    """One table of a fit. Losses in nats per token, batch sizes in sequences, compute in FLOPs.

    Raises ValueError for another table.
    """
    if table == "optima":
        return _arrow(_optima(laws))
    if table == "laws":
        heads = ("law", "status", "formula", "quality")
        return _arrow([dict(zip(heads, row, strict=True)) for row in law_rows(laws)], heads)
    if table == "excluded":
        rows = [{"run": each.run, "reason": each.reason} for each in laws.excluded]
        return _arrow(rows, ("run", "reason"))
    raise ValueError(f"table must be one of {', '.join(get_args(FitTable))}, not {table!r}")


def _optima(laws: Laws) -> list[Mapping[str, Any]]:
    listed = [("frontier", each) for each in laws.frontier] + [
        ("size", each) for each in laws.optima
    ]
    return [
        {
            "of": kind,
            "loss": each.loss,
            "params": each.params,
            "status": each.status,
            "learning_rate": each.learning_rate,
            "log_learning_rate_error": each.standard_errors.get("learning_rate"),
            "batch_size": each.batch_size,
            "log_batch_size_error": each.standard_errors.get("batch_size"),
            "tokens": each.tokens,
            "flops": each.flops,
            "refusal": each.refusal.reason.value if each.refusal is not None else None,
        }
        for kind, each in listed
    ]


def answer_arrow(answer: Prediction) -> pyarrow.Table:
    """A row for each quantity of an answer, with its interval."""
    quantities = {
        "learning_rate": answer.learning_rate,
        "batch_size": answer.batch_size,
        "batch_size_tokens": answer.batch_size_tokens,
        "equivalent_flops": answer.equivalent_flops,
        "total_flops": answer.total_flops,
        "target_loss": answer.target_loss,
    }
    rows = [
        {"quantity": name, "value": each.value, "low": each.low, "high": each.high}
        for name, each in quantities.items()
        if each is not None
    ]
    return _arrow(rows)


def as_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Raises ModuleNotFoundError, which says what to do, if pandas is not installed."""
    try:
        return table.to_pandas()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_pandas needs pandas: pip install pandas. to_arrow gives the same table without it",
            name=error.name,
        ) from error


def _arrow(rows: Sequence[Mapping[str, Any]], heads: Sequence[str] = ()) -> pyarrow.Table:
    import pyarrow

    if not rows:
        return pyarrow.table({head: pyarrow.array([], pyarrow.string()) for head in heads})
    return pyarrow.Table.from_pylist(list(rows))
