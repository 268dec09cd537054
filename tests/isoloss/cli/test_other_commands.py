"""`isoloss report`, `plan` and `laws`."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest

from isoloss import formatting
from isoloss.cli import predicting
from isoloss.cli.other_runs import other_runs
from isoloss.cli.outcome import folded
from isoloss.cli.reporting import report
from isoloss.laws import FitOptions, Interval, fit_laws
from isoloss.published import PUBLISHED
from isoloss.yaml_text import read_documents
from isoloss_operator.api.corpus import Validation
from isoloss_operator.decide.law_status import precise
from isoloss_operator.decide.prediction_status import search_cost_status
from isoloss_operator.planning.evaluation_share import (
    GOAL,
    affordable_sequences,
    evaluation_share,
)
from isoloss_operator.planning.pace import (
    DENSE_UTILISATION,
    MIXTURE_UTILISATION,
    SMALL_UTILISATION,
)
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.command_line import Isoloss
from tests.support.planted_runs import planted_csv, planted_runs
from tests.support.published_configs import LLAMA_3_8B

EXAMPLE = Path(__file__).parents[3] / "crds" / "examples" / "dense-sweep.yaml"


@pytest.mark.usefixtures("without_figures")
def test_a_report_is_one_page_and_its_figures(
    isoloss: Isoloss, planted_laws: Path, planted_table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    ended = isoloss(
        *("report", planted_laws, "--out", out, "--runs", planted_table),
        *("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9"),
        *("--direct-grid-flops", "1e23", "--json"),
    )
    assert ended.code == 0
    assert ended.document["report"] == str(out)
    page = out.read_text()
    assert "C_pre" in page
    assert "% saved" in page
    assert len(ended.document["figures"]) == 3
    for figure in ended.document["figures"]:
        assert Path(figure).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_figures")
def test_a_report_tells_the_warnings_and_refusals_that_predict_tells(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    for budget in ("3e19", "3e27"):
        asked = ("--initial-loss", "2.75", "--cpt-flops", budget, "--params", "1e9", "--json")
        predicted = isoloss("predict", planted_laws, *asked)
        reported = isoloss("report", planted_laws, "--out", out, *asked)
        assert reported.code == predicted.code
        assert reported.document["refused"] == predicted.document.get("refused", [])
        told = reported.document["warnings"]
        assert told == [w for w in predicted.document["warnings"] if w in told]
        assert told or predicted.code == 3


@pytest.mark.usefixtures("without_figures")
def test_a_report_without_an_answer_is_written_and_ends_with_code_3(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    ended = isoloss("report", planted_laws, "--out", out, "--total-flops", "1e27", "--json")
    assert ended.code == 3
    assert ended.document["refused"][0]["reason"] == "ExtrapolationTooFar"
    assert "total compute" in ended.document["refused"][0]["message"]
    page = out.read_text()
    in_its_place = page[page.index('<h2 id="prediction">') : page.index('<h2 id="laws">')]
    assert "ExtrapolationTooFar" in in_its_place
    assert page.count("ExtrapolationTooFar") == 1


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--batch-size", "64"), "what this batch size costs"),
        (("--batch-size-tolerance", "0.01"), "batch sizes within 0.01 nats"),
        (("--sequence-length", "8192"), "sequences of 8192"),
    ],
)
def test_a_report_takes_the_options_of_a_prediction(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    out = tmp_path / "report.html"
    question = ("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9", *options)
    assert isoloss("report", planted_laws, "--out", out, *question).code == 0
    page = html.unescape(out.read_text())
    assert says in page
    answer = isoloss("predict", planted_laws, *question, "--json").document
    rate = answer["learning_rate"]
    assert formatting.interval(Interval(**rate), formatting.learning_rate) in page
    asked = "--initial-loss 2.75 --cpt-flops 3e+19 --params 1000000000"
    assert f"<dt>asked</dt><dd>{asked}{''.join(f' {each}' for each in options)}</dd>" in page


def test_report_has_every_option_of_predict() -> None:
    lacking = signature(predicting.predict).parameters.keys() - signature(report).parameters.keys()
    assert lacking == set()


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    "options",
    [("--params", "1e9"), ("--round-to", "64"), ("--composition", "Paper")],
    ids=lambda options: options[0],
)
def test_a_report_drops_no_option_of_a_question_that_lacks_its_budget(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """For a page without an answer."""
    out = tmp_path / "report.html"
    ended = isoloss("report", planted_laws, "--out", out, *options, "--json")
    assert ended.code == 2
    assert "exactly one of --cpt-flops" in ended.document["error"]["message"]
    assert not out.exists()


@pytest.mark.usefixtures("without_figures")
def test_a_report_of_runs_that_the_laws_are_not_from_says_so_on_its_page_and_in_the_terminal(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path
) -> None:
    runs = planted_runs()
    smallest = min(run.params for run in runs)
    fewer = tuple(
        replace(run, sequence_length=1024, batch_size=2 * run.batch_size)
        for run in runs
        if run.params == smallest
    )
    table, out = tmp_path / "fewer.csv", tmp_path / "report.html"
    table.write_bytes(planted_csv(fewer))
    asked = ("report", planted_laws, "--out", out, "--runs", table)
    (warning,) = isoloss(*asked, "--json").document["warnings"]
    for said in (
        f"{len(fewer)} runs in place of {len(runs)}",
        "sizes 30M in place of 30M, 100M, 300M",
        "sequences of 1024 tokens in place of 2048",
    ):
        assert said in warning
    assert f"warning: {warning}" in isoloss(*asked).err
    assert warning in html.unescape(out.read_text())


def test_runs_of_another_tokenizer_are_not_those_of_the_laws() -> None:
    runs = [replace(run, tokenizer="a") for run in planted_runs()]
    laws = fit_laws(runs, FitOptions(bootstrap_samples=20))
    assert other_runs(runs, laws) == ()
    (warning,) = other_runs([replace(run, tokenizer="b") for run in runs], laws)
    assert warning.endswith("another tokenizer")


def test_the_runs_behind_laws_that_were_refused_as_a_mixture_are_theirs() -> None:
    runs = planted_runs()
    mixed = [replace(run, sequence_length=4096) if run.params > 2e8 else run for run in runs]
    laws = fit_laws(mixed, FitOptions(bootstrap_samples=20))
    assert laws.status == "refused"
    assert other_runs(mixed, laws) == ()
    assert "in place of" in other_runs(mixed[1:], laws)[0]


@pytest.mark.usefixtures("without_figures")
def test_a_report_with_an_answer_at_a_given_batch_size_is_not_headed_refused(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    table, laws, out = (tmp_path / name for name in ("one.csv", "laws.json", "report.html"))
    table.write_bytes(planted_csv([run for run in planted_runs() if run.batch_size == 128]))
    assert isoloss("fit", table, "--bootstrap-samples", 20, "--out", laws).code == 3
    question = ("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9")
    assert isoloss("report", laws, "--out", out, *question, "--batch-size", "128").code == 0
    assert '<span class="status Partlyrefused">Partly refused</span>' in out.read_text()
    assert isoloss("report", laws, "--out", out, *question).code == 3


@pytest.mark.usefixtures("without_figures")
def test_a_report_of_the_runs_behind_its_laws_has_no_such_warning(
    isoloss: Isoloss, planted_laws: Path, planted_table: Path, tmp_path: Path
) -> None:
    """Nor has one of laws that left runs out by name."""
    out, laws = tmp_path / "report.html", tmp_path / "laws.json"
    asked = ("--out", out, "--runs", planted_table, "--json")
    assert isoloss("report", planted_laws, *asked).document["warnings"] == []
    largest = max(run.params for run in planted_runs())
    names = [run.name for run in planted_runs() if run.params == largest]
    left_out = [text for name in names for text in ("--exclude", name)]
    isoloss("fit", planted_table, "--bootstrap-samples", 20, *left_out, "--out", laws)
    assert isoloss("report", laws, *asked).document["warnings"] == []


def test_a_saving_needs_the_runs(isoloss: Isoloss, planted_laws: Path, tmp_path: Path) -> None:
    ended = isoloss(
        *("report", planted_laws, "--out", tmp_path / "report.html"),
        *("--direct-grid-flops", "1e22", "--json"),
    )
    assert ended.code == 2
    assert "--runs" in ended.document["error"]["message"]


@pytest.mark.parametrize("name", ["dense", "moe", "search"])
def test_the_head_of_an_example_says_what_its_plan_costs(isoloss: Isoloss, name: str) -> None:
    path = EXAMPLE.parent / f"{name}-sweep.yaml"
    plan = isoloss("plan", path, "--json").document
    head = path.read_text().partition("apiVersion")[0]
    assert f"{formatting.flops(plan['flops'])} FLOPs" in head
    assert f"about {plan['accelerator_hours']:,.0f} hours" in head


def test_a_plan_of_one_batch_size_says_what_it_answers(isoloss: Isoloss, tmp_path: Path) -> None:
    manifest = tmp_path / "one.yaml"
    text = re.sub(r"batchSizes: .*", "batchSizes: [32]", EXAMPLE.read_text())
    manifest.write_text(text)
    printed = isoloss("plan", manifest)
    assert printed.code == 0
    said = " ".join(printed.out.split())
    assert "that set spec.batchSize to 32, and no others" in said


def test_a_plan_says_how_long_each_size_warms_up(isoloss: Isoloss, tmp_path: Path) -> None:
    """Given: one number; absent: a number of each size, here the early first evaluation's."""
    assert "warms up over 500M tokens" in isoloss("plan", EXAMPLE).out
    derived = EXAMPLE.read_text().replace(
        "optimizer:\n    warmupTokens: 500000000", "evaluation:\n    firstTokens: 600000000"
    )
    path = tmp_path / "sweep.yaml"
    path.write_text(derived)
    said = " ".join(isoloss("plan", path).out.split())
    assert "dense-100m 187M, dense-500m 300M" in said


def test_a_plan_counts_points_tokens_flops_and_hours(isoloss: Isoloss) -> None:
    """Two sizes of nine points each, 20 and 40 billion tokens a point."""
    ended = isoloss("plan", EXAMPLE, "--json")
    document = ended.document
    assert ended.code == 0
    assert document["points"] == 18
    assert document["tokens"] == pytest.approx(9 * (20e9 + 40e9), rel=1e-3)
    for size in document["sizes"]:
        assert size["flops"] == pytest.approx(6 * size["params"] * size["tokens"])
        assert size["warmup_tokens"] == 500_000_000  # as the manifest says
        assert size["executed_flops"] > size["flops"]
    assert document["flops_convention"] == "6ND"
    assert document["saving"] is None


def test_hours_follow_from_the_stated_throughput(isoloss: Isoloss) -> None:
    document = isoloss("plan", EXAMPLE, "--tokens-per-second", "1e5", "--json").document
    assert document["accelerator_hours"] == pytest.approx(document["tokens"] / 1e5 / 3600)
    assert "100000 tokens per second" in document["throughput"]


def test_the_saving_is_against_as_many_runs_of_the_target(isoloss: Isoloss) -> None:
    document = isoloss(
        "plan", EXAMPLE, "--target-params", "8B", "--target-tokens", "55e9", "--json"
    ).document
    assert document["direct_grid_flops"] == pytest.approx(9 * 6 * 8e9 * 55e9)
    assert document["saving"] == pytest.approx(
        1 - document["flops"] / document["direct_grid_flops"]
    )


def test_a_target_in_billions_is_no_cheaper_grid(isoloss: Isoloss) -> None:
    for target, says in (
        (("8", "55"), "--target-params: 8 is no target: write 8 billion as 8B"),
        (("8B", "55"), "--target-tokens: 55 is no target: write 55 billion as 55B"),
    ):
        asked = ("--target-params", target[0], "--target-tokens", target[1], "--json")
        ended = isoloss("plan", EXAMPLE, *asked)
        assert ended.code == 2
        assert ended.document["error"]["message"] == says


def test_isoloss_plan_computes_the_same_saving_as_the_status(isoloss: Isoloss) -> None:
    """From the same manifest, with a target of the budget that the prediction has."""
    document = isoloss(
        *("plan", EXAMPLE, "--target-params", "3e9", "--target-tokens", "5e10", "--json")
    ).document
    planned = {"plannedFlops": precise(document["flops"])}
    (raw,) = read_documents(EXAMPLE.read_text())
    cost = search_cost_status(parse_sweep_spec(raw["spec"]), planned, 6 * 3e9 * 5e10)
    assert cost is not None
    assert cost.saving == precise(document["saving"])
    assert cost.direct_flops == precise(document["direct_grid_flops"])


def test_a_plan_assumes_less_of_small_models_and_mixtures_unless_a_utilisation_is_given(
    isoloss: Isoloss,
) -> None:
    mixture = EXAMPLE.parent / "moe-sweep.yaml"
    shares = {
        size["name"]: size["executed_flops"] / 989e12 / 3600 / size["accelerator_hours"]
        for path in (EXAMPLE, mixture)
        for size in isoloss("plan", path, "--json").document["sizes"]
    }
    assert shares == pytest.approx(
        {"dense-100m": 0.4, "dense-500m": 0.45, "moe-100m": 0.3, "moe-500m": 0.3}
    )
    said = " ".join(isoloss("plan", EXAMPLE).out.split())
    assert "Accelerator hours at 40% (dense-100m) and 45% (dense-500m) of 9.89e14 FLOPs" in said
    given = isoloss("plan", EXAMPLE, "--utilisation", "0.5", "--json").document
    executed = sum(size["executed_flops"] for size in given["sizes"])
    assert given["accelerator_hours"] == pytest.approx(executed / (0.5 * 989e12) / 3600)
    assert given["throughput"].startswith("50% of")


def test_the_help_of_a_plan_says_what_it_assumes(isoloss: Isoloss) -> None:
    said = " ".join(isoloss("plan", "--help").out.split())
    assert (
        f"Default: {DENSE_UTILISATION:g}, of dense models below 300M parameters {SMALL_UTILISATION:g}, "
        f"of mixtures of experts {MIXTURE_UTILISATION:g}."
    ) in said


@pytest.mark.parametrize("other", [("--utilisation", "0.4"), ("--peak-flops", "2e15")])
def test_a_plan_takes_one_measure_of_speed(isoloss: Isoloss, other: tuple[str, str]) -> None:
    options = ("--tokens-per-second", "1e5", *other)
    ended = isoloss("plan", EXAMPLE, *options, "--json")
    assert ended.code == 2
    message = ended.document["error"]["message"]
    assert message.startswith(f"{other[0]}: --tokens-per-second already says")


def test_a_plan_tells_what_evaluations_take_and_how_to_take_less(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    spec = EXAMPLE.read_text()
    path.write_text(spec)
    shares = [
        size["evaluation_share"] for size in isoloss("plan", path, "--json").document["sizes"]
    ]
    assert shares[0] > shares[1] > 0
    (raw,) = read_documents(spec)
    short = raw["spec"]
    for proxy in short["proxies"]:
        proxy["tokens"] = 2_000_000_000
    parsed = parse_sweep_spec(short)
    wasteful = parsed.model_copy(
        update={
            "data": parsed.data.model_copy(
                update={"validation": Validation(sequences_per_domain=100_000)}
            )
        }
    )
    fewer = affordable_sequences(wasteful)
    for count, fits in ((fewer, True), (fewer + 1, False)):
        data = wasteful.data.model_copy(
            update={"validation": Validation(sequences_per_domain=count)}
        )
        share = evaluation_share(wasteful.model_copy(update={"data": data}), 2_000_000_000)
        assert (share <= GOAL) is fits
    assert evaluation_share(wasteful, 2_000_000_000) > 0.5


def test_a_plan_tells_the_largest_share_of_evaluations_whichever_runs_have_it(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """The longer runs have an evaluation more, at 1.58e9 tokens."""
    path = tmp_path / "sweep.yaml"
    (raw,) = read_documents(EXAMPLE.read_text())
    spec = raw["spec"]
    for proxy, tokens in zip(spec["proxies"], (1_570_000_000, 1_600_000_000), strict=True):
        proxy["tokens"] = tokens
    spec["evaluation"] = {"firstTokens": 500_000_000, "perDecade": 4}
    spec["data"]["validation"] = {"sequencesPerDomain": 1024}
    path.write_text(json.dumps(raw))
    shares = [
        each["evaluation_share"] for each in isoloss("plan", path, "--json").document["sizes"]
    ]
    assert GOAL < shares[0] < shares[1]
    said = " ".join(isoloss("plan", path).out.split())
    assert f"Evaluations take up to {shares[1]:.1%} of a run" in said
    fewer = re.search(r"sequencesPerDomain to (\d+)", said)
    assert fewer is not None
    spec["data"]["validation"]["sequencesPerDomain"] = int(fewer[1])
    path.write_text(json.dumps(raw))
    assert isoloss("plan", path, "--json").document["sizes"][1]["evaluation_share"] <= GOAL


def test_a_plan_of_a_search_tells_its_expected_and_its_worst_cost(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        EXAMPLE.read_text().replace("  grid:\n", "  search: {strategy: Sequential}\n  grid:\n")
    )
    document = isoloss("plan", path, "--json").document
    search = document["search"]
    assert search["expected_flops"] == pytest.approx(0.51 * document["flops"], rel=1e-3)
    assert search["worst_flops"] > document["flops"]
    assert search["replicates"] == 2
    out = " ".join(isoloss("plan", path).out.split())
    assert "FLOPs expected (51% of the whole grid)" in out
    assert "(the whole grid and 6 added points), 2 repeats with other seeds included." in out
    assert isoloss("plan", EXAMPLE, "--json").document["search"] is None


def test_a_plan_tells_how_long_the_grid_takes_and_how_long_a_search(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """Cheap points start first, nine at a time: both sizes one after the other. A search waits for the slowest Job of
    each round, so that it takes longer here although it trains half."""
    whole = isoloss("plan", EXAMPLE, "--json").document
    small, large = (
        size["accelerator_hours"] / size["accelerators"] / 9 for size in whole["sizes"]
    )
    assert whole["elapsed"]["parallelism"] == 9
    assert whole["elapsed"]["whole_grid_hours"] == pytest.approx(small + large)
    assert whole["elapsed"]["search_hours"] is None
    assert (
        "About 38.8 hours with 9 Jobs at a time of 1 to 8 accelerators each."
        in isoloss("plan", EXAMPLE).out
    )
    path = tmp_path / "sweep.yaml"
    path.write_text(
        EXAMPLE.read_text().replace("  grid:\n", "  search: {strategy: Sequential}\n  grid:\n")
    )
    took = isoloss("plan", path, "--json").document["elapsed"]
    assert took["whole_grid_hours"] == whole["elapsed"]["whole_grid_hours"]
    assert took["search_hours"] > 1.5 * took["whole_grid_hours"]
    out = " ".join(isoloss("plan", path).out.split())
    assert "accelerators each, 38.8 for the whole grid; a round starts when" in out


def test_jobs_of_several_accelerators_take_less_time_for_the_same_hours(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """Of the sweep's own template and of a size's, which goes before it."""
    path = tmp_path / "sweep.yaml"
    path.write_text(EXAMPLE.read_text().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 4"))
    few, many = (isoloss("plan", file, "--json").document for file in (EXAMPLE, path))
    assert [size["accelerators"] for size in few["sizes"]] == [1, 8]
    assert [size["accelerators"] for size in many["sizes"]] == [4, 8]
    assert many["accelerator_hours"] == few["accelerator_hours"]
    saved = few["elapsed"]["whole_grid_hours"] - many["elapsed"]["whole_grid_hours"]
    assert saved == pytest.approx(0.75 * few["sizes"][0]["accelerator_hours"] / 9)


def test_a_plan_counts_the_accelerators_that_small_batches_leave_idle(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """Sequences are not split: of 5 on 4 accelerators, one trains two while the others wait."""
    one, four = tmp_path / "one.yaml", tmp_path / "four.yaml"
    text = EXAMPLE.read_text().replace("parallelism: 9", "parallelism: 18")
    one.write_text(text.replace("batchSizes: [64, 128, 256]", "batchSizes: [5, 10, 20]"))
    four.write_text(one.read_text().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 4"))
    few, many = (isoloss("plan", file, "--json").document for file in (one, four))
    at_work, after = (plan["sizes"][0]["accelerator_hours"] for plan in (few, many))
    assert after == pytest.approx(at_work * (8 / 5 + 12 / 10 + 20 / 20) / 3)
    # The longest of the points, which all train at once, is one of batch 5 on 8 accelerators.
    large = many["sizes"][1]
    assert large["batch_sizes"] == [5, 10, 20]
    share = (8 / 5) / (8 / 5 + 16 / 10 + 24 / 20) / 3
    longest = share * large["accelerator_hours"] / large["accelerators"]
    assert many["elapsed"]["whole_grid_hours"] == pytest.approx(longest)
    said = " ".join(isoloss("plan", four).out.split())
    assert (
        "Of the hours of dense-100m, accelerators are idle for 21%: batches of 5, 10, 20" in said
    )
    assert "among the 4 accelerators of a Job" in said
    assert "accelerators are idle" not in isoloss("plan", EXAMPLE).out


def test_a_plan_counts_the_accelerators_of_all_nodes(isoloss: Isoloss, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    large = "    - name: dense-500m\n"
    assert EXAMPLE.read_text().count(large) == 1
    path.write_text(EXAMPLE.read_text().replace(large, f"{large}      nodes: 2\n"))
    one, two = (isoloss("plan", file, "--json").document for file in (EXAMPLE, path))
    assert [size["accelerators"] for size in two["sizes"]] == [1, 16]
    assert two["accelerator_hours"] == one["accelerator_hours"]
    assert "9 Jobs at a time of 1 to 16 accelerators each." in isoloss("plan", path).out


def test_a_plan_refuses_a_pod_template_that_it_cannot_read(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(EXAMPLE.read_text().replace("nvidia.com/gpu: 1", "nvidia.com/gpu: one"))
    ended = isoloss("plan", path, "--json")
    assert ended.code == 2
    assert "limits.nvidia.com/gpu" in ended.document["error"]["message"]


def test_a_plan_shows_the_points_of_sizes_without_a_grid_and_what_placed_them(
    isoloss: Isoloss,
) -> None:
    example = EXAMPLE.parent / "search-sweep.yaml"
    document = isoloss("plan", example, "--json").document
    assert document["points"] == 18
    assert document["placed"][0] == {
        "name": "dense-100m",
        "source": "published:step-law",
        "learning_rates": [2.9e-3, 5.7e-3, 1.1e-2],
        "batch_sizes": [27, 54, 110],
    }
    out = " ".join(isoloss("plan", example).out.split())
    assert (
        "Grid of dense-100m, placed by published:step-law: learning rates 2.9e-3, 5.7e-3, 1.1e-2; batch sizes "
        "27, 54, 110 sequences." in out
    )
    assert "33 of 33 cells" in out
    assert "(the whole grid and 12 added points)" in out
    assert isoloss("plan", EXAMPLE, "--json").document["placed"] == []


def test_a_plan_says_that_another_sweep_will_place_the_points(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    (raw,) = read_documents((EXAMPLE.parent / "search-sweep.yaml").read_text())
    raw["spec"]["search"]["prior"] = {"name": "earlier"}
    path.write_text(json.dumps(raw))
    out = " ".join(isoloss("plan", path).out.split())
    assert "In the cluster the laws of ScalingSweep earlier place them instead" in out
    assert "33 of 33 cells" not in out


def test_a_plan_counts_cooldowns(isoloss: Isoloss, tmp_path: Path) -> None:
    """In FLOPs, hours and evaluations; the tokens of the runs stay what they are."""
    path = tmp_path / "sweep.yaml"
    (raw,) = read_documents(EXAMPLE.read_text())
    raw["spec"].setdefault("evaluation", {})["cooldown"] = {"share": "0.2"}
    path.write_text(json.dumps(raw))
    plain = isoloss("plan", EXAMPLE, "--json").document
    cooling = isoloss("plan", path, "--json").document
    assert plain["cooldown_tokens"] == 0
    assert cooling["tokens"] == plain["tokens"]
    for before, after in zip(plain["sizes"], cooling["sizes"], strict=True):
        ratio = 1 + after["cooldown_tokens"] / after["tokens"]
        assert 1.2 < ratio < 1.7
        assert after["flops"] == pytest.approx(before["flops"] * ratio)
        assert after["accelerator_hours"] == pytest.approx(before["accelerator_hours"] * ratio)
        assert after["evaluation_share"] > before["evaluation_share"]
    assert "include cooldowns of" in isoloss("plan", path).out
    assert "cooldowns" not in isoloss("plan", EXAMPLE).out


def test_a_plan_over_its_budget_says_so(isoloss: Isoloss, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    example = EXAMPLE.read_text()
    path.write_text(
        example.replace('"2e21"', '"1e20"').replace(
            "acceleratorHours: 5000", "acceleratorHours: 5"
        )
    )
    ended = isoloss("plan", path)
    assert ended.code == 0
    assert "over the budget of 1e20 FLOPs" in ended.out
    assert "over the budget of 5 accelerator hours" in ended.out
    assert ended.out.count("some points would not start") == 1  # the cheapest takes 22 hours
    assert ended.out.count("no point would start") == 1


@pytest.mark.parametrize(
    ("flops", "searches", "says"),
    [
        ("2", False, "over the budget of 2e0 FLOPs: no point would start"),
        ("9e20", False, "over the budget of 9e20 FLOPs: some points would not start"),
        ("2e21", False, None),
        ("2", True, "Nothing would be trained"),
        ("7e20", True, "over the budget of 7e20 FLOPs: the search is expected to need more"),
        (
            "9e20",
            True,
            "within the budget of 9e20 FLOPs: the expected cost of the search, but not its worst case",
        ),
        ("9e21", True, None),
    ],
)
def test_a_plan_holds_its_budget_against_what_is_trained(
    isoloss: Isoloss, tmp_path: Path, flops: str, searches: bool, says: str | None
) -> None:
    """The grid takes 1.58e21 FLOPs, its cheapest point 2.2e19, the search 8.08e20 and at worst 3.45e21."""
    path = tmp_path / "sweep.yaml"
    text = EXAMPLE.read_text().replace('"2e21"', f'"{flops}"')
    search = "  search: {strategy: Sequential}\n  grid:\n"
    path.write_text(text.replace("  grid:\n", search) if searches else text)
    said = " ".join(isoloss("plan", path).out.split())
    if says is not None:
        assert says in said
    told = sum(
        f"{word} the budget of {flops.removesuffix('e0')}" in said for word in ("over", "within")
    )
    assert told == (1 if says and "the budget" in says else 0)


@pytest.mark.parametrize("is_enough", [False, True])
def test_a_plan_of_a_search_whose_budget_is_below_its_first_rung_says_that_nothing_would_be_trained(
    isoloss: Isoloss, tmp_path: Path, is_enough: bool
) -> None:
    """30 % of the cheapest size's grid or nothing, as the operator decides."""
    cheapest = min(size["flops"] for size in isoloss("plan", EXAMPLE, "--json").document["sizes"])
    budget = 0.3 * cheapest * (1.01 if is_enough else 0.99)
    path = tmp_path / "sweep.yaml"
    path.write_text(
        EXAMPLE.read_text()
        .replace("  grid:\n", "  search: {strategy: Sequential}\n  grid:\n")
        .replace('"2e21"', f'"{budget:.6e}"')
    )
    first = isoloss("plan", path, "--json").document["search"]["unaffordable_first_rung_flops"]
    said = " ".join(isoloss("plan", path).out.split())
    if is_enough:
        assert first is None
        assert "Nothing would be trained" not in said
    else:
        assert first == pytest.approx(0.3 * cheapest, rel=1e-3)
        assert "Nothing would be trained: the search begins with the whole grid" in said
        assert "It would end with BudgetExhausted" in said


def test_a_plan_of_a_search_whose_hours_are_below_its_first_rung_says_so(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        EXAMPLE.read_text()
        .replace("  grid:\n", "  search: {strategy: Sequential}\n  grid:\n")
        .replace("acceleratorHours: 5000", "acceleratorHours: 1")
    )
    document = isoloss("plan", path, "--json").document
    cheapest = min(document["sizes"], key=lambda size: size["flops"])
    hours = document["search"]["unaffordable_first_rung_hours"]
    # Those of the plan's table count attention in addition.
    assert (
        0.5 * cheapest["accelerator_hours"] < hours / 0.3 <= 1.01 * cheapest["accelerator_hours"]
    )
    said = " ".join(isoloss("plan", path).out.split())
    assert (
        f"about {formatting.number(hours)} accelerator hours, more than spec.budget.acceleratorHours"
        in said
    )


def test_a_plan_tells_what_validations_of_predictions_beside_the_sweep_cost(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """Five places, two seeds each, for a tenth of the budget; predictions without one cost nothing more."""
    prediction = """
---
apiVersion: isoloss.dev/v1alpha1
kind: HyperparamPrediction
metadata: {name: target}
spec:
  sweepRef: {name: dense}
  checkpoint: {uri: "s3://models/dense-8b"}
  budget: {flops: "2e21"}
"""
    asked = prediction + '  validation: {tokensShare: "0.1", seeds: 2, budget: {flops: "1e21"}}\n'
    path = tmp_path / "both.yaml"
    path.write_text(f"{EXAMPLE.read_text()}{prediction}")
    assert isoloss("plan", path, "--json").document["validations"] == {}
    path.write_text(f"{EXAMPLE.read_text()}{asked}")
    cost = isoloss("plan", path, "--json").document["validations"]["target"]
    assert (cost["runs"], cost["share_of_budget"]) == (10, 1.0)
    assert (cost["flops"], cost["tokens"], cost["max_flops"]) == (2e21, None, 1e21)
    said = " ".join(isoloss("plan", path).out.split())
    assert "Validation of target, on top of that: at most 10 probes, 2e21 FLOPs, 1 times" in said
    assert "over its budget of 1e21 FLOPs" in said
    path.write_text(f"{EXAMPLE.read_text()}{asked.replace('0.1', '2')}")
    refused = isoloss("plan", path, "--json")
    assert refused.code == 2
    assert "spec.validation.tokensShare" in refused.document["error"]["message"]


@pytest.mark.parametrize(
    ("target", "is_refused"),
    [
        ('checkpoint: {uri: "CHECKPOINT"}', True),
        ('checkpoint: {uri: "s3://models/of-unknown-size"}', False),
        ('initialLoss: "2.1"\n  targetParameters: 7500000000', True),
        ('initialLoss: "2.1"\n  targetParameters: 1500000000', False),
        ('initialLoss: "2.1"', False),
    ],
)
def test_a_plan_says_of_which_target_the_size_will_be_refused(
    isoloss: Isoloss, tmp_path: Path, target: str, is_refused: bool
) -> None:
    """From 100M and 180M parameters to 1.8B; nothing is known of what a checkpoint has that no proxy is like."""
    path = alike(tmp_path, LLAMA_3_8B)
    uri = (tmp_path / "models" / "llama").as_uri()
    second = f'like: {{checkpoint: "{uri}", parameters: 180000000}}'
    prediction = f"""
---
apiVersion: isoloss.dev/v1alpha1
kind: HyperparamPrediction
metadata: {{name: target}}
spec:
  sweepRef: {{name: dense}}
  budget: {{flops: "2e21"}}
  {target.replace("CHECKPOINT", uri)}
"""
    path.write_text(path.read_text().replace("preset: dense-500m", second) + prediction)
    refused = isoloss("plan", path, "--json").document["refused_predictions"]
    assert list(refused) == (["target"] if is_refused else [])
    said = " ".join(isoloss("plan", path).out.split())
    sentence = "would refuse prediction target (ExtrapolationTooFar): The target size, 7.5e+09"
    assert (sentence in said) is is_refused
    assert ("Train a larger proxy, of at least" in said) is is_refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds 0 objects"),
        ("kind: Deployment", "holds 0 objects"),
        ("a: [", "not YAML"),
        ("!!python/object/apply:os.system [ls]", "not YAML"),
        ("apiVersion: isoloss.dev/v1alpha1\nkind: ScalingSweep", "spec: missing"),
        ("apiVersion: isoloss.dev/v1alpha1\nkind: ScalingSweep\nspec: {}", "storage"),
    ],
)
def test_a_manifest_that_is_none_is_bad_input(
    isoloss: Isoloss, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    ended = isoloss("plan", path, "--json")
    assert ended.code == 2
    assert says in ended.document["error"]["message"]


def test_a_manifest_with_a_key_twice_is_refused_with_both_lines(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """As kubectl refuses it: to take the last of two budgets would plan what nobody asked for."""
    path = tmp_path / "sweep.yaml"
    lines = EXAMPLE.read_text().splitlines()
    first = lines.index("  budget:") + 1
    path.write_text("\n".join([*lines, '  budget: {flops: "3e19"}']))
    ended = isoloss("plan", path, "--json")
    assert ended.code == 2
    message = ended.document["error"]["message"]
    assert f"budget is in line {first} already: keep one of them" in message
    assert f"line {len(lines) + 1}, column 3" in message


def test_a_key_that_is_merged_may_be_given_again() -> None:
    text = "a: &a {flops: 1}\nb: &b {<<: *a, flops: 2}\nc: [{<<: *b, flops: 3}]\n"
    assert read_documents(text) == [{"a": {"flops": 1}, "b": {"flops": 2}, "c": [{"flops": 3}]}]


def alike(tmp_path: Path, config: object | None) -> Path:
    """A manifest whose first proxy is like a checkpoint with that config.json."""
    checkpoint = tmp_path / "models" / "llama"
    checkpoint.mkdir(parents=True)
    if config is not None:
        (checkpoint / "config.json").write_text(json.dumps(config))
    like = f'like: {{checkpoint: "{checkpoint.as_uri()}", parameters: 100000000}}'
    path = tmp_path / "sweep.yaml"
    path.write_text(EXAMPLE.read_text().replace("preset: dense-100m", like))
    return path


def test_a_plan_reads_the_checkpoint_that_a_proxy_is_to_be_like(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    document = isoloss("plan", alike(tmp_path, LLAMA_3_8B), "--json").document
    assert document["sizes"][0]["params"] == pytest.approx(100e6, rel=0.1)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, "llama/config.json: not found"),
        ([], "not a JSON object"),
        ({"model_type": "gemma3"}, "'gemma3' is not supported"),
    ],
)
def test_a_plan_names_the_field_of_a_checkpoint_that_nothing_can_be_like(
    isoloss: Isoloss, tmp_path: Path, config: object | None, says: str
) -> None:
    ended = isoloss("plan", alike(tmp_path, config), "--json")
    assert ended.code == 2
    message = ended.document["error"]["message"]
    assert message.startswith("spec.proxies[0].model.like.checkpoint: ")
    assert says in message


@pytest.mark.parametrize(
    "options",
    [
        ("--utilisation", "1.5"),
        ("--tokens-per-second", "0"),
        ("--target-params", "8e9"),
        ("--target-params", "nan", "--target-tokens", "1e9"),
    ],
)
def test_a_plan_refuses_throughputs_and_targets_that_can_not_be(
    isoloss: Isoloss, options: tuple[str, ...]
) -> None:
    ended = isoloss("plan", EXAMPLE, *options, "--json")
    assert ended.code == 2
    assert ended.document["error"]["message"]


def test_all_published_laws_are_listed_with_units_and_sources(isoloss: Isoloss) -> None:
    document = isoloss("laws", "--json").document
    assert [law["name"] for law in document["laws"]] == [f"published:{name}" for name in PUBLISHED]
    shown = isoloss("laws").out
    for law in PUBLISHED.values():
        assert law.source in shown
        assert law.units in shown


@pytest.mark.parametrize(("arguments", "code"), [(("--version",), 0), (("bogus",), 2), ((), 2)])
def test_the_top_level(isoloss: Isoloss, arguments: tuple[str, ...], code: int) -> None:
    assert isoloss(*arguments).code == code


def test_without_any_argument_the_help_is_printed_and_no_error(isoloss: Isoloss) -> None:
    bare = isoloss()
    assert bare.out == isoloss("--help").out
    assert bare.err == ""


def test_sentences_fold_between_words_on_a_terminal_and_paths_stay_whole(
    isoloss: Isoloss, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/" + "x" * 90
    assert (
        folded(f"one two three {path}\n\n  as it is", 12)
        == f"one two\nthree\n{path}\n\n  as it is"
    )
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", isoloss("plan", EXAMPLE).out)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


def test_sentences_of_a_plan_fold_in_a_pipe_too(isoloss: Isoloss) -> None:
    for name in ("dense", "moe", "search"):
        shown = isoloss("plan", EXAMPLE.with_name(f"{name}-sweep.yaml")).out
        assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("fit", "--weights Averaged|Raw|Cooled"),
        ("fit", "--flops SixND|WithAttention"),
        ("predict", "--composition Measured|Paper"),
        ("validate", "between 0.003 and 0.010 nats"),
        ("init", "--checkpoint URI"),
    ],
)
def test_the_help_has_choices_as_they_are_written(
    isoloss: Isoloss, command: str, says: str
) -> None:
    assert says in " ".join(isoloss(command, "--help").out.split())


def test_a_plan_says_how_many_sequences_fit_beside_the_training_state(
    isoloss: Isoloss, tmp_path: Path
) -> None:
    """At most a device's share of the largest batch; computed twice if not one fits otherwise; or none at all."""
    said = " ".join(isoloss("plan", EXAMPLE).out.split())
    assert (
        "sequences at once in the rest: on 80 GB 8, on 141 GB 15; memory of a node: up to" in said
    )
    alone = EXAMPLE.read_text().replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 1")
    path = tmp_path / "sweep.yaml"
    path.write_text(
        alone.replace("batchSizes: [64, 128, 256]", "batchSizes: [2, 3, 4]").replace(
            "preset: dense-500m", "preset: moe-500m"
        )
    )
    small, large = isoloss("plan", path, "--json").document["sizes"]
    assert small["fits"]["80 GB"] == {"sequences": 4, "recompute": False}
    assert large["fits"]["80 GB"] == {"sequences": 4, "recompute": True}
    assert "on 80 GB 4 with layers computed twice" in " ".join(isoloss("plan", path).out.split())
    huge = "{config: {model_type: llama, vocab_size: 131072, hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8, head_dim: 128, max_position_embeddings: 8192}, qkNorm: false}"
    path.write_text(alone.replace("{preset: dense-500m, qkNorm: false}", huge))
    assert "on 80 GB none, on 141 GB none" in " ".join(isoloss("plan", path).out.split())
