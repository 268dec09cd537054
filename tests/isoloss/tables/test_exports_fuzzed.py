"""Whatever an export holds and the options say, reading it gives usable runs or an error of ours, never anything else."""

import csv
import io
import json
import math
from typing import Any

import pyarrow
import pyarrow.parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from isoloss.errors import BadInput
from isoloss.tables import naming_of, parse_table, read_tables
from isoloss.tables.known_names import NAMES

CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "NaN",
            "inf",
            "1e400",
            "a",
            "b",
            "0",
            "1",
            "64",
            "2048",
            "3e-4",
            "1e8",
            "3.2",
            "1_0",
        ]
    ),
    st.integers(0, 10**9).map(str),
    st.text(max_size=5),
)
COLUMNS = st.one_of(
    st.sampled_from(sorted(NAMES)),
    st.sampled_from(
        [
            "Step",
            "a - eval/loss",
            "a - eval/loss__MIN",
            "a - eval/loss__MAX",
            "key",
            "value",
            "is_nan",
        ]
    ),
    st.sampled_from(
        [
            "Wall time",
            "Value",
            "timestamp",
            "diverged",
            "optimizer",
            "seed",
            "flops",
            "summary",
            "config",
        ]
    ),
    st.sampled_from(["params.params", "metrics.eval_loss", "config.lr", "summary.eval/loss"]),
    st.text(max_size=4),
)
TABLES = st.lists(COLUMNS, min_size=1, max_size=9).flatmap(
    lambda header: st.tuples(
        st.just(header),
        st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=5),
    )
)
LOG = [
    [
        "run",
        "params",
        "batch_size",
        "sequence_length",
        "lr",
        "train/global_step",
        "eval/loss",
        "x",
    ],
    *(
        [run, "1e8", "64", "2048", rate, step, loss, ""]
        for run, rate in (("a", "3e-4"), ("b", "6e-4"))
        for step, loss in (("1000", "3.4"), ("2000", "3.2"), ("4000", "3.0"))
    ),
]
EXPRESSIONS = st.one_of(
    COLUMNS,
    st.sampled_from(
        [
            "124e6",
            "step*batch_size*sequence_length",
            "'val/bpb'*0.7",
            "loss/0",
            "-tokens",
            "1e999*step",
        ]
    ),
    st.text(max_size=12),
    st.text("stepolk*/+-()'\"1e. ", max_size=16),
)
OPTIONS = st.dictionaries(
    st.sampled_from(
        [
            "run",
            "params",
            "batch_size",
            "sequence_length",
            "learning_rate",
            "tokens",
            "loss",
            "seed",
        ]
    ),
    EXPRESSIONS,
    max_size=4,
)


def check(read: Any) -> None:
    try:
        table = read()
    except BadInput:
        return
    for run in table.runs:
        assert all(math.isfinite(x) and x > 0 for x in [*run.tokens, *run.losses])
        assert all(b > a for a, b in zip(run.tokens, run.tokens[1:], strict=False))
        assert run.params > 0
        assert run.learning_rate > 0


def as_csv(header: list[str], rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode(errors="surrogatepass")


@given(TABLES, OPTIONS)
@settings(max_examples=400)
def test_any_csv_with_any_options(
    table: tuple[list[str], list[list[str]]], options: dict[str, str]
) -> None:
    check(lambda: parse_table(as_csv(*table), "run-a-tag-eval_loss.csv", naming_of(options)))


@given(TABLES, OPTIONS, st.booleans())
@settings(max_examples=200)
def test_any_list_of_rows_with_any_settings(
    table: tuple[list[str], list[list[str]]], options: dict[str, str], own: bool
) -> None:
    header, rows = table
    listed = [dict(zip(header, row, strict=True)) for row in rows] or [{}]
    other = listed if own else [{"Name": "a", "params": 1e8, "batch_size": None, "lr": math.nan}]
    check(lambda: read_tables([listed], naming_of(options, other)))


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 7)), CELLS, max_size=6),
    st.dictionaries(st.integers(0, 7), COLUMNS, max_size=2),
    OPTIONS,
)
@settings(max_examples=400)
def test_a_good_log_with_other_cells_and_names(
    cells: dict[tuple[int, int], str], names: dict[int, str], options: dict[str, str]
) -> None:
    header = [names.get(i, name) for i, name in enumerate(LOG[0])]
    rows = [
        [cells.get((i, j), cell) for j, cell in enumerate(row)] for i, row in enumerate(LOG[1:])
    ]
    check(lambda: parse_table(as_csv(header, rows), "a.csv", naming_of(options)))


@given(TABLES)
@settings(max_examples=100)
def test_any_parquet_of_text(table: tuple[list[str], list[list[str]]]) -> None:
    header, rows = table
    header = list(dict.fromkeys(header))
    columns = {
        name: [row[i].encode(errors="replace").decode() for row in rows]
        for i, name in enumerate(header)
    }
    columns = {name.encode(errors="replace").decode(): cells for name, cells in columns.items()}
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    check(lambda: parse_table(sink.getvalue(), "a.parquet"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4),
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(["log_history", "step", "eval_loss", "loss", "learning_rate"]),
                each,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200)
def test_any_json_as_a_log_of_the_trainer(content: Any) -> None:
    for each in (content, {"log_history": content}):
        text = json.dumps(each).encode()
        check(
            lambda text=text: parse_table(
                text, "a/trainer_state.json", naming_of({"params": "1e8"})
            )
        )
