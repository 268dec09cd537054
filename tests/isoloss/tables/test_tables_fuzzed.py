"""Whatever a table holds, reading it gives runs or BadTable, never anything else."""

import io
import math

import pyarrow
import pyarrow.parquet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isoloss.tables import OPTIONAL, BadTable, RunTable, parse_table
from tests.support.tables import HEADER, as_csv, good_rows

NASTY = st.one_of(
    st.sampled_from(
        [
            *("", " ", "nan", "-inf", "1e400", "-0", "0x10", "1,5", "1e-320", "9" * 400),
            *('"', "\n", "\x00"),
        ]
    ),
    st.text(max_size=12),
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
)


def read(content: bytes, source: str = "runs.csv") -> RunTable | BadTable:
    try:
        return parse_table(content, source)
    except BadTable as error:
        return error


def check(result: RunTable | BadTable) -> None:
    """Runs that come out are usable; errors name the source."""
    if isinstance(result, BadTable):
        assert "runs." in str(result)
        return
    for run in result.runs:
        assert run.tokens.size == run.losses.size
        assert all(math.isfinite(x) and x > 0 for x in [*run.tokens, *run.losses])
        assert all(b > a for a, b in zip(run.tokens, run.tokens[1:], strict=False))
        for value in (run.params, run.batch_size, run.learning_rate, run.sequence_length):
            assert math.isfinite(value)
            assert value > 0


@given(row=st.integers(0, 5), column=st.integers(0, 6), text=NASTY)
@settings(max_examples=300)
def test_one_bad_cell(row: int, column: int, text: str) -> None:
    rows = good_rows()
    rows[row][column] = text
    result = read(as_csv(rows))
    check(result)
    if isinstance(result, BadTable):
        assert result.row is not None
        assert result.column is not None


@given(st.lists(st.lists(NASTY, min_size=7, max_size=7), max_size=5))
@settings(max_examples=100)
def test_all_cells_bad(rows: list[list[str]]) -> None:
    check(read(as_csv(rows)))


@given(
    column=st.sampled_from(OPTIONAL),
    cells=st.lists(NASTY, min_size=6, max_size=6),
)
@settings(max_examples=200)
def test_bad_optional_columns(column: str, cells: list[str]) -> None:
    rows = [[*row, cell] for row, cell in zip(good_rows(), cells, strict=True)]
    check(read(as_csv(rows, [*HEADER, column])))


@given(st.binary(max_size=300))
@settings(max_examples=200)
@example(b"run,params\r\n")
@example(b'"run')
@example(b"\xef\xbb\xbfrun\x00")
def test_any_bytes_as_csv(content: bytes) -> None:
    check(read(content))
    check(read(content, "runs.csv.gz"))
    check(read(content, "runs.parquet"))


@given(st.data())
@settings(max_examples=100)
def test_damaged_parquet(data: st.DataObject) -> None:
    """Flipped bytes anywhere in a valid file."""
    columns = dict(zip(HEADER, map(list, zip(*good_rows(), strict=True)), strict=True))
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    content = bytearray(sink.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check(read(bytes(content), "runs.parquet"))


@given(st.sampled_from(["null", "bool", "list", "binary", "timestamp", "string"]))
def test_parquet_columns_of_other_types(kind: str) -> None:
    columns: dict[str, object] = {
        name: list(cells)
        for name, cells in zip(HEADER, zip(*good_rows(), strict=True), strict=True)
    }
    columns["tokens"] = {
        "null": pyarrow.nulls(6),
        "bool": pyarrow.array([True] * 6),
        "list": pyarrow.array([[1]] * 6),
        "binary": pyarrow.array([b"\xff"] * 6),
        "timestamp": pyarrow.array([0] * 6, pyarrow.timestamp("s")),
        "string": pyarrow.array(["many"] * 6),
    }[kind]
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    result = read(sink.getvalue(), "runs.parquet")
    assert isinstance(result, BadTable)
    assert (result.row, result.column) == (1, "tokens")
