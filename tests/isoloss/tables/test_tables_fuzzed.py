"""Whatever a table or an export holds and the options say, reading it gives usable runs or an error of ours, never anything else."""

import io
import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow
import pyarrow.parquet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isoloss import tables
from isoloss.errors import BadInput
from isoloss.tables.known_names import NAMES
from tests.support.tables import HEADER, as_csv, good_rows

ODD = (
    "",
    " ",
    "nan",
    "-inf",
    "1e400",
    "-0",
    "0x10",
    "1,5",
    "1e-320",
    "1_0",
    "9" * 400,
    '"',
    "\n",
    "\x00",
)
PLAIN = ("a", "b", "0", "1", "64", "2048", "3e-4", "1e8", "3.2")
CELLS = st.one_of(
    st.sampled_from(ODD),
    st.sampled_from(PLAIN),
    st.text(max_size=12),
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
)
SHAPES = (
    *("Step", "a - eval/loss", "a - eval/loss__MIN", "a - eval/loss__MAX"),
    *("key", "value", "is_nan", "Wall time", "Value", "timestamp", "summary", "config"),
    *("params.params", "metrics.eval_loss", "config.lr", "summary.eval/loss"),
)
"""Columns by which exports are told apart."""
COLUMNS = st.one_of(
    st.sampled_from(sorted(NAMES)),
    st.sampled_from((*SHAPES, *tables.OPTIONAL)),
    st.text(max_size=4),
)
TABLES = st.lists(COLUMNS, min_size=1, max_size=9).flatmap(
    lambda header: st.tuples(
        st.just(header),
        st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=5),
    )
)
LOG = (
    "run",
    "params",
    "batch_size",
    "sequence_length",
    "lr",
    "train/global_step",
    "eval/loss",
    "x",
)
ROWS = [
    [run, "1e8", "64", "2048", rate, step, loss, ""]
    for run, rate in (("a", "3e-4"), ("b", "6e-4"))
    for step, loss in (("1000", "3.4"), ("2000", "3.2"), ("4000", "3.0"))
]
EXPRESSIONS = st.one_of(
    COLUMNS,
    st.sampled_from(
        ["124e6", "step*batch_size*sequence_length", "'val/bpb'*0.7", "loss/0", "-tokens"]
    ),
    st.text(max_size=12),
    st.text("stepolk*/+-()'\"1e. ", max_size=16),
)
OPTIONS = st.dictionaries(st.sampled_from((*tables.REQUIRED, "seed")), EXPRESSIONS, max_size=4)


def check(read: Callable[[], tables.RunTable]) -> BadInput | None:
    """The error, or None: usable runs."""
    try:
        found: tables.RunTable | BadInput = read()
    except BadInput as error:
        found = error
    if isinstance(found, BadInput):
        assert not isinstance(found, tables.BadTable) or found.source in str(found)
        return found
    for run in found.runs:
        assert run.tokens.size == run.losses.size
        settings_of = (run.params, run.batch_size, run.learning_rate, run.sequence_length)
        assert all(math.isfinite(x) and x > 0 for x in [*run.tokens, *run.losses, *settings_of])
        assert all(b > a for a, b in zip(run.tokens, run.tokens[1:], strict=False))
    return None


def parquet(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue()


def utf8(text: str) -> str:
    return text.encode(errors="replace").decode()


@given(row=st.integers(0, 5), column=st.integers(0, 6), text=CELLS)
@settings(max_examples=300)
def test_one_bad_cell(row: int, column: int, text: str) -> None:
    rows = good_rows()
    rows[row][column] = utf8(text)
    error = check(lambda: tables.parse_table(as_csv(rows), "runs.csv"))
    assert error is None or (isinstance(error, tables.BadTable) and error.row and error.column)


@given(TABLES, OPTIONS)
@settings(max_examples=400)
@example((list(HEADER), [["\x00"] * len(HEADER)]), {})
def test_any_csv_with_any_options(
    table: tuple[list[str], list[list[str]]], options: dict[str, str]
) -> None:
    header, rows = ([utf8(cell) for cell in table[0]], [list(map(utf8, row)) for row in table[1]])
    content = as_csv(rows, header)
    check(
        lambda: tables.parse_table(content, "run-a-tag-eval_loss.csv", tables.naming_of(options))
    )


@given(TABLES, OPTIONS, st.booleans())
@settings(max_examples=200)
def test_any_list_of_rows_with_any_settings(
    table: tuple[list[str], list[list[str]]], options: dict[str, str], own: bool
) -> None:
    header, rows = table
    listed = [dict(zip(header, row, strict=True)) for row in rows] or [{}]
    other = listed if own else [{"Name": "a", "params": 1e8, "batch_size": None, "lr": math.nan}]
    check(lambda: tables.read_tables([listed], tables.naming_of(options, other)))


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 7)), CELLS, max_size=6),
    st.dictionaries(st.integers(0, 7), COLUMNS, max_size=2),
    OPTIONS,
)
@settings(max_examples=400)
def test_a_good_log_with_other_cells_and_names(
    cells: dict[tuple[int, int], str], names: dict[int, str], options: dict[str, str]
) -> None:
    header = [utf8(names.get(i, name)) for i, name in enumerate(LOG)]
    rows = [
        [utf8(cells.get((i, j), cell)) for j, cell in enumerate(row)] for i, row in enumerate(ROWS)
    ]
    check(lambda: tables.parse_table(as_csv(rows, header), "a.csv", tables.naming_of(options)))


@given(st.binary(max_size=300), st.sampled_from(["runs.csv", "runs.csv.gz", "runs.parquet"]))
@settings(max_examples=600)
@example(b"run,params\r\n", "runs.csv")
@example(b'"run', "runs.csv")
@example(b"\xef\xbb\xbfrun\x00", "runs.csv")
def test_any_bytes(content: bytes, source: str) -> None:
    check(lambda: tables.parse_table(content, source))


@given(st.data())
@settings(max_examples=100)
def test_damaged_parquet(data: st.DataObject) -> None:
    """Flipped bytes anywhere in a valid file."""
    columns = dict(zip(HEADER, map(list, zip(*good_rows(), strict=True)), strict=True))
    content = bytearray(parquet(columns))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check(lambda: tables.parse_table(bytes(content), "runs.parquet"))


@given(TABLES)
@settings(max_examples=100)
def test_any_parquet_of_text(table: tuple[list[str], list[list[str]]]) -> None:
    header, rows = table
    content = parquet(
        {utf8(name): [utf8(row[i]) for row in rows] for i, name in enumerate(header)}
    )
    check(lambda: tables.parse_table(content, "a.parquet"))


@given(
    st.sampled_from(
        [
            pyarrow.nulls(6),
            pyarrow.array([True] * 6),
            pyarrow.array([[1]] * 6),
            pyarrow.array([b"\xff"] * 6),
            pyarrow.array([0] * 6, pyarrow.timestamp("s")),
            pyarrow.array(["many"] * 6),
        ]
    )
)
def test_parquet_columns_of_other_types(tokens: Any) -> None:
    columns = dict(zip(HEADER, map(list, zip(*good_rows(), strict=True)), strict=True))
    content = parquet({**columns, "tokens": tokens})
    error = check(lambda: tables.parse_table(content, "runs.parquet"))
    assert isinstance(error, tables.BadTable)
    assert (error.row, error.column) == (1, "tokens")


KEYS = st.sampled_from(["log_history", "step", "eval_loss", "loss", "learning_rate"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4),
        lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=4),
        max_leaves=12,
    )
)
@settings(max_examples=200)
def test_any_json_as_a_log_of_the_trainer(content: Any) -> None:
    naming = tables.naming_of({"params": "1e8"})
    for each in (content, {"log_history": content}):
        text = json.dumps(each).encode()
        check(lambda text=text: tables.parse_table(text, "a/trainer_state.json", naming))
