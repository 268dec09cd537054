"""`isoloss fit`: laws or refusals from tables, and what bad tables say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from isoloss import datasets
from tests.support.command_line import Isoloss
from tests.support.synthetic_runs import synthetic_runs, write_runs
from tests.support.tables import as_csv, good_rows

LAW_KEYS = {"status", "refusal", "form", "intercept", "slope", "covariance"}
CURVE_KEYS = {
    *("status", "refusal", "irreducible_loss", "log_alpha", "gamma", "rmse"),
    *("irreducible_loss_interval", "gamma_interval"),
}
OPTIMUM_KEYS = {
    *("loss", "params", "learning_rate", "batch_size", "tokens", "flops"),
    *("status", "refusal", "standard_errors"),
}


def test_fitted_laws_are_one_json_object_of_the_promised_shape(
    isoloss: Isoloss, synthetic_table: Path
) -> None:
    ended = isoloss("fit", synthetic_table, "--json")
    document = ended.document
    assert ended.code == 0
    assert set(document["learning_rate"]) >= LAW_KEYS
    assert set(document["batch_size"]) >= LAW_KEYS
    assert set(document["loss_compute"]) >= CURVE_KEYS
    assert {"optima", "excluded", "warnings"} <= set(document)
    assert set(document["optima"][0]) >= OPTIMUM_KEYS
    for law in ("learning_rate", "batch_size", "loss_compute"):
        assert document[law]["status"] == "fitted"
        assert document[law]["refusal"] is None
    halved = document["surface"]["halved_trends"]
    assert halved == ["batch_size"], "the true learning rate has a trend, the batch size none"


def test_the_file_and_its_answers_keep_what_the_fit_warned_of(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    percent = [replace(run, learning_rate=100 * run.learning_rate) for run in synthetic_runs()]
    table, out = write_runs(tmp_path / "percent.csv", percent), tmp_path / "laws.json"
    fitted = isoloss("fit", table, "--out", out, "--json").document["warnings"]
    (warning,) = [each for each in fitted if "divide them by 100" in each]
    answer = isoloss("predict", out, "--total-flops", "3e19", "--json").document
    assert answer["warnings"].count(warning) == 1


def test_a_grid_whose_optimum_lies_outside_is_refused_with_code_3(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    table = write_runs(tmp_path / "low.csv", synthetic_runs(rates=(2e-5, 4e-5, 8e-5)))
    ended = isoloss("fit", table, "--out", tmp_path / "laws.json", "--json")
    assert ended.code == 3
    assert ended.document["learning_rate"]["status"] == "refused"
    assert ended.document["learning_rate"]["refusal"]["reason"] == "OptimumOnLearningRateEdge"
    assert ended.document["learning_rate"]["slope"] is None
    assert (tmp_path / "laws.json").exists()
    shown = isoloss("fit", table)
    assert shown.code == 3
    assert "refused: OptimumOnLearningRateEdge" in shown.out


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (("--form", "LinearInLogCompute"), {"form": "LinearInLogCompute"}),
        (("--form", "linearinlogcompute"), {"form": "LinearInLogCompute"}),
        (("--irreducible-loss", "1.7"), {"irreducible_loss": 1.7}),
        (("--bootstrap-samples", "20", "--seed", "3"), {"bootstrap_samples": 20, "seed": 3}),
        (("--exclude", "n30m-b32-lr0.000125"), {"exclude": ["n30m-b32-lr0.000125"]}),
        (("--keep-outliers",), {"keep_outliers": True}),
    ],
    ids=" ".join,
)
def test_options_reach_the_fit(
    isoloss: Isoloss, synthetic_table: Path, options: tuple[str, ...], reported: dict[str, object]
) -> None:
    document = isoloss("fit", synthetic_table, *options, "--json").document
    assert {name: document["options"][name] for name in reported} == reported


def test_a_bad_cell_ends_with_code_2_and_names_row_and_column(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    rows = good_rows()
    rows[1][6] = "-3"
    table = tmp_path / "bad.csv"
    table.write_bytes(as_csv(rows))
    ended = isoloss("fit", table, "--json")
    assert ended.code == 2
    error = ended.document["error"]
    assert (error["source"], error["row"], error["column"]) == (str(table), 3, "loss")
    assert "row 3, column loss" in ended.err
    assert isoloss("fit", table).out == ""


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("fit", "--absent"), "isoloss fit"),
        (("fit", "runs.csv", "--out"), "isoloss fit"),
        (("absent",), "isoloss"),
        (("--absent",), "isoloss"),
    ],
)
def test_a_wrong_option_leads_to_the_help_that_lists_the_right_ones(
    isoloss: Isoloss, arguments: tuple[str, ...], command: str
) -> None:
    assert f"Try '{command} --help'." in isoloss(*arguments).err


def test_numbers_in_the_written_file_are_finite(synthetic_laws: Path) -> None:
    json.loads(synthetic_laws.read_text(), parse_constant=lambda name: pytest.fail(name))


def test_one_size_has_a_loss_compute_law_and_no_settings(isoloss: Isoloss, tmp_path: Path) -> None:
    laws, table = tmp_path / "laws.json", tmp_path / "one.csv"
    write_runs(table, synthetic_runs(sizes=(100e6,)))
    question = ("--total-flops", "6e18", "--params", "2e8", "--json")
    plain = isoloss("fit", table, "--out", laws, "--json")
    assert plain.code == 3
    assert plain.document["loss_compute"]["status"] == "fitted"
    assert isoloss("predict", laws, *question).code == 3


def test_laws_that_the_joint_surface_contradicts_are_refused_as_every_prediction_of_them_is(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    runs = datasets.load_sample_runs().runs
    few = []
    for params in (3e7, 3e8):
        own = [r for r in runs if r.params == params and r.batch_size <= 128]
        kept = sorted({r.learning_rate for r in own})[1:4]
        few += [r for r in own if r.learning_rate in kept]
    table, laws = write_runs(tmp_path / "few.csv", few), tmp_path / "laws.json"
    ended = isoloss("fit", table, "--bootstrap-samples", 20, "--out", laws)
    assert isoloss("predict", laws, "--total-flops", "6e19", "--params", "1e9").code == 3
    assert ended.code == 3
    assert "refused: OptimumOnBatchSizeEdge" in ended.out
