"""From bytes to cells: CSV, JSON lines, Parquet and `trainer_state.json` into columns with row numbers.

CSV goes through the standard library, because it gives each record's line in the file; Parquet goes
through pyarrow. Row numbers are lines of text (a CSV's header is 1) or records of the other files (from 1).
"""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard

from isoloss.errors import BadInput, why_unreadable
from isoloss.tables.cell_values import is_number
from isoloss_contract.json_text import RepeatedKey, read_json

REQUIRED = ("run", "params", "batch_size", "sequence_length", "learning_rate", "tokens", "loss")
SETTINGS = REQUIRED[1:5]
"""Columns of numbers with one value for each run."""
OPTIONAL = ("flops", "diverged", "bytes", "optimizer", "seed")
MAX_TABLE_BYTES = 512 * 2**20
MAX_ROWS = 2_000_000


class BadTable(BadInput):
    """A table cannot be used; names the source, and the row and column if there is one."""

    def __init__(
        self, source: str, message: str, *, row: int | None = None, column: str | None = None
    ) -> None:
        self.source, self.message, self.row, self.column = source, message, row, column
        places = [f"row {row}"] if row else []
        places += [f"column {column}"] if column else []
        super().__init__(": ".join(filter(None, (source, ", ".join(places), message))))


InUse: TypeAlias = Callable[[Sequence[str]], Collection[str]]
"""From a header, the columns to be read; only they must not appear twice."""


class ArrowStream(Protocol):
    """A table in memory: a data frame of pandas, polars and others, or a pyarrow.Table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's own interface, which all of these have."""
        ...


def is_frame(source: object) -> TypeGuard[ArrowStream]:
    """Whether this is a table in memory."""
    return hasattr(source, "__arrow_c_stream__") and not isinstance(source, type)


Listed: TypeAlias = Sequence[Mapping[str, Any]]
"""A table in memory as a list of rows, each by column."""
InMemory: TypeAlias = ArrowStream | Listed


def is_listed(source: object) -> TypeGuard[Listed]:
    """Whether this is a list of rows."""
    return (
        isinstance(source, list | tuple)
        and bool(source)
        and all(isinstance(row, Mapping) for row in source)
    )


@dataclass(frozen=True)
class Table:
    """Cells as read: one list per column, and the row number of each record."""

    source: str
    columns: Mapping[str, Sequence[Any]]
    rows: Sequence[int]

    def found(self) -> str:
        """Its columns, for messages."""
        return ", ".join(filter(None, self.columns))[:300]

    def bad(self, index: int, column: str, message: str) -> BadTable:
        """The error for one cell, to raise."""
        return BadTable(self.source, message, row=self.rows[index], column=column)


TRAINER_STATE = "trainer_state.json"
"""The log that the Trainer of transformers keeps beside its checkpoints."""
TEXTS = tuple(f".{kind}{packed}" for kind in ("csv", "tsv", "jsonl") for packed in ("", ".gz"))
ENDINGS = (*TEXTS, ".parquet", ".pq", TRAINER_STATE)
TABLES = "a .csv, .csv.gz, .tsv, .parquet, .pq, .jsonl or trainer_state.json file"
"""ENDINGS in messages."""
UNSEEN = re.compile("[\u200b-\u200f\u2060\ufeff]")
"""Signs without width, byte order marks of joined files among them."""


def is_table(source: str) -> bool:
    """Whether a RUNS argument names a table rather than a sweep of the store."""
    return source.lower().endswith(ENDINGS)


def bytes_of(source: str) -> bytes:
    """The content of a file or of an object in the store. Raises BadTable."""
    scheme, separator, rest = source.partition("://")
    if separator and scheme in ("s3", "gs"):
        return _stored_bytes(source)
    if separator and scheme != "file":
        supported = "s3:// and gs:// URIs and local paths are"
        raise BadTable(source, f"{scheme}:// is not supported: download the table ({supported})")
    path = Path(rest if separator else source)
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise BadTable(source, f"larger than {MAX_TABLE_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise BadTable(source, why_unreadable(path, error)) from error
    except ValueError as error:  # a NUL in the name
        raise BadTable(source, f"not the name of a file: {error}") from error


def _stored_bytes(source: str) -> bytes:
    # Not above: local tables are read without the extra `store`.
    from isoloss_contract.store import Store, StoreError

    folder, _, name = source.rpartition("/")
    try:
        return Store(folder).read(name, max_bytes=MAX_TABLE_BYTES)
    except StoreError as error:
        # The store's errors begin with the URI, and so does BadTable.
        message = str(error).removeprefix(f"{source}: ").removeprefix(f"{folder}: ")
        raise BadTable(source, message) from error


def read_cells(content: bytes, source: str, in_use: InUse) -> Table:
    """The cells of a table's bytes; the ending of `source` gives the format. Raises BadTable."""
    if source.lower().endswith((".parquet", ".pq")):
        return read_parquet(content, source, in_use)
    if source.lower().endswith(TRAINER_STATE):
        return read_trainer_state(content, source)
    if source.lower().removesuffix(".gz").endswith(".jsonl"):
        return read_json_lines(content, source)
    return read_csv(content, source, in_use)


def read_csv(content: bytes, source: str, in_use: InUse) -> Table:
    """The cells of a CSV, plain or gzipped, separated by commas, semicolons, tabs or |, as text. Raises BadTable."""
    plain = _plain(content, source)
    reader = csv.reader(
        io.TextIOWrapper(io.BytesIO(plain), encoding="utf-8-sig", newline=""),
        delimiter=_separator(plain),
        strict=True,
    )
    try:
        first = next(reader, [])
        header = [re.sub(r"\s", " ", UNSEEN.sub("", name)).strip() for name in first]
        if not any(header) and plain.removeprefix(codecs.BOM_UTF8).strip():
            raise BadTable(source, "blank: the first row must be the header", row=1)
        if 2 * sum(map(is_number, header)) > len(header):
            message = f"the first row is numbers: it must be the header: {', '.join(REQUIRED)}"
            raise BadTable(source, message, row=1)
        if len(header) == 1 and header[0]:
            message = (
                f"one name alone, {header[0][:80]!r}: is the first row the header? Its names are separated by commas, "
                "semicolons, tabs or |"
            )
            raise BadTable(source, message, row=1)
        _check_header(header, source, in_use)
        # Files that were joined have the header of each.
        numbered = ((reader.line_num, record) for record in reader if record != first)
        records, lines = _records(numbered, header, source)
    except UnicodeDecodeError as error:
        raise BadTable(
            source, "not UTF-8 text: save it as CSV in UTF-8", row=_row_of_bad_text(plain)
        ) from error
    except csv.Error as error:
        raise BadTable(source, f"not readable as CSV: {error}", row=reader.line_num) from error
    columns = dict(zip(header, zip(*records, strict=True), strict=True)) if records else {}
    return _checked_size(Table(source, columns, lines))


def _separator(plain: bytes) -> str:
    """That of the header: spreadsheets write semicolons where a comma is the decimal point."""
    header = plain.partition(b"\n")[0]
    return max(",;\t|", key=lambda separator: header.count(separator.encode()))


def _records(
    numbered: Iterable[tuple[int, list[str]]], header: Sequence[str], source: str
) -> tuple[list[list[str]], list[int]]:
    """The rows below the header, and the line that each ends in. Raises BadTable."""
    records: list[list[str]] = []
    lines: list[int] = []
    # Spreadsheets leave rows of separators alone.
    for line, record in ((line, cells) for line, cells in numbered if any(map(str.strip, cells))):
        if len(record) != len(header):
            is_header = "" if records else ": is the first row the header?"
            message = f"cells: {len(record)}, but the header has {len(header)}{is_header}"
            column = header[min(len(record), len(header) - 1)]
            raise BadTable(source, message, row=line, column=column)
        if len(records) == MAX_ROWS:
            raise BadTable(source, f"more than {MAX_ROWS} rows", row=line)
        records.append(record)
        lines.append(line)
    return records, lines


def _row_of_bad_text(plain: bytes) -> int | None:
    """The line of the first byte that is no UTF-8."""
    try:
        plain.decode()
    except UnicodeDecodeError as error:
        return plain[: error.start].count(b"\n") + 1
    return None


def _plain(content: bytes, source: str) -> bytes:
    if not source.lower().endswith(".gz") and not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            plain = file.read(MAX_TABLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadTable(source, f"not readable as gzip: {error}") from error
    if len(plain) > MAX_TABLE_BYTES:
        raise BadTable(source, f"larger than {MAX_TABLE_BYTES} bytes")
    return plain


def read_parquet(content: bytes, source: str, in_use: InUse) -> Table:
    """The cells of a Parquet file in its own types, and no cells of columns that are not in use. Raises BadTable."""
    # Not above: pyarrow takes longer to import than a CSV to read.
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content))
        header = [str(name) for name in file.schema_arrow.names]
        wanted = _check_header(header, source, in_use)
        if file.metadata.num_rows > MAX_ROWS:
            raise BadTable(source, f"more than {MAX_ROWS} rows", row=MAX_ROWS + 1)
        # Only the columns in use: dictionary pages can unfold to far more than the file's size.
        arrow = file.read(columns=wanted, use_threads=False)
        cells = {name: arrow.column(name).to_pylist() for name in wanted}
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, BadTable):
            raise
        raise BadTable(source, f"not readable as Parquet: {str(error)[:200]}") from error
    columns: dict[str, Sequence[Any]] = {name: cells.get(name, ()) for name in header}
    return _checked_size(Table(source, columns, range(1, arrow.num_rows + 1)))


FRAME = "data frame"
LISTED = "list of rows"
NAMELESS = (FRAME, LISTED)
"""What messages call tables without a name."""


def read_frame(frame: InMemory, in_use: InUse) -> Table:
    """The cells of a table in memory, rows counted from 1. Raises BadTable."""
    if is_listed(frame):
        return _read_listed(frame, in_use)
    import pyarrow

    try:
        arrow = pyarrow.table(frame)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise BadTable(FRAME, f"not readable: {str(error)[:200]}") from error
    # An index of pandas is no column of its owner's.
    header = [str(name) for name in arrow.column_names if not str(name).startswith("__index_")]
    wanted = _check_header(header, FRAME, in_use)
    if arrow.num_rows > MAX_ROWS:
        raise BadTable(FRAME, f"more than {MAX_ROWS} rows", row=MAX_ROWS + 1)
    columns: dict[str, Sequence[Any]] = {
        name: arrow.column(name).to_pylist() if name in wanted else () for name in header
    }
    return _checked_size(Table(FRAME, columns, range(1, arrow.num_rows + 1)))


def _read_listed(rows: Listed, in_use: InUse) -> Table:
    """What a row lacks is empty."""
    header = list(dict.fromkeys(str(name) for row in rows for name in row))
    _check_header(header, LISTED, in_use)
    columns = {name: [row.get(name) for row in rows] for name in header}
    return _checked_size(Table(LISTED, columns, range(1, len(rows) + 1)))


def _check_header(header: Sequence[str], source: str, in_use: InUse) -> list[str]:
    """The columns in use, in order. Raises BadTable if there is no header, or two columns of one name in use."""
    if not any(header):
        raise BadTable(source, "empty: a table has a header and a row for each evaluation")
    used = in_use(header)
    wanted = [name for name in header if name and name in used]
    for name in wanted:
        if wanted.count(name) > 1:
            message = "appears more than once: remove or rename the others"
            raise BadTable(source, message, row=1, column=name)
    return wanted


def read_trainer_state(content: bytes, source: str) -> Table:
    """The `log_history` of a Trainer of transformers, under the names that it gives them in W&B. Raises BadTable."""
    try:
        history = read_json(content)["log_history"]
        records = [{_logged_name(key): value for key, value in entry.items()} for entry in history]
    except RepeatedKey as error:
        raise BadTable(source, str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadTable(source, "not a trainer_state.json: it has no log_history") from error
    return _of_records(records, range(1, len(records) + 1), source)


def read_json_lines(content: bytes, source: str) -> Table:
    """A row for each object, one on each line, plain or gzipped. Raises BadTable."""
    records: list[dict[str, Any]] = []
    rows: list[int] = []
    for number, line in enumerate(_plain(content, source).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = read_json(line)
        except RepeatedKey as error:
            raise BadTable(source, str(error), row=number) from error
        except (ValueError, RecursionError) as error:
            raise BadTable(source, "not JSON: one object on each line", row=number) from error
        if not isinstance(record, dict):
            raise BadTable(source, "not an object: one on each line", row=number)
        records.append(record)
        rows.append(number)
    return _of_records(records, rows, source)


def _of_records(records: Sequence[Mapping[str, Any]], rows: Sequence[int], source: str) -> Table:
    """As text, so that a loss of NaN is one that was written and not one that is missing."""
    names = dict.fromkeys(name for record in records for name in record)
    columns = {
        name: [None if record.get(name) is None else str(record[name]) for record in records]
        for name in names
    }
    return _checked_size(Table(source, columns, rows))


def _logged_name(key: str) -> str:
    """The Trainer writes `loss` for the loss on training data, and `eval_loss` for that on held-out data."""
    if key == "step":
        return "train/global_step"
    return f"eval/{key[5:]}" if key.startswith("eval_") else f"train/{key}"


def _checked_size(table: Table) -> Table:
    if not table.rows:
        raise BadTable(
            table.source,
            "empty: a header but no rows: a table has one for each evaluation",
            row=2,
            column="run",
        )
    if len(table.rows) > MAX_ROWS:
        raise BadTable(table.source, f"more than {MAX_ROWS} rows", row=table.rows[MAX_ROWS])
    return table
