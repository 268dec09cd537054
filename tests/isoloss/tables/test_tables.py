"""Run tables: a good one is read as it stands, a bad one fails by row and column."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from isoloss.tables import BadTable, formats, parse_table, read_table, read_tables
from tests.support.tables import HEADER, Cells, as_csv, good_rows, refused

COLUMN = {name: index for index, name in enumerate(HEADER)}


def with_cell(row: int, column: str, text: str) -> bytes:
    """The good table with one cell replaced; `row` is the line in the file."""
    rows = good_rows()
    rows[row - 2][COLUMN[column]] = text
    return as_csv(rows)


def with_column(name: str, cells: list[str]) -> bytes:
    rows = [[*row, cell] for row, cell in zip(good_rows(), cells, strict=True)]
    return as_csv(rows, [*HEADER, name])


def test_a_good_table_gives_its_runs() -> None:
    table = parse_table(as_csv(good_rows()), "runs.csv")
    assert [run.name for run in table.runs] == ["r64", "r128"]
    run = table.runs[0]
    assert (run.params, run.batch_size, run.sequence_length, run.learning_rate) == (
        1e8,
        64,
        2048,
        3e-4,
    )
    assert run.tokens.tolist() == [1e9, 2e9, 4e9]
    assert run.losses.tolist() == [3.4064, 3.2, 3.0]
    assert (run.diverged, run.finished, run.flops_per_token) == (False, True, None)
    assert table.warnings == ()


@pytest.mark.parametrize("column", ["optimizer", "seed"])
def test_optimizer_and_seed_of_each_run_are_read(column: str) -> None:
    cells = ["1"] * 3 + ["2"] * (len(good_rows()) - 3)
    table = parse_table(with_column(column, cells), "runs.csv")
    assert [getattr(run, column) for run in table.runs] == ["1", "2"]


def test_an_optimizer_in_other_capitals_is_no_other_one() -> None:
    cells = ["AdamW"] * 3 + ["adamw"] * (len(good_rows()) - 3)
    table = parse_table(with_column("optimizer", cells), "runs.csv")
    assert [run.optimizer for run in table.runs] == ["AdamW", "AdamW"]


def test_runs_of_a_table_that_names_seeds_are_of_one_configuration_where_settings_are_equal() -> (
    None
):
    seeds = ["0"] * len(good_rows())
    assert {
        run.configuration for run in parse_table(with_column("seed", seeds), "a.csv").runs
    } == {"a.csv"}
    assert {run.configuration for run in parse_table(as_csv(good_rows()), "a.csv").runs} == {None}


@pytest.mark.parametrize(
    ("cell", "says"), [("Lion", "has 'Lion' here and 'AdamW' in row"), ("", "no name")]
)
@pytest.mark.parametrize("column", ["optimizer", "seed"])
def test_a_run_has_one_optimizer_and_one_seed(column: str, cell: str, says: str) -> None:
    cells = ["AdamW"] * len(good_rows())
    cells[1] = cell
    with pytest.raises(BadTable, match=says) as refusal:
        parse_table(with_column(column, cells), "runs.csv")
    assert refusal.value.column == column


def test_rows_may_come_in_any_order() -> None:
    rows = good_rows()
    table = parse_table(as_csv(rows[::-1]), "runs.csv")
    by_name = {run.name: run for run in table.runs}
    expected = parse_table(as_csv(rows), "runs.csv").runs[0]
    assert np.array_equal(by_name["r64"].tokens, expected.tokens)
    assert np.array_equal(by_name["r64"].losses, expected.losses)


def test_parquet_csv_gzip_and_json_lines_give_the_same_runs(tmp_path: Path) -> None:
    content = as_csv(good_rows())
    (tmp_path / "runs.csv").write_bytes(content)
    (tmp_path / "runs.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "packed.csv").write_bytes(gzip.compress(content))
    lines = "\n\n".join(json.dumps(dict(zip(HEADER, row, strict=True))) for row in good_rows())
    (tmp_path / "runs.jsonl").write_text(lines, "utf-8-sig")
    columns = list(zip(*good_rows(), strict=True))
    arrow = pyarrow.table(
        {
            "run": list(columns[0]),
            **{name: [float(cell) for cell in columns[COLUMN[name]]] for name in HEADER[1:]},
        }
    )
    pyarrow.parquet.write_table(arrow, tmp_path / "runs.parquet")
    names = ("runs.csv", "runs.csv.gz", "packed.csv", "runs.jsonl", "runs.parquet")
    tables = [read_table(str(tmp_path / name)) for name in names]
    for table in tables[1:]:
        for run, expected in zip(table.runs, tables[0].runs, strict=True):
            assert (run.name, run.params, run.batch_size) == (
                expected.name,
                expected.params,
                expected.batch_size,
            )
            assert np.array_equal(run.losses, expected.losses)
    assert read_table(f"file://{tmp_path}/runs.csv").runs[0].name == "r64"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"run": "a"', "not JSON: one object on each line"),
        ("[1, 2]", "not an object"),
        ('{"loss": 3.1, "loss": 2.1}', "the key 'loss' is there twice"),
    ],
)
def test_lines_that_are_no_rows_are_named(line: str, says: str) -> None:
    row = '{"run": "b", "params": 1e8}'
    with pytest.raises(BadTable, match=says) as raised:
        parse_table(f"{row}\n{line}\n".encode(), "runs.jsonl")
    assert raised.value.row == 2


def test_the_headers_of_joined_files_are_passed_over() -> None:
    content = as_csv(good_rows())
    joined = content + content.replace(b"r64", b"r65").replace(b"r128", b"r129").replace(
        b",3.", b",2."
    )
    assert len(parse_table(joined, "runs.csv").runs) == 4


@pytest.mark.parametrize(
    "first", ["run params loss", "version https://git-lfs.github.com/spec/v1"]
)
def test_a_first_row_of_one_name_is_no_header(first: str) -> None:
    assert refused(f"{first}\n1 2 3\n".encode(), "separated by commas, semicolons, tabs or") == (
        1,
        None,
    )


def test_optional_columns_become_compute_and_bytes_per_token() -> None:
    rows = [
        [*row, str(8 * 1e8 * float(row[5])), "false", str(4.5 * float(row[5]))]
        for row in good_rows()
    ]
    header = [*HEADER, "flops", "diverged", "bytes"]
    run = parse_table(as_csv(rows, header), "runs.csv").runs[0]
    assert run.flops_per_token == pytest.approx(8e8)
    assert run.bytes_per_token == pytest.approx(4.5)


def test_a_diverged_run_may_have_no_loss_and_keeps_what_it_had() -> None:
    rows = [[*row, "false"] for row in good_rows()]
    rows[2][COLUMN["loss"]], rows[2][-1] = "nan", "true"
    run = parse_table(as_csv(rows, [*HEADER, "diverged"]), "runs.csv").runs[0]
    assert run.diverged
    assert run.losses.tolist() == [3.4064, 3.2]


def test_a_column_diverged_that_is_all_empty_is_as_if_it_were_absent() -> None:
    blank = parse_table(with_column("diverged", ["", " ", "", "", "", ""]), "runs.csv")
    assert [run.diverged for run in blank.runs] == [False, False]
    assert blank.warnings == ()


def test_flags_of_a_data_frame_that_lacked_one_may_be_floats() -> None:
    reported = parse_table(with_column("diverged", ["1.0"] * 3 + ["0.0"] * 3), "runs.csv")
    assert [run.diverged for run in reported.runs] == [True, False]


@pytest.mark.parametrize("column", ["seed", "optimizer"])
def test_a_column_of_names_that_is_all_empty_is_as_if_it_were_absent(column: str) -> None:
    (run, _) = parse_table(with_column(column, ["", " ", "", "", "", ""]), "runs.csv").runs
    assert (getattr(run, column), run.configuration) == (None, None)


def test_names_in_parquet_may_be_bytes(tmp_path: Path) -> None:
    columns = {name: list(cells) for name, *cells in zip(HEADER, *good_rows(), strict=True)}
    names = pyarrow.array([name.encode() for name in columns["run"]], pyarrow.binary())
    arrow = pyarrow.table({**columns, "run": names})
    pyarrow.parquet.write_table(arrow, tmp_path / "runs.parquet")
    for reported in (read_table(str(tmp_path / "runs.parquet")), read_tables([arrow])):
        assert [run.name for run in reported.runs] == ["r64", "r128"]


def test_an_empty_cell_of_diverged_among_others_is_not_guessed() -> None:
    assert refused(
        with_column("diverged", ["true", "true", "true", "", "", ""]),
        "no value: write true or false",
    ) == (5, "diverged")


def test_an_evaluation_before_training_is_left_out_and_mentioned() -> None:
    start = ["r64", "100000000", "64", "2048", "0.0003", "0", "11.9"]
    table = parse_table(as_csv([start, *good_rows()]), "runs.csv")
    assert table.runs[0].tokens.tolist() == [1e9, 2e9, 4e9]
    assert table.warnings == ("runs.csv: evaluations at 0 tokens were left out: 1",)
    assert table.first_rows == (3, 6)


def test_columns_that_mean_nothing_here_are_named_as_ignored() -> None:
    table = parse_table(with_column("flop", ["1"] * 6), "runs.csv")
    assert table.warnings == ("runs.csv: columns ignored: flop",)


def test_the_nameless_index_of_pandas_is_left_out_without_a_word() -> None:
    indexed = parse_table(with_column("", ["0", "1", "2", "3", "4", "5"]), "runs.csv")
    assert indexed.warnings == ()
    assert [run.name for run in indexed.runs] == ["r64", "r128"]


@pytest.mark.parametrize("first", [b"\n", b"  \n", b",,,,,,\n"])
def test_a_blank_first_line_is_named_and_the_table_not_called_empty(first: bytes) -> None:
    assert refused(first + as_csv(good_rows()), "blank: the first row must be the header")[0] == 1


@pytest.mark.parametrize(
    ("row", "column", "text", "says"),
    [
        (
            3,
            "loss",
            "nan",
            "not finite: leave out rows without an evaluation, and mark a run that",
        ),
        (3, "loss", "", "no value: leave out rows without an evaluation, and mark a run that"),
        (3, "loss", "-3.1", "not positive"),
        (3, "loss", "0", "not positive"),
        (3, "loss", "24.5", "perplexity"),
        (3, "loss", "3,1", "not a number"),
        (3, "loss", "3_1", "not a number"),
        (4, "tokens", "inf", "not finite"),
        (4, "tokens", "1e300", "overflow"),
        (4, "tokens", "-4000000000", "not positive"),
        (
            4,
            "tokens",
            "4000",
            "less than one step.* as steps .*, as millions 4e\\+09, as billions",
        ),
        (4, "tokens", "2e9", "one run twice.*a resumed run repeated: remove the earlier rows"),
        (2, "params", "100", "not millions"),
        (2, "params", "1e200", "overflow"),
        (3, "params", "200000000", "one value per run"),
        (3, "learning_rate", "0.0002", "learning_rate=learning_rate takes the highest"),
        (2, "batch_size", "64.5", "whole number"),
        (2, "sequence_length", "0", "not positive"),
        (7, "sequence_length", "4096", "one value per run"),
        (5, "learning_rate", "3", "multiple of 1e-4"),
        (5, "run", "", "no name: fill it in"),
        (3, "loss", "diverged", "mark a run that diverged in the column diverged"),
        (2, "batch_size", "-1", "sequences per optimizer step are expected, as in --column"),
        (5, "run", "\x1b[31m", "printable"),
        (5, "run", "x" * 300, "256 characters"),
    ],
)
def test_a_bad_cell_is_named_by_row_and_column(
    row: int, column: str, text: str, says: str
) -> None:
    with pytest.raises(BadTable, match=says) as caught:
        parse_table(with_cell(row, column, text), "runs.csv")
    assert (caught.value.row, caught.value.column) == (row, column)
    assert f"row {row}, column {column}" in str(caught.value)


@pytest.mark.parametrize("name", HEADER)
def test_a_missing_column_is_named(name: str) -> None:
    header = [f"x_{column}" if column == name else column for column in HEADER]
    assert refused(as_csv(good_rows(), header), "missing") == (1, name)


@pytest.mark.parametrize("name", ["world_size", "config.gradient_accumulation_steps"])
def test_devices_beside_our_columns_are_not_passed_over_in_a_table_of_any_kind(name: str) -> None:
    """Parquet and data frames have only those columns read that are in use."""
    cells = dict(
        zip([*HEADER, name], zip(*[[*r, "8"] for r in good_rows()], strict=True), strict=True)
    )
    frame = pyarrow.table({column: list(each) for column, each in cells.items()})
    for kept in (frame, frame.to_pylist()):
        with pytest.raises(BadTable, match=f"column batch_size: with a column {name}, batch_size"):
            read_tables([kept])
    refused(with_column(name, ["8"] * 6), f"with a column {name}, batch_size may be")


def test_a_column_that_is_there_twice_is_refused() -> None:
    assert refused(with_column("loss", ["3.0"] * 6), "more than once")[1] == "loss"


@pytest.mark.parametrize("content", [b"", b"\n", as_csv([]), b"\xef\xbb\xbf"])
def test_an_empty_table_is_refused(content: bytes) -> None:
    with pytest.raises(BadTable, match="empty"):
        parse_table(content, "runs.csv")


def in_tokens(sequence_length: int, steps: int) -> bytes:
    rows = [
        [
            f"r{batch}",
            "1e8",
            str(batch * sequence_length),
            str(sequence_length),
            "3e-4",
            str(batch * sequence_length * steps),
            f"3.{batch}",
        ]
        for batch in (32, 64, 128)
    ]
    return as_csv(rows)


@pytest.mark.parametrize(
    ("sequence_length", "steps"), [(8192, 38_000), (2048, 61_035), (512, 50_000), (128, 400)]
)
def test_batch_sizes_in_tokens_are_told_from_sequences(sequence_length: int, steps: int) -> None:
    assert refused(in_tokens(sequence_length, steps), "sequences") == (2, "batch_size")


def test_long_runs_with_batch_sizes_that_look_like_tokens_get_a_warning() -> None:
    """With 512 tokens per sequence a batch of 65,536 tokens, taken for sequences, is 34 million of them."""
    reported = parse_table(in_tokens(512, 600_000), "runs.csv").warnings
    assert any("all batch sizes are multiples of the sequence length" in each for each in reported)


def test_one_batch_size_in_tokens_among_sequences_is_found() -> None:
    rows = good_rows()
    for row in rows[3:]:
        row[COLUMN["batch_size"]] = str(128 * 2048)
    assert refused(as_csv(rows), "looks like tokens") == (7, "batch_size")


def test_large_batches_in_sequences_are_left_alone() -> None:
    """2048 sequences of 2048 tokens over 1,000 steps are a real setting."""
    rows = [
        ["a", "2e8", "2048", "2048", "1e-3", str(2048 * 2048 * 1000), "3.1"],
        ["b", "2e8", "64", "64", "1e-3", str(64 * 64 * 400), "4.1"],
    ]
    assert len(parse_table(as_csv(rows), "runs.csv").runs) == 2


def test_flops_that_overflowed_a_64_bit_integer_are_named() -> None:
    cells = [str(int(np.int64(6 * 10**8 * int(row[5]) % 2**64 - 2**63))) for row in good_rows()]
    assert refused(with_column("flops", cells), "overflow")[1] == "flops"


@pytest.mark.parametrize(
    ("column", "cell", "says"),
    [
        ("flops", lambda tokens: 6e8 * tokens * (1 + 1e-9 * tokens), "units are mixed"),
        ("bytes", lambda tokens: 4.0 * tokens + 2e9, "units are mixed"),
        ("bytes", lambda tokens: 1e3 * tokens, "bytes per token"),
        ("diverged", lambda tokens: "maybe", "neither true nor false"),
    ],
)
def test_optional_columns_in_mixed_units_are_refused(
    column: str, cell: Callable[[float], object], says: str
) -> None:
    cells = [str(cell(float(row[5]))) for row in good_rows()]
    with pytest.raises(BadTable, match=says) as caught:
        parse_table(with_column(column, cells), "runs.csv")
    assert caught.value.column == column
    assert caught.value.row is not None


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (slice(0, 3), "exactly"),
        (slice(1, 3), "at all 2 token counts"),
        (slice(0, 2), "at all 2 token counts"),
    ],
)
def test_a_run_or_a_part_of_it_under_another_name_is_refused(kept: slice, says: str) -> None:
    copied: Cells = [["copy", *row[1:]] for row in good_rows()[:3][kept]]
    assert refused(as_csv([*good_rows(), *copied]), f"repeats run 'r64' {says}") == (8, "run")


def test_a_copy_whose_tokens_were_rounded_is_refused_as_the_fit_would_leave_it_out() -> None:
    rows = good_rows()
    copied: Cells = [["copy", *row[1:]] for row in rows[:3]]
    for row in copied:
        row[COLUMN["tokens"]] = f"{1.001 * float(row[COLUMN['tokens']]):.0f}"
    with pytest.raises(BadTable, match="repeats run 'r64' exactly"):
        parse_table(as_csv([*rows, *copied]), "runs.csv")


@pytest.mark.parametrize("first", [0, 1], ids=["whole", "a part"])
def test_a_float32_copy_of_a_run_is_refused(first: int) -> None:
    rows = good_rows()
    rates = {"r64": "0.00031622776601683794", "r128": "0.0006324555320336759"}
    for index, row in enumerate(rows):
        row[COLUMN["learning_rate"]] = rates[row[0]]
        row[COLUMN["loss"]] = str(3.4 - index / 7.0)
    copied: Cells = [["copy", *row[1:]] for row in rows[first:3]]
    for row in copied:
        for column in ("learning_rate", "tokens", "loss"):
            row[COLUMN[column]] = str(float(np.float32(row[COLUMN[column]])))
    assert refused(as_csv([*rows, *copied]), "'copy' repeats run 'r64'") == (8, "run")


def test_runs_that_differ_at_one_of_their_common_token_counts_are_seeds() -> None:
    rows = good_rows()
    seed: Cells = [["seed", *row[1:]] for row in rows[:3]]
    seed[2][COLUMN["loss"]] = "3.0010"
    assert len(parse_table(as_csv([*rows, *seed]), "runs.csv").runs) == 3


@pytest.mark.parametrize("first", [0, 1])
def test_one_run_under_two_names_in_two_tables_is_refused(tmp_path: Path, first: int) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    paths[0].write_bytes(as_csv(good_rows()))
    paths[1].write_bytes(as_csv([["copy", *row[1:]] for row in good_rows()[first:3]]))
    with pytest.raises(
        BadTable, match=r"'copy' repeats run 'r64' .*\(it is in .*a\.csv"
    ) as caught:
        read_tables([str(path) for path in paths])
    assert (caught.value.source, caught.value.row) == (str(paths[1]), 2)


def test_one_run_in_two_tables_is_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_bytes(as_csv(good_rows()))
    with pytest.raises(BadTable, match=r"is also in .*a\.csv") as caught:
        read_tables([str(path) for path in paths])
    assert (caught.value.row, caught.value.column) == (2, "run")


def test_a_ragged_row_is_named_by_its_line_even_after_blank_lines() -> None:
    lines = as_csv(good_rows()).split(b"\n")
    content = b"\n".join([*lines[:2], b"", lines[2].rpartition(b",")[0], *lines[3:]])
    assert refused(content, "cells: 6, but the header has 7") == (4, "loss")


def test_rows_that_a_spreadsheet_left_empty_are_passed_over() -> None:
    content = as_csv(good_rows())
    found = parse_table(content + b",,,,,,\n , ,,,,,\n", "runs.csv")
    assert found.first_rows == parse_table(content, "runs.csv").first_rows


@pytest.mark.parametrize("above", [b"# sweep of March\n", b"sep=;\n"])
def test_a_line_above_the_header_is_asked_for(above: bytes) -> None:
    refused(above + as_csv(good_rows()), "is the first row the header")


def test_a_title_above_the_header_is_shown_as_what_was_found() -> None:
    refused(b"sweep of March,,,,,,\n" + as_csv(good_rows()), "found sweep of March")


@pytest.mark.parametrize("source", ["runs.csv", "runs.csv.gz"])
def test_text_that_is_no_utf8_is_named_by_its_row(source: str) -> None:
    lines = as_csv([[f"{row[0]}-{n}", *row[1:]] for n in range(400) for row in good_rows()])
    content = lines.replace(b"r64-300", b"r\xe964-300")
    row = content[: content.index(b"\xe9")].count(b"\n") + 1
    with pytest.raises(BadTable, match="not UTF-8 text") as caught:
        parse_table(gzip.compress(content) if source.endswith("gz") else content, source)
    assert caught.value.row == row > 1000


def test_rows_beyond_the_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_ROWS", 4)
    ragged = b"a row that is not read any more\n"
    assert refused(as_csv(good_rows()) + ragged, "more than 4 rows")[0] == 6


def test_a_name_that_no_file_can_have_is_named() -> None:
    with pytest.raises(BadTable, match=r"not the name of a file: .*embedded null"):
        read_table("a\0b.csv")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadTable, match="No such file"):
        read_table(str(tmp_path / "absent.csv"))
    with pytest.raises(BadTable, match="No such file"):
        read_table(f"file://{tmp_path}/absent.csv")
    with pytest.raises(BadTable, match="gzip"):
        parse_table(b"not gzip", "runs.csv.gz")
    with pytest.raises(BadTable, match="Parquet"):
        parse_table(b"PAR1 no PAR1", "runs.parquet")
