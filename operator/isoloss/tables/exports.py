"""Shapes in which tools export their logs, as tables with one row per step: a row of them is not an evaluation yet.

W&B's line panel has a column for each run and metric, MLflow's metric history a row for each metric, and TensorBoard's
file one metric of one run, which its name tells.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from isoloss.tables.cell_values import are_close, are_same, is_blank
from isoloss.tables.formats import NAMELESS, TRAINER_STATE, Table
from isoloss.tables.known_names import NAMES

LOWEST, HIGHEST = "__MIN", "__MAX"
"""What W&B's line panel appends to a column's name, for the range behind each of its values."""
LINE = re.compile(r"(?P<run>.+) - (?P<metric>.+)", re.DOTALL)
STEP = "step"
"""What TensorBoard's steps are called here: Step is what W&B calls its count of log calls."""
TENSORBOARD = ["Wall time", "Step", "Value"]
DOWNLOAD = re.compile(r"(?:run-)?(?P<run>.+?)-tag-(?P<tag>.+)")
"""The name that TensorBoard gives a download; a browser may append ` (1)`."""
ONE_OF_A_RUN = re.compile(r"checkpoint-\d+|version_\d+")
"""Folders in that of a run, unless Lightning was not told its name."""
METRIC_HISTORY = ("key", "value", "step", "timestamp", "is_nan")
"""Columns of MLflow's metric history, but for the run's."""


def in_long_form(table: Table) -> Table:
    """The table with one row per step and one column per metric. Raises BadTable."""
    header = list(table.columns)
    if is_panel(header):
        return _panel(table)
    if [*filter(None, header)] == TENSORBOARD:
        return _scalar(table)
    if {"key", "value", "step"} <= set(header):
        return _metric_history(table)
    return table


def is_panel(header: Sequence[str]) -> bool:
    """Whether this is W&B's line panel: a first column, then each run's with its lowest and highest."""
    ends = {name + end for name in _lines(header) for end in (LOWEST, HIGHEST)}
    return bool(ends) and ends <= set(header)


def _lines(header: Sequence[str]) -> list[str]:
    return [name for name in header[1:] if not name.endswith((LOWEST, HIGHEST))]


def is_called_alike(source: str) -> bool:
    """Whether the file is the log of the Trainer or of Lightning, in a folder of its run."""
    name = re.split(r"[/\\]", source)[-1].lower()
    return name == "metrics.csv" or name.endswith(TRAINER_STATE)


def run_of_file(source: str) -> str | None:
    """The run's name in the name of its file, or of its folder for files that all runs call alike. None for a table in memory."""
    if source in NAMELESS:
        return None
    path = PurePosixPath(source.replace("\\", "/"))
    if is_called_alike(source):
        folder = path.parent
        if ONE_OF_A_RUN.fullmatch(folder.name) and folder.parent.name != "lightning_logs":
            folder = folder.parent
        return folder.name or Path.cwd().name or None
    return _file_parts(path.name)[0]


def _file_parts(name: str) -> tuple[str, str | None]:
    """The run's name and, from TensorBoard, the tag."""
    stem = re.sub(r"\.((csv|tsv|jsonl)(\.gz)?|parquet|pq)$", "", name, flags=re.IGNORECASE)
    match = DOWNLOAD.fullmatch(re.sub(r" \(\d+\)$", "", stem))
    return (match["run"], match["tag"]) if match else (stem, None)


def _panel(table: Table) -> Table:
    """One row for each run and step of a line panel."""
    axis = next(iter(table.columns))
    lines: dict[str, dict[str, str]] = {}
    for column in _lines(list(table.columns)):
        match = LINE.fullmatch(column)
        if match is None:
            raise table.bad(
                0, column, "not RUN - METRIC, as columns of a W&B line panel are named"
            )
        lines.setdefault(match["run"], {})[match["metric"]] = column
    metrics = list(dict.fromkeys(metric for own in lines.values() for metric in own))
    columns: dict[str, list[Any]] = {name: [] for name in ("run", axis, *metrics)}
    rows: list[int] = []
    for run, own in lines.items():
        for index, row in enumerate(table.rows):
            cells = {metric: _single(table, index, name) for metric, name in own.items()}
            if all(is_blank(cell) for cell in cells.values()):
                continue
            columns["run"].append(run)
            columns[axis].append(table.columns[axis][index])
            for metric in metrics:
                columns[metric].append(cells.get(metric))
            rows.append(row)
    if not rows:
        raise table.bad(0, axis, "no run of the panel has a value")
    return Table(table.source, columns, rows)


def _single(table: Table, index: int, column: str) -> Any:
    """A cell of a panel. Raises BadTable where it stands for several values, whose mean is no run's loss."""
    cell = table.columns[column][index]
    low = table.columns[column + LOWEST][index]
    high = table.columns[column + HIGHEST][index]
    if is_blank(low) or is_blank(high):
        return cell
    if are_same(low, high):
        if are_close(cell, low):
            return cell
        message = f"{cell}, but from {low} to {high} lies behind it: turn off the panel's smoothing, or export the runs' histories"
        raise table.bad(index, column, message)
    raise table.bad(
        index,
        column,
        f"stands for several values, from {low} to {high}: W&B took the mean of several steps or grouped runs. "
        "Ungroup the panel, or export the runs' histories",
    )


def _scalar(table: Table) -> Table:
    """TensorBoard's file: its metric under the name that the file's name tells."""
    if table.source in NAMELESS:
        return table
    _, tag = _file_parts(PurePosixPath(table.source.replace("\\", "/")).name)
    # In the name of a file only letters, digits, - and _ are left of a tag. The Trainer writes eval/loss to TensorBoard; eval_loss
    # would be the same file name and means the same.
    fits = [name for name in sorted(NAMES) if re.sub(r"[^\w-]", "_", name) == tag]
    metric = next(iter(fits), tag or "Value")
    columns = {STEP: table.columns["Step"], metric: table.columns["Value"]}
    return Table(table.source, columns, table.rows)


def _metric_history(table: Table) -> Table:
    """One row for each run and step of MLflow's metric history, a column for each key; what else it has tells runs apart."""
    keys = [str(key) for key in table.columns["key"]]
    nans = table.columns.get("is_nan", [None] * len(keys))
    beside = [name for name in table.columns if name and name not in {*METRIC_HISTORY, *keys}]
    columns: dict[str, list[Any]] = {name: [] for name in dict.fromkeys([*beside, "step", *keys])}
    places: dict[tuple[str, ...], int] = {}
    rows: list[int] = []
    for index, key in enumerate(keys):
        own = {name: table.columns[name][index] for name in (*beside, "step")}
        place = places.setdefault(tuple(map(str, own.values())), len(rows))
        if place == len(rows):
            for name, cells in columns.items():
                cells.append(own.get(name))
            rows.append(table.rows[index])
        if columns[key][place] is not None and key != "step":
            message = (
                f"{key} has a value at step {own['step']} already, in row {rows[place]} or below"
            )
            raise table.bad(index, "key", message)
        # In MLflow's database NaN is 0 with a flag.
        nan = str(nans[index]).lower() in ("true", "1")
        columns[key][place] = "NaN" if nan else table.columns["value"][index]
    return Table(table.source, columns, rows)
