"""What a bad table's message blames, and what it suggests."""

import pytest

from isoloss import datasets
from isoloss.tables import BadTable, parse_table, read_table
from tests.support.tables import HEADER, Cells, as_csv, good_rows, refused

TOKENS = HEADER.index("tokens")
LOSS = HEADER.index("loss")
BATCH = HEADER.index("batch_size")


def scaled(column: int, factor: float) -> Cells:
    """The good rows with one column in another unit."""
    rows = good_rows()
    for row in rows:
        row[column] = f"{float(row[column]) * factor:.6g}"
    return rows


def in_steps() -> Cells:
    rows = good_rows()
    for row in rows:
        row[TOKENS] = str(int(row[TOKENS]) // (int(row[BATCH]) * 2048))
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (in_steps(), "read as steps they are 9.99948e+08 tokens"),
        (scaled(TOKENS, 1e-9), "as billions 1e+09"),
        (scaled(TOKENS, 1e-6), "as millions 1e+09"),
    ],
    ids=["steps", "billions", "millions"],
)
def test_tokens_in_steps_billions_or_millions_are_blamed_on_tokens(rows: Cells, says: str) -> None:
    with pytest.raises(BadTable) as caught:
        parse_table(as_csv(rows), "runs.csv")
    assert (caught.value.row, caught.value.column) == (2, "tokens")
    assert "less than one step" in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize("cell", ["", "NaN"])
def test_a_row_without_a_loss_says_what_logs_of_training_need(cell: str) -> None:
    rows = good_rows()
    rows[1][LOSS] = cell
    with pytest.raises(
        BadTable, match="leave out rows without an evaluation, and mark a run that"
    ):
        parse_table(as_csv(rows), "runs.csv")


def test_a_constant_loss_is_named_and_not_called_an_edge() -> None:
    rows = good_rows()
    for row in rows:
        row[LOSS] = "3.2"
    assert refused(as_csv(rows), r"every row has the same loss, 3\.2")[1] == "loss"


@pytest.mark.parametrize("scheme", ["https", "http", "ftp"])
def test_a_web_address_is_told_from_a_missing_file(scheme: str) -> None:
    with pytest.raises(
        BadTable, match=f"runs.csv: {scheme}:// is not supported: download the table"
    ) as no:
        read_table(f"{scheme}://host/runs.csv")
    assert "No such file" not in no.value.message


def test_all_missing_columns_are_named_at_once() -> None:
    header = ["run", "n", "bs", *HEADER[3:]]
    with pytest.raises(BadTable, match="columns missing: params, batch_size; found run, n, bs"):
        parse_table(as_csv(good_rows(), header), "runs.csv")


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_recognised(separator: str, name: str) -> None:
    content = as_csv(good_rows()).replace(b",", separator.encode())
    message = f"separated by {name}, not by commas: save it with commas, and numbers with points"
    assert refused(content, message)[0] == 1


def test_our_names_are_read_as_a_spreadsheet_writes_them() -> None:
    spelt = [name.replace("_", " ").title() for name in HEADER]
    rows = [[*row, "x"] for row in good_rows()]
    theirs = parse_table(as_csv(rows, [*spelt, "Seen By"]), "runs.csv")
    ours = parse_table(as_csv(good_rows()), "runs.csv")
    assert [run.name for run in theirs.runs] == [run.name for run in ours.runs]
    assert [list(run.losses) for run in theirs.runs] == [list(run.losses) for run in ours.runs]
    assert theirs.warnings == ("runs.csv: columns ignored: Seen By",)


def test_two_spellings_of_one_name_are_not_chosen_between() -> None:
    spelt = ["Loss" if name == "loss" else name for name in HEADER]
    rows = [[*row, "1.0"] for row in good_rows()]
    assert refused(as_csv(rows, [*spelt, "LOSS"]), "missing; found .*Loss.*LOSS")[1] == "loss"


@pytest.mark.parametrize(("factor", "warns"), [(1.0, False), (1.442695, True)])
def test_losses_in_bits_are_suspected_where_bytes_are_given(factor: float, warns: bool) -> None:
    rows = [[*row, str(4.4 * float(row[TOKENS]))] for row in scaled(LOSS, factor)]
    table = parse_table(as_csv(rows, [*HEADER, "bytes"]), "runs.csv")
    assert any("not in bits" in warning for warning in table.warnings) is warns


RATE = HEADER.index("learning_rate")


def test_learning_rates_in_percent_are_suspected() -> None:
    rows = good_rows()
    for row in rows:
        row[RATE] = "0.06"
    (warning,) = parse_table(as_csv(rows), "runs.csv").warnings
    assert warning.startswith("runs.csv: most learning rates are above 0.03, up to 0.06")
    assert "divide them by 100" in warning


@pytest.mark.parametrize(("factor", "warns"), [(1, False), (100, True)])
def test_the_sample_runs_are_suspected_where_their_learning_rates_are_in_percent(
    factor: int, warns: bool
) -> None:
    head, *lines = datasets.sample_text(datasets.RUNS).splitlines()
    rate = head.split(",").index("learning_rate")
    rows = [line.split(",") for line in lines]
    for row in rows:
        row[rate] = f"{factor * float(row[rate]):g}"
    table = parse_table(as_csv(rows, head.split(",")), "runs.csv")
    assert any("divide them by 100" in each for each in table.warnings) is warns


@pytest.mark.parametrize("optimizer", ["SGD", "sgd-momentum", "Muon"])
def test_large_learning_rates_of_sgd_and_muon_are_not_suspected(optimizer: str) -> None:
    rows = [[*row, optimizer] for row in good_rows()]
    for row in rows:
        row[RATE] = "0.1"
    assert parse_table(as_csv(rows, [*HEADER, "optimizer"]), "runs.csv").warnings == ()


def test_a_grid_that_only_reaches_large_learning_rates_is_not_suspected() -> None:
    rows = good_rows()
    for row in rows[:3]:
        row[RATE] = "0.06"
    assert parse_table(as_csv(rows), "runs.csv").warnings == ()
