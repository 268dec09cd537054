"""Settings from a table with one row for each run, beside each row of a log. Losses and tokens never come from there."""

from collections.abc import Mapping, Sequence
from typing import Any

from isoloss.tables.cell_values import is_blank, text_of
from isoloss.tables.expressions import near
from isoloss.tables.formats import BadTable, Table
from isoloss.tables.run_names import run_columns


def settings_of_rows(
    runs: Sequence[str], table: Table, settings: Table | None
) -> Mapping[str, Sequence[Any]]:
    """The settings' columns, with a cell for each row of the table. Raises BadTable."""
    if settings is None:
        return {}
    wanted = dict.fromkeys(run for run in runs if run)
    keys = run_columns(settings.columns)
    if not keys:
        message = f"missing; found {settings.found()}"
        raise BadTable(settings.source, message, row=1, column="run")
    places = {key: _places(settings, key) for key in keys}
    key = next((key for key in keys if set(wanted) <= set(places[key])), None)
    if key is None:
        absent = next(run for run in wanted if run not in places[keys[0]])
        there = ", ".join(places[keys[0]])[:200]
        if wide := [each for each in table.columns if each.partition(" - ")[0] in places[keys[0]]]:
            message = f"columns are of one run each, such as {wide[0]}: a row for each run and evaluation is expected, with a column run"
            raise BadTable(table.source, message, row=1)
        raise BadTable(
            settings.source,
            f"no row for run {absent!r} of {table.source}{near(absent, places[keys[0]])}; there are {there}",
            column=keys[0],
        )
    for run in wanted:
        if len(places[key][run]) > 1:
            first, second = (settings.rows[i] for i in places[key][run][:2])
            message = f"run {run!r} is in rows {first} and {second}: one row per run is expected"
            raise BadTable(settings.source, message, row=second, column=key)
    return {
        column: [cells[places[key][run][0]] if run else None for run in runs]
        for column, cells in settings.columns.items()
        if column and column not in keys and len(cells)
    }


def _places(settings: Table, key: str) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for index, cell in enumerate(settings.columns[key]):
        if not is_blank(cell):
            places.setdefault(text_of(cell), []).append(index)
    return places
