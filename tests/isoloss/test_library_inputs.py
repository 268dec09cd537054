"""What the library takes: runs from wherever they are, and words for what it does not take."""

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.csv
import pytest

import isoloss
from isoloss import datasets
from isoloss.laws import InvalidRunError

FEW = isoloss.FitOptions(bootstrap_samples=20)


@pytest.fixture(scope="module")
def runs() -> isoloss.RunSet:
    return datasets.load_sample_runs()


@pytest.fixture(scope="module")
def expected(runs: isoloss.RunSet) -> isoloss.Laws:
    return isoloss.fit_laws(list(runs.runs), FEW)


def path_of(folder: Path) -> Path:
    path = folder / "runs.csv"
    path.write_text(datasets.sample_text(datasets.RUNS))
    return path


SOURCES: dict[str, Callable[[Path], Any]] = {
    "a table's name": lambda folder: str(path_of(folder)),
    "a path": path_of,
    "what read_runs returned": lambda folder: isoloss.read_runs(path_of(folder)),
    "a pandas data frame": lambda folder: pandas.read_csv(path_of(folder)),
    "a data frame with an index": lambda folder: pandas.read_csv(path_of(folder)).iloc[::-1],
    "an Arrow table": lambda folder: pyarrow.csv.read_csv(path_of(folder)),
    "a list of rows": lambda folder: pyarrow.csv.read_csv(path_of(folder)).to_pylist(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_laws_are_the_same_wherever_the_runs_come_from(
    source: str, tmp_path: Path, expected: isoloss.Laws
) -> None:
    laws = isoloss.fit_laws(SOURCES[source](tmp_path), FEW)
    assert laws.status == "fitted"
    assert laws.learning_rate.slope == pytest.approx(expected.learning_rate.slope)
    assert laws.batch_size.slope == pytest.approx(expected.batch_size.slope)


def test_a_data_frame_is_read_without_a_warning_and_beside_a_table(tmp_path: Path) -> None:
    frame = pandas.read_csv(path_of(tmp_path))
    half = frame[frame["params"] < 2e8]
    assert isoloss.read_runs(half).warnings == ()
    other = tmp_path / "other.csv"
    frame[frame["params"] > 2e8].to_csv(other, index=False)
    assert len(isoloss.read_runs(half, other).runs) == 75
    with pytest.raises(isoloss.BadInput, match=r"run 'n30m.*' is also in data frame"):
        isoloss.read_runs(half, half)


def test_a_bad_cell_of_a_data_frame_is_named(tmp_path: Path) -> None:
    frame = pandas.read_csv(path_of(tmp_path))
    frame.loc[2, "loss"] = np.nan
    with pytest.raises(isoloss.BadInput, match="data frame: row 3, column loss: no value"):
        isoloss.fit_laws(frame)
    with pytest.raises(isoloss.BadInput, match=r"data frame: row 1, column loss: missing"):
        isoloss.read_runs(frame.drop(columns="loss"))


def test_laws_of_runs_that_still_train_are_provisional_unless_told_otherwise(
    runs: isoloss.RunSet,
) -> None:
    training = [*runs.runs[:-1], unfinished(runs.runs[-1])]
    assert isoloss.fit_laws(training, FEW).status == "provisional"
    assert isoloss.fit_laws(training, FEW, provisional=False).status == "fitted"


def test_what_reading_a_table_warned_of_is_among_the_laws_own_warnings_and_with_every_answer(
    tmp_path: Path,
) -> None:
    frame = pandas.read_csv(path_of(tmp_path))
    frame["learning_rate"] *= 100
    (warning,) = isoloss.read_runs(frame).warnings
    for given in (frame, isoloss.read_runs(frame)):
        laws = isoloss.fit_laws(given, FEW)
        assert laws.warnings.count(warning) == 1
    question = isoloss.PredictionQuery(initial_loss=2.75, cpt_flops=3e19, params=1e9)
    assert warning in isoloss.predict(laws, question).warnings


def unfinished(run: isoloss.Run) -> isoloss.Run:
    return replace(run, finished=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, r"not int$"),
        ({"run": [1]}, r"item 0 of what was given is of type str$"),
        ([1, 2], r"item 0 of what was given is of type int$"),
    ],
    ids=str,
)
def test_what_is_no_run_is_named_with_what_is_taken(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"the name of a table, .* or a data frame.*{words}"):
        isoloss.fit_laws(given)


class LazyFrame:
    """A query as polars has it: no rows before they are collected."""

    def collect(self) -> None: ...


def test_a_query_that_has_no_rows_yet_is_said_to_be_collected_first() -> None:
    for take in (isoloss.read_runs, isoloss.fit_laws):
        with pytest.raises(TypeError, match=r"not LazyFrame: it has no rows before .collect\(\)"):
            take(LazyFrame())  # type: ignore[operator]


def test_a_row_of_a_list_may_lack_what_others_have() -> None:
    rows: list[dict[str, object]] = [
        {
            "run": "a",
            "params": 1e8,
            "batch_size": 64,
            "sequence_length": 2048,
            "lr": rate,
            "step": step,
        }
        for step, rate in ((100, 1e-5), (1000, 3e-4))
    ]
    rows[1]["eval/loss"] = 3.4
    (run,) = isoloss.read_runs(rows).runs
    assert (run.learning_rate, run.losses.tolist()) == (3e-4, [3.4])
    with pytest.raises(isoloss.BadInput, match="list of rows: row 1, column loss: missing"):
        isoloss.read_runs(rows[:1])


def test_what_is_no_source_is_named() -> None:
    with pytest.raises(TypeError, match=r"read_runs takes names of tables, .* not list"):
        isoloss.read_runs(["runs.csv"])  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["cpt_flops", "initial_loss", "params", "round_to"])
def test_a_number_given_as_text_is_refused_by_name(field: str) -> None:
    with pytest.raises(TypeError, match=f"{field} must be a number, not str '3e19'"):
        isoloss.PredictionQuery(**{field: "3e19"})  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    query = isoloss.PredictionQuery(total_flops=np.float64(1e20), round_to=np.int64(8))  # type: ignore[arg-type]
    assert query.round_to == 8


def test_whole_numbers_beyond_64_bits_are_asked_as_floats_are(
    expected: isoloss.Laws,
) -> None:
    params, tokens = 10**9, 5 * 10**9
    asked = {"params": params, "initial_loss": 2.75, "cpt_flops": 6 * params * tokens}
    whole, floats = isoloss.PredictionQuery(**asked), {k: float(v) for k, v in asked.items()}
    answer = isoloss.predict(expected, whole)
    assert answer == isoloss.predict(expected, isoloss.PredictionQuery(**floats))  # type: ignore[arg-type]


def test_runs_of_lists_are_those_of_arrays(runs: isoloss.RunSet, expected: isoloss.Laws) -> None:
    lists = [
        replace(run, tokens=run.tokens.tolist(), losses=run.losses.tolist())  # type: ignore[arg-type]
        for run in runs.runs
    ]
    assert isoloss.fit_laws(lists, FEW).learning_rate.slope == expected.learning_rate.slope


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("params", lambda run: {"params": run.params / 1e6}),
        ("batch_size", lambda run: {"batch_size": run.batch_size * run.sequence_length}),
        ("tokens", lambda run: {"tokens": run.tokens / 1e9}),
        ("learning_rate", lambda run: {"learning_rate": run.learning_rate * 1e4}),
        ("losses", lambda run: {"losses": np.exp(run.losses)}),
        ("flops_per_token", lambda run: {"flops_per_token": run.params / 1e3}),
    ],
    ids=["millions", "tokens", "billions", "1e-4", "perplexity", "overflow"],
)
def test_runs_in_memory_are_refused_for_the_units_that_a_table_is_refused_for(
    runs: isoloss.RunSet, field: str, change: Any
) -> None:
    changed = [replace(run, **change(run)) for run in runs.runs]
    with pytest.raises(InvalidRunError) as raised:
        isoloss.fit_laws(changed, FEW)
    assert raised.value.field == field
    assert raised.value.run in {run.name for run in runs.runs}


def test_a_name_that_two_runs_in_memory_have_is_refused(runs: isoloss.RunSet) -> None:
    with pytest.raises(InvalidRunError, match="name is that of 2 runs"):
        isoloss.fit_laws([*runs.runs, replace(runs.runs[0], learning_rate=1e-5)], FEW)


def test_doubts_about_units_of_runs_in_memory_are_among_the_laws_warnings(
    runs: isoloss.RunSet,
) -> None:
    percent = [replace(run, learning_rate=100 * run.learning_rate) for run in runs.runs]
    (warning,) = isoloss.fit_laws(percent, FEW).warnings
    assert warning.startswith("list of runs: most learning rates are above 0.03")


@pytest.mark.parametrize(
    "field",
    [
        *("initial_loss", "initial_loss_standard_error"),
        *("pretraining_tokens", "pretraining_learning_rate"),
    ],
)
def test_a_total_compute_takes_nothing_of_a_checkpoint(expected: isoloss.Laws, field: str) -> None:
    query = isoloss.PredictionQuery(total_flops=1e20, params=1e9, **{field: 2.0})
    with pytest.raises(ValueError, match=f"total_flops takes no {field}: it is of a run from"):
        isoloss.predict(expected, query)


def test_an_unknown_composition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="composition must be Measured or Paper, not 'paper'"):
        isoloss.PredictionQuery(total_flops=1e20, composition="paper")  # type: ignore[arg-type]


def test_the_version_is_that_of_the_installed_package() -> None:
    assert isoloss.__version__ == version("isoloss")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("form", "linear", "PowerLawOfLoss or LinearInLogCompute, not 'linear'"),
        ("irreducible_loss", "1.5", "a number, not str '1.5'"),
        ("irreducible_loss", float("nan"), "nan is not a positive, finite number"),
        ("irreducible_loss", float("inf"), "inf is not a positive, finite number"),
        ("irreducible_loss", -1, "-1 is not a positive"),
        ("interval", 95, "95 must be below 1, as 0.8"),
        ("bootstrap_samples", 20.0, "20.0 is not a whole number of 1 or more"),
        ("seed", -1, "-1 is not a whole number of 0 or more"),
        ("exclude", "bad-run", r"names of runs, as \('bad-run',\)"),
        ("keep_outliers", "no", "neither True nor False: 'no'"),
        ("max_extrapolation", 0, "0 is not a positive"),
    ],
)
def test_an_option_of_a_fit_that_is_none_is_named(option: str, value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"FitOptions: {option}.*{words}"):
        isoloss.FitOptions(**{option: value})


def test_options_of_a_fit_take_numbers_of_numpy_and_lists() -> None:
    options = isoloss.FitOptions(
        bootstrap_samples=np.int64(20),  # type: ignore[arg-type]
        irreducible_loss=np.float32(1.5),  # type: ignore[arg-type]
        exclude=["a"],  # type: ignore[arg-type]
    )
    assert options == isoloss.FitOptions(
        bootstrap_samples=20, irreducible_loss=1.5, exclude=("a",)
    )
    assert [type(each) for each in (options.bootstrap_samples, options.irreducible_loss)] == [
        int,
        float,
    ]


RUN = {
    "name": "a",
    "params": 1e8,
    "batch_size": 64,
    "sequence_length": 2048,
    "learning_rate": 1e-3,
    "tokens": [1e9],
    "losses": [3.5],
}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("params", "1e8", "run a: params must be a number, not str '1e8'"),
        ("learning_rate", None, "run a: learning_rate must be a number, not NoneType"),
        ("flops_per_token", "6e8", "run a: flops_per_token must be a number"),
        ("sequence_length", "2048", "run a: sequence_length must be a number"),
        ("sequence_length", 2048.5, "run a: sequence_length must be whole, not 2048.5"),
        ("name", 3, "Run: name must be a text, not int 3"),
    ],
)
def test_a_field_of_a_run_that_is_none_is_named(field: str, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        isoloss.Run(**{**RUN, field: value})  # type: ignore[arg-type]
    whole = isoloss.Run(**{**RUN, "sequence_length": 2048.0})  # type: ignore[arg-type]
    assert type(whole.sequence_length) is int


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "composition_error",
            0.3,
            "composition_error must be two numbers, of ln LR and ln B, not 0.3",
        ),
        ("composition_error", (0.3,), "composition_error must be two numbers"),
        ("composition_error", ("a", 1), "composition_error must be a number, not str 'a'"),
        ("sequence_length", 0, "^sequence_length: 0 is not a positive"),
        ("sequence_length", 2048.5, "^sequence_length: 2048.5 is not a whole number"),
    ],
)
def test_a_field_of_a_question_that_is_none_is_named(
    expected: isoloss.Laws, field: str, value: Any, words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        isoloss.predict(expected, isoloss.PredictionQuery(total_flops=1e20, **{field: value}))


def test_laws_and_question_in_the_wrong_order_or_as_something_else_are_named(
    expected: isoloss.Laws, runs: isoloss.RunSet
) -> None:
    asked = isoloss.PredictionQuery(total_flops=1e20)
    for laws, query in (
        (asked, expected),
        ("laws.json", asked),
        (expected, {"total_flops": 1e20}),
    ):
        names = f"not {type(laws).__name__} and {type(query).__name__}"
        with pytest.raises(TypeError, match=f"a PredictionQuery, {names}"):
            isoloss.predict(laws, query)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options as FitOptions, not dict"):
        isoloss.fit_laws(runs, {"seed": 1})  # type: ignore[arg-type]
