"""`--column NAME=EXPRESSION`: what is computed, and what is refused with the names that there are."""

import pytest

from isoloss.errors import BadInput
from isoloss.tables import OPTIONAL, REQUIRED, BadTable, naming_of, parse_table
from isoloss.tables.expressions import parse_option
from tests.support.tables import HEADER, as_csv, good_rows

VALUES = {"step": 10.0, "batch_size": 4.0, "train/loss": 2.0, "empty": None}


def value(text: str) -> float | None:
    return parse_option(f"tokens={text}", (*REQUIRED, *OPTIONAL)).value(VALUES, VALUES)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("step", 10.0),
        ("train/loss", 2.0),
        ("124e6", 124e6),
        ("step*batch_size*2048", 81920.0),
        ("'train/loss'*0.5 + step", 11.0),
        ("(step - 2) / -batch_size", -2.0),
        ("step*1_000", 10_000.0),
        ("step*empty", None),
    ],
)
def test_a_column_is_a_name_a_number_or_arithmetic(text: str, result: float | None) -> None:
    assert value(text) == result


@pytest.mark.parametrize(
    "text",
    [
        "step**9",
        "step(2)",
        "__import__('os')",
        "step.real",
        "step if step else 1",
        "[step]",
        "step; step",
        "step*",
        "lambda: 1",
        "True",
        "1j",
        "step @ step",
        "step, step",
        "~step",
        "(" * 300 + "1" + ")" * 300,
        "1+" * 400 + "1",
    ],
)
def test_whatever_else_python_has_is_refused_by_the_option(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--column tokens=") as refused:
        parse_option(f"tokens={text}", REQUIRED).names({"step"})
    assert "it takes numbers, names of columns (odd ones in quotes), + - * / and" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loss", "write NAME=EXPRESSION, as in --column loss=eval/loss"),
        ("loss=", "write NAME=EXPRESSION"),
        (
            "lose=eval/loss",
            "no column 'lose' to fill (did you mean loss or flops?); there are run, params",
        ),
    ],
)
def test_an_option_that_fills_no_column_of_ours_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        naming_of([text])
    assert says in str(refused.value)


def test_a_column_is_filled_once() -> None:
    with pytest.raises(BadInput, match="--column loss: given more than once"):
        naming_of(["loss=a", "loss=b"])


def renamed(**names: str) -> bytes:
    """The good rows with some columns under other names."""
    return as_csv(good_rows(), [names.get(name, name) for name in HEADER])


def test_columns_are_filled_from_others_of_the_table() -> None:
    table = parse_table(
        renamed(loss="held out", params="millions"),
        "runs.csv",
        naming_of({"loss": "held out", "params": "millions*1"}),
    )
    assert table.runs[0].losses.tolist() == [3.4064, 3.2, 3.0]
    assert table.read[0].columns["loss"] == "held out"


def test_a_column_of_ours_in_an_expression_is_the_one_that_an_option_fills() -> None:
    """Else tokens would be those of one device."""
    naming = naming_of(["batch_size=batch_size*8", "tokens=tokens*batch_size/batch_size*8"])
    table = parse_table(as_csv(good_rows()), "runs.csv", naming)
    assert (table.runs[0].batch_size, table.runs[0].tokens[0]) == (512, 8e9)
    steps = naming_of(["batch_size=batch_size*8", "tokens=step*batch_size*sequence_length"])
    table = parse_table(renamed(tokens="step"), "runs.csv", steps)
    assert table.runs[0].tokens[0] == 1e9 * 512 * 2048


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("loss=helt out", "--column loss=helt out: not readable: it takes numbers"),
        (
            "loss=held_out",
            "--column loss=held_out: no column 'held_out' (did you mean held out?); found run, params",
        ),
        ("loss=held/out*2", "no column 'held'"),
        ("tokens=tokens*run", "run is a name, not a number"),
        ("run=tokens*2", "run takes the name of one column"),
        ("run=name", "no column 'name'"),
        ("loss=3", "--column loss=3: a column of the table itself is expected"),
    ],
)
def test_a_name_that_no_column_has_is_named_with_near_ones(option: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_table(renamed(loss="held out"), "runs.csv", naming_of([option]))
    assert says in str(refused.value)


@pytest.mark.parametrize("column", ["optimizer", "seed"])
def test_a_column_of_text_takes_one_column(column: str) -> None:
    with pytest.raises(BadInput, match=f"{column} takes the name of one column"):
        parse_table(as_csv(good_rows()), "runs.csv", naming_of([f"{column}=params*2"]))


def test_an_odd_name_in_arithmetic_is_said_to_take_quotes() -> None:
    with pytest.raises(BadTable) as refused:
        parse_table(renamed(loss="val/bpb"), "runs.csv", naming_of(["loss=val/bpb*3.2"]))
    assert "val/bpb is a column, and in arithmetic it takes quotes: 'val/bpb'" in str(
        refused.value
    )


def test_options_that_depend_on_each_other_are_refused() -> None:
    naming = naming_of(["batch_size=tokens/7", "tokens=batch_size*9"])
    with pytest.raises(BadInput, match="depends on itself"):
        parse_table(as_csv(good_rows()), "runs.csv", naming)
    # The batch size is total_batch_size / sequence_length.
    circle = naming_of(["sequence_length=batch_size*2"])
    with pytest.raises(BadInput, match=r"^--column sequence_length=batch_size\*2: it depends on"):
        parse_table(renamed(batch_size="total_batch_size"), "runs.csv", circle)


@pytest.mark.parametrize(
    ("cell", "says"), [("many", "'many' (step) is not a number"), ("1_000", "'1_000'")]
)
def test_a_cell_of_an_expression_that_is_no_number_is_named_by_its_row(
    cell: str, says: str
) -> None:
    rows = good_rows()
    rows[2][5] = cell
    content = as_csv(rows, [*HEADER[:5], "step", "loss"])
    with pytest.raises(BadTable) as refused:
        parse_table(content, "runs.csv", naming_of(["tokens=step*batch_size*sequence_length"]))
    assert (refused.value.row, refused.value.column) == (4, "tokens")
    assert says in str(refused.value)


def test_a_division_by_nothing_is_named_by_its_row() -> None:
    with pytest.raises(BadTable, match="division by zero") as refused:
        parse_table(
            as_csv(good_rows()), "runs.csv", naming_of(["tokens=tokens/(batch_size-batch_size)"])
        )
    assert (refused.value.row, refused.value.column) == (2, "tokens")


def test_units_are_checked_after_an_expression_and_the_message_says_what_it_was() -> None:
    with pytest.raises(BadTable, match="less than one step") as refused:
        parse_table(as_csv(good_rows()), "runs.csv", naming_of(["tokens=tokens/1e9"]))
    assert str(refused.value).endswith("(tokens is tokens/1e9)")
