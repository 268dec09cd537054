"""What a bad table's message blames, and what it suggests."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest

import isoloss
from isoloss import datasets, formatting
from isoloss.tables import BadTable, parse_table
from isoloss.tables.run_objects import check_runs
from tests.support.tables import HEADER, Cells, as_csv, good_rows, refused

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "your-runs.md"
TOKENS = HEADER.index("tokens")
LOSS = HEADER.index("loss")
BATCH = HEADER.index("batch_size")


def scaled(column: int, factor: float) -> Cells:
    """The good rows with one column in another unit."""
    rows = good_rows()
    for row in rows:
        row[column] = f"{float(row[column]) * factor:.6g}"
    return rows


def test_all_missing_columns_are_named_at_once() -> None:
    header = ["run", "n", "bs", *HEADER[3:]]
    with pytest.raises(BadTable, match="columns missing: params, batch_size; found run, n, bs"):
        parse_table(as_csv(good_rows(), header), "runs.csv")


@pytest.mark.parametrize(
    ("separator", "name"),
    [(";", "runs.csv"), ("\t", "runs.csv"), ("\t", "runs.tsv"), ("|", "runs.csv")],
)
def test_semicolons_tabs_and_bars_separate_as_commas_do(separator: str, name: str) -> None:
    content = as_csv(good_rows()).replace(b",", separator.encode())
    (first, *_) = parse_table(content, name).runs
    (expected, *_) = parse_table(as_csv(good_rows()), "runs.csv").runs
    assert (first.name, first.params, [*first.tokens], [*first.losses]) == (
        expected.name,
        expected.params,
        [*expected.tokens],
        [*expected.losses],
    )


@pytest.mark.parametrize(
    ("column", "written"),
    [
        ("params", "100M"),
        ("params", "0.1B"),
        ("params", "100,000,000"),
        ("params", "100 M"),
        ("params", "100 000\u202f000"),
        ("params", "100'000'000"),
        ("sequence_length", "2,048"),
        ("learning_rate", "1e\u22123"),
    ],
)
def test_numbers_are_read_as_people_write_them(column: str, written: str) -> None:
    rows = good_rows()
    for row in rows:
        row[HEADER.index(column)] = written
    runs = parse_table(as_csv(rows), "runs.csv").runs
    assert {(run.params, run.sequence_length) for run in runs} == {(1e8, 2048)}
    assert column != "learning_rate" or {run.learning_rate for run in runs} == {1e-3}


@pytest.mark.parametrize(
    ("column", "written"),
    [("tokens", "1,475B"), ("tokens", "2,5B"), ("sequence_length", "2k"), ("loss", "3,123")],
)
def test_what_could_be_two_numbers_is_refused(column: str, written: str) -> None:
    rows = good_rows()
    rows[0][HEADER.index(column)] = written
    assert refused(as_csv(rows), "is not a number") == (2, column)


def test_a_perplexity_says_what_the_loss_is() -> None:
    header = [*HEADER[:-1], "eval/perplexity"]
    match = "eval/perplexity is exp.loss.: write its natural logarithm"
    assert refused(as_csv(good_rows(), header), match)[1] == "loss"


@pytest.mark.parametrize("between", [" ", "-", "\u00a0", "_\u200b"])
def test_our_names_are_read_as_a_spreadsheet_writes_them(between: str) -> None:
    spelt = [name.replace("_", between).title() for name in HEADER]
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


def with_steps(length_of: Callable[[str], int], name: str = "step") -> bytes:
    """The good rows with a column of optimizer steps, by a run's true sequence length."""
    rows = [
        [*row, str(round(float(row[TOKENS]) / int(row[BATCH]) / length_of(row[0])))]
        for row in good_rows()
    ]
    return as_csv(rows, [*HEADER, name])


@pytest.mark.parametrize("name", ["step", "_step", "train/global_step"])
def test_steps_that_contradict_one_runs_tokens_are_refused(name: str) -> None:
    """As of another sequence length, batch size or accumulation at one size."""
    assert parse_table(with_steps(lambda _: 2048, name), "runs.csv").runs
    content = with_steps(lambda run: 1024 if run == "r128" else 2048, name)
    row, column = refused(
        content, rf"{name}'?\*batch_size\*sequence_length are .*, 2 times as many"
    )
    assert (row, column) == (5, "tokens")


def test_a_count_of_log_calls_contradicts_no_tokens() -> None:
    rows = [[*row, str(number)] for number, row in enumerate(good_rows())]
    assert parse_table(as_csv(rows, [*HEADER, "step"]), "runs.csv").runs


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("config.output_router_logits", "config.output_router_logits is true"),
        ("label_smoothing", "label_smoothing is true: loss may have label smoothing in it"),
    ],
)
def test_what_may_be_added_to_the_loss_is_named_in_tables_with_our_columns(
    name: str, says: str
) -> None:
    content = as_csv([[*row, "true"] for row in good_rows()], [*HEADER, name])
    warning, ignored = parse_table(content, "runs.csv").warnings
    assert says in warning
    assert ignored == f"runs.csv: columns ignored: {name}"


@pytest.mark.parametrize("name", ["weight_decay", "optimizer.beta2", "lr_scheduler_type"])
def test_a_recipe_in_which_runs_differ_is_named(name: str) -> None:
    rows = [[*row, "0.10" if row[0] == good_rows()[0][0] else ".2"] for row in good_rows()]
    warnings = parse_table(as_csv(rows, [*HEADER, name]), "runs.csv").warnings
    assert any(f"runs differ in {name} (0.1, 0.2)" in warning for warning in warnings)
    listed = [dict(zip([*HEADER, name], row, strict=True)) for row in rows]
    for source in (
        listed,
        pyarrow.Table.from_pylist(listed),
    ):  # of which columns in use alone are read
        assert any(f"runs differ in {name}" in each for each in isoloss.read_runs(source).warnings)
    same = [[*row, "0.10" if at % 2 else "0.1"] for at, row in enumerate(good_rows())]
    assert len(parse_table(as_csv(same, [*HEADER, name]), "runs.csv").warnings) == 1


def test_rows_of_several_texts_in_one_run_are_named() -> None:
    rows = [[*row, "train" if at % 2 else "val"] for at, row in enumerate(good_rows())]
    warning, _ = parse_table(as_csv(rows, [*HEADER, "split"]), "runs.csv").warnings
    assert "rows of one run differ in split (train, val)" in warning


def test_a_table_without_names_of_runs_is_not_told_to_take_a_column_of_ours_for_them() -> None:
    """Of runs that diverged, say."""
    at = HEADER.index("run")
    rows = [[*row[:at], *row[at + 1 :], "true"] for row in good_rows()]
    rows[0][-1] = "false"
    header = [*HEADER[:at], *HEADER[at + 1 :], "diverged"]
    with pytest.raises(BadTable) as caught:
        parse_table(as_csv(rows, header), "runs.csv")
    assert "--column" not in str(caught.value)


def test_a_learning_rate_below_what_was_logged_is_refused_in_tables_with_our_columns() -> None:
    rows = [[*row, "0.0006" if row[0] == "r128" else "0.0002"] for row in good_rows()]
    match = "learning_rate is 0.0003 for run r128, which was trained at 0.0006 by train/learning"
    assert refused(as_csv(rows, [*HEADER, "train/learning_rate"]), match)[1] == "learning_rate"


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (
            lambda batch: 2 if batch >= 256 else 1,
            "a batch size of 256 end at 2.4e+09 tokens, and those with 128 at 2 times",
        ),
        (
            lambda batch: batch // 32,
            "a batch size of 64 end at 2.4e+09 tokens, and those with 32 at 2 times",
        ),
        (lambda batch: 1, None),
        (lambda batch: 32 / batch, None),
        (lambda batch: 1.4 if batch >= 256 else 1, None),
    ],
    ids=["two passes", "devices", "all", "equal steps", "shorter"],
)
def test_tokens_of_one_pass_at_large_batch_sizes_are_named(
    share: Callable[[float], float], says: str | None
) -> None:
    sample = datasets.load_sample_runs().runs
    runs = [replace(run, tokens=run.tokens / share(run.batch_size)) for run in sample]
    warnings = check_runs(runs)
    assert len(warnings) == bool(says)
    assert says is None or says in warnings[0]


def test_tokens_that_are_no_whole_steps_in_one_run_are_named() -> None:
    """What another sequence length than the one that is written leaves."""
    rows = good_rows()
    for row in rows:
        step = int(row[BATCH]) * (3000 if row[0] == "r128" else 2048)
        row[TOKENS] = str(int(row[TOKENS]) // step * step)
    (warning,) = parse_table(as_csv(rows), "runs.csv").warnings
    assert warning.startswith("runs.csv: tokens of 1 run (r128) are not whole steps of batch_size")


@pytest.mark.parametrize("states", [("finished", "crashed"), ("FINISHED", "FAILED")])
def test_runs_that_did_not_finish_are_named_in_tables_with_our_columns(
    states: tuple[str, str],
) -> None:
    rows = [[*row, states[row[0] == "r128"]] for row in good_rows()]
    (warning,) = parse_table(as_csv(rows, [*HEADER, "State"]), "runs.csv").warnings
    state = states[1].lower()
    assert f"State: runs that did not finish ({state}): 1 (r128)" in warning


def test_the_state_of_runs_that_all_finished_is_no_ignored_column() -> None:
    rows = [[*row, "finished"] for row in good_rows()]
    assert parse_table(as_csv(rows, [*HEADER, "State"]), "runs.csv").warnings == ()


def test_short_names_are_suggested() -> None:
    header = ["run", "N", "bs", "ctx", "lr", "D", "val_loss"]
    match = (
        r"params=EXPRESSION \(did you mean N\?\).*batch_size=EXPRESSION \(did you mean bs\?\).*"
    )
    match += r"sequence_length=EXPRESSION \(did you mean ctx\?\).*tokens=EXPRESSION \(did you mean D\?\)"
    refused(as_csv(good_rows(), header), match)


@pytest.mark.parametrize(
    ("column", "factor", "answer"), [("tokens", 0.5, "1.98e-4"), ("params", 1.4, "2.45e-4")]
)
def test_what_no_check_sees_moves_the_answer_as_the_page_states(
    column: str, factor: float, answer: str
) -> None:
    rows = datasets.load_sample_runs().runs
    changed = [
        replace(run, **{column: getattr(run, column) * factor}) if run.params == 1e8 else run
        for run in rows
    ]
    laws = isoloss.fit_laws(changed, isoloss.FitOptions(bootstrap_samples=20))
    predicted = laws.predict(initial_loss=2.75, cpt_tokens=5e9, params=1e9)
    assert isinstance(predicted, isoloss.Prediction)
    assert formatting.learning_rate(predicted.learning_rate.value) == answer
    assert (
        f"moved {'the answer from 2.01e-4' if column == 'tokens' else 'it'} to {answer}"
        in PAGE.read_text()
    )
