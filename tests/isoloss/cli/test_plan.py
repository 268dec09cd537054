"""`isoloss plan`: what a manifest would train, cost and take, and which manifests are refused."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isoloss import formatting
from isoloss.formatting import precise
from isoloss.yaml_text import read_documents
from isoloss_operator.api.corpus import Validation
from isoloss_operator.decide.answer import search_cost_status
from isoloss_operator.planning.evaluation_share import (
    GOAL,
    affordable_sequences,
    evaluation_share,
)
from isoloss_operator.planning.flops import (
    DENSE_UTILISATION,
    MIXTURE_UTILISATION,
    SMALL_UTILISATION,
)
from isoloss_operator.planning.models import parameter_counts
from isoloss_operator.planning.search_cost import MEASURED
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.command_line import Isoloss
from tests.support.models import example_model
from tests.support.published_configs import LLAMA_3_8B, TOY_CHECKPOINT, write_checkpoint

EXAMPLES = Path(__file__).parents[3] / "crds" / "examples"
EXAMPLE = EXAMPLES / "dense-sweep.yaml"
SEARCHING = ("  grid:\n", "  search: {strategy: Sequential}\n  grid:\n")
SEARCH_EXAMPLE = EXAMPLES / "search-sweep.yaml"
LLAMA_70B = {
    "model_type": "llama",
    "vocab_size": 131072,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Plan:
    """The command, and manifests to give to it."""

    isoloss: Isoloss
    folder: Path

    def document(self, path: Path = EXAMPLE, *options: object) -> dict[str, Any]:
        return self.isoloss("plan", path, *options, "--json").document

    def words(self, path: Path = EXAMPLE, *options: object) -> str:
        """What it prints, without where its lines are folded."""
        return self.isoloss("plan", path, *options).words

    def error(self, path: Path = EXAMPLE, *options: object) -> str:
        return self.isoloss("plan", path, *options, "--json").error

    def changed(self, *replaced: tuple[str, str], then: str = "") -> Path:
        """The example with these texts in place of others, and what follows it."""
        text = EXAMPLE.read_text()
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        return self.text(text + then)

    def text(self, text: str) -> Path:
        path = self.folder / f"sweep-{len(list(self.folder.iterdir()))}.yaml"
        path.write_text(text)
        return path


@pytest.fixture
def plan(isoloss: Isoloss, tmp_path: Path) -> Plan:
    return Plan(isoloss, tmp_path)


def manifest(path: Path = EXAMPLE) -> dict[str, Any]:
    """The one object of a file."""
    (found,) = read_documents(path.read_text())
    return found


@pytest.mark.parametrize("name", ["dense", "first", "moe", "search"])
def test_the_head_of_an_example_says_what_its_plan_costs(plan: Plan, name: str) -> None:
    path = EXAMPLES / f"{name}-sweep.yaml"
    document, head = plan.document(path), path.read_text().partition("apiVersion")[0]
    assert f"{formatting.flops(document['flops'])} FLOPs" in head
    assert f"about {document['accelerator_hours']:,.0f} hours" in head
    folded = plan.isoloss("plan", path).out.splitlines()
    assert max(len(line.rstrip()) for line in folded) <= 80, "in a pipe, too"


def test_a_plan_of_one_batch_size_says_what_it_answers(plan: Plan) -> None:
    path = plan.text(re.sub(r"batchSizes: .*", "batchSizes: [32]", EXAMPLE.read_text()))
    assert "that set spec.batchSize to 32, and no others" in plan.words(path)


def test_a_plan_says_how_long_each_size_warms_up(plan: Plan) -> None:
    """Given: one number; absent: a number of each size, here the early first evaluation's."""
    assert "warms up over 500M tokens" in plan.words()
    given = "optimizer:\n    warmupTokens: 500000000"
    derived = plan.changed((given, "evaluation:\n    firstTokens: 600000000"))
    assert "dense-100m 187M, dense-500m 300M" in plan.words(derived)


def test_a_plan_counts_points_tokens_flops_and_hours(plan: Plan) -> None:
    """Two sizes of nine points each, 20 and 40 billion tokens a point."""
    document = plan.document()
    assert document["points"] == 18
    assert document["tokens"] == pytest.approx(9 * (20e9 + 40e9), rel=1e-3)
    for size in document["sizes"]:
        assert size["flops"] == pytest.approx(6 * size["params"] * size["tokens"])
        assert size["warmup_tokens"] == 500_000_000  # as the manifest says
        assert size["executed_flops"] > size["flops"]
    assert document["flops_convention"] == "6ND"
    for absent in ("saving", "search", "outlook"):
        assert document[absent] is None
    assert document["placed"] == []


def test_hours_follow_from_the_stated_throughput(plan: Plan) -> None:
    document = plan.document(EXAMPLE, "--tokens-per-second", "1e5")
    assert document["accelerator_hours"] == pytest.approx(document["tokens"] / 1e5 / 3600)
    assert "100000 tokens per second" in document["throughput"]


def test_a_price_is_that_of_the_hours_and_of_a_search_that_which_is_expected(plan: Plan) -> None:
    for path in (EXAMPLE, SEARCH_EXAMPLE):
        priced = plan.document(path, "--price-per-hour", "2.5")
        assert priced["price"] == pytest.approx(2.5 * priced["accelerator_hours"])
        search = priced["search"]
        share = search["expected_flops"] / priced["flops"] if search else 1.0
        assert priced["expected_price"] == pytest.approx(share * priced["price"])
        whole = f"{formatting.number(priced['price'])} for the whole grid."
        expected = f"{formatting.number(priced['expected_price'])} expected of the search, "
        output = plan.isoloss("plan", path, "--price-per-hour", "2.5").words
        assert f"At 2.5 per accelerator hour: {expected if search else ''}{whole}" in output
    assert plan.document()["price"] is None
    assert "per accelerator hour:" not in plan.words()


def test_the_saving_is_against_as_many_runs_of_the_target_and_is_that_of_the_status(
    plan: Plan,
) -> None:
    """From the same manifest, with a target of the budget that the prediction has."""
    document = plan.document(EXAMPLE, "--target-params", "3B", "--target-tokens", "5e10")
    assert document["direct_grid_flops"] == pytest.approx(9 * 6 * 3e9 * 5e10)
    saving = 1 - document["flops"] / document["direct_grid_flops"]
    assert document["saving"] == pytest.approx(saving)
    planned = {"plannedFlops": precise(document["flops"])}
    cost = search_cost_status(parse_sweep_spec(manifest()["spec"]), planned, 6 * 3e9 * 5e10)
    assert cost is not None
    assert cost.saving == precise(document["saving"])
    assert cost.direct_flops == precise(document["direct_grid_flops"])


def test_a_plan_assumes_less_of_small_models_and_mixtures_unless_a_utilisation_is_given(
    plan: Plan,
) -> None:
    shares = {
        size["name"]: size["executed_flops"] / 989e12 / 3600 / size["accelerator_hours"]
        for path in (EXAMPLE, EXAMPLES / "moe-sweep.yaml")
        for size in plan.document(path)["sizes"]
    }
    assert shares == pytest.approx(
        {"dense-100m": 0.4, "dense-500m": 0.45, "moe-100m": 0.3, "moe-500m": 0.3}
    )
    output = "Accelerator hours at 40% (dense-100m) and 45% (dense-500m) of 9.89e14 FLOPs"
    assert output in plan.words()
    given = plan.document(EXAMPLE, "--utilisation", "0.5")
    executed = sum(size["executed_flops"] for size in given["sizes"])
    assert given["accelerator_hours"] == pytest.approx(executed / (0.5 * 989e12) / 3600)
    assert given["throughput"].startswith("50% of")


def test_the_help_of_a_plan_says_what_it_assumes(isoloss: Isoloss) -> None:
    output = isoloss("plan", "--help").words
    assert (
        f"Default: {DENSE_UTILISATION:g}, of dense models below 300M parameters {SMALL_UTILISATION:g}, "
        f"of mixtures of experts {MIXTURE_UTILISATION:g}."
    ) in output


def test_a_plan_tells_what_evaluations_take(plan: Plan) -> None:
    shares = [size["evaluation_share"] for size in plan.document()["sizes"]]
    assert shares[0] > shares[1] > 0


def test_as_many_sequences_are_affordable_as_keep_evaluations_within_their_goal() -> None:
    short = manifest()["spec"]
    for proxy in short["proxies"]:
        proxy["tokens"] = 2_000_000_000
    spec = parse_sweep_spec(short)

    def share(sequences: int) -> float:
        validation = Validation(sequences_per_domain=sequences)
        data = spec.data.model_copy(update={"validation": validation})
        return evaluation_share(spec.model_copy(update={"data": data}), 2_000_000_000)

    assert share(100_000) > 0.5
    wasteful = spec.data.model_copy(
        update={"validation": Validation(sequences_per_domain=100_000)}
    )
    fewer = affordable_sequences(spec.model_copy(update={"data": wasteful}))
    assert share(fewer) <= GOAL < share(fewer + 1)


def test_a_plan_tells_the_largest_share_of_evaluations_whichever_runs_have_it(plan: Plan) -> None:
    """The longer runs have an evaluation more, at 1.58e9 tokens."""
    raw = manifest()
    spec = raw["spec"]
    for proxy, tokens in zip(spec["proxies"], (1_570_000_000, 1_600_000_000), strict=True):
        proxy["tokens"] = tokens
    spec["evaluation"] = {"firstTokens": 500_000_000, "perDecade": 4}
    spec["data"]["validation"] = {"sequencesPerDomain": 1024}
    path = plan.text(json.dumps(raw))
    shares = [each["evaluation_share"] for each in plan.document(path)["sizes"]]
    assert GOAL < shares[0] < shares[1]
    output = plan.words(path)
    assert f"Evaluations take up to {shares[1]:.1%} of a run" in output
    fewer = re.search(r"sequencesPerDomain to (\d+)", output)
    assert fewer is not None
    spec["data"]["validation"]["sequencesPerDomain"] = int(fewer[1])
    assert plan.document(plan.text(json.dumps(raw)))["sizes"][1]["evaluation_share"] <= GOAL


# ---------------------------------------------------------------------------------- searches


def test_a_plan_of_a_search_tells_its_expected_and_its_worst_cost(plan: Plan) -> None:
    path = plan.changed(SEARCHING)
    document = plan.document(path)
    search = document["search"]
    share = MEASURED[0].mean
    assert search["expected_flops"] == pytest.approx(share * document["flops"], rel=1e-3)
    assert search["worst_flops"] > document["flops"]
    output = plan.words(path)
    assert f"FLOPs expected ({share:.0%} of the whole grid)" in output
    assert "(the whole grid and 6 added points). Measured on" in output


def test_a_plan_tells_how_long_the_grid_takes_and_how_long_a_search(plan: Plan) -> None:
    """Cheap points start first, nine at a time: both sizes one after the other. A search waits for the slowest Job of
    each round, so that it takes nearly as long although it trains half."""
    whole = plan.document()
    small, large = (
        size["accelerator_hours"] / size["accelerators"] / 9 for size in whole["sizes"]
    )
    assert whole["elapsed"]["parallelism"] == 9
    assert whole["elapsed"]["whole_grid_hours"] == pytest.approx(small + large)
    assert whole["elapsed"]["search_hours"] is None
    output = "About 38.8 hours with 9 Jobs at a time of 1 to 8 accelerators each."
    assert output in plan.words()
    wide = plan.changed(("  parallelism: 9\n", "  parallelism: 128\n"))
    assert "with 18 Jobs at a time" in plan.words(wide)
    path = plan.changed(SEARCHING)
    took = plan.document(path)["elapsed"]
    assert took["whole_grid_hours"] == whole["elapsed"]["whole_grid_hours"]
    assert took["search_hours"] == pytest.approx(0.91 * took["whole_grid_hours"], rel=0.02)
    output = "About 35.2 hours for the search with 9 Jobs at a time of 1 to 8 accelerators each, 38.8 for the whole grid."
    assert output in plan.words(path)


def test_a_plan_of_a_search_with_too_small_a_budget_says_that_nothing_would_be_trained(
    plan: Plan,
) -> None:
    """What it must train or nothing, as the operator decides."""
    path = plan.changed(SEARCHING, ('"2e21"', '"1e10"'))
    least = plan.document(path)["search"]["unaffordable_least_flops"]
    output = plan.words(path)
    assert "Nothing would be trained: a search takes at least" in output
    assert f"{formatting.flops(least)} FLOPs, more than spec.budget.flops has" in output
    assert "It would end with BudgetExhausted" in output
    enough = plan.changed(SEARCHING, ('"2e21"', f'"{1.001 * least:.6e}"'))
    assert plan.document(enough)["search"]["unaffordable_least_flops"] is None
    assert "Nothing would be trained" not in plan.words(enough)


def test_a_plan_of_a_search_whose_target_is_worth_no_run_says_that_nothing_would_be_trained(
    plan: Plan,
) -> None:
    target = "  search: {strategy: Sequential, target: {parameters: 1000000, tokens: 1000000}}\n"
    path = plan.changed(("  grid:\n", f"{target}  grid:\n"))
    ending = (
        "Nothing would be trained (NothingLeft): no point of the grids that is left, or that spec.search.extendGrid.maxPoints "
        "allows, would save enough of the run of spec.search.target for its cost."
    )
    assert plan.words(path).endswith(ending)
    asked = ("--target-params", "8B", "--target-tokens", "43B", "--price-per-hour", "2")
    assert plan.words(path, *asked).endswith(ending)
    document = plan.document(path, *asked)
    assert document["search"]["expected_flops"] == 0.0
    assert document["elapsed"]["search_hours"] == 0.0
    assert document["expected_price"] == 0.0
    assert document["outlook"] is None


def test_a_search_that_may_add_no_point_costs_its_grid_at_worst(plan: Plan) -> None:
    search = "  search: {strategy: Sequential, extendGrid: {maxPoints: 0}}\n"
    words = plan.words(plan.changed(("  grid:\n", f"{search}  grid:\n")))
    assert "at worst (the whole grid)." in words


def test_a_plan_of_a_search_with_too_few_hours_says_so(plan: Plan) -> None:
    path = plan.changed(SEARCHING, ("acceleratorHours: 5000", "acceleratorHours: 1"))
    hours = plan.document(path)["search"]["unaffordable_least_hours"]
    assert hours > 1
    reported = f"about {formatting.number(hours)} accelerator hours, more than"
    assert f"{reported} spec.budget.acceleratorHours" in plan.words(path)


def test_a_plan_shows_the_points_of_sizes_without_a_grid_and_what_placed_them(
    plan: Plan,
) -> None:
    document = plan.document(SEARCH_EXAMPLE)
    assert document["points"] == 18
    assert document["placed"][0] == {
        "name": "dense-100m",
        "source": "published:step-law",
        "learning_rates": [2.9e-3, 5.7e-3, 1.1e-2],
        "batch_sizes": [27, 54, 110],
    }
    output = plan.words(SEARCH_EXAMPLE)
    assert (
        "Grid of dense-100m, placed by published:step-law: learning rates 2.9e-3, 5.7e-3, 1.1e-2; batch sizes "
        "27, 54, 110 sequences." in output
    )
    assert "always held the optimum" in output
    assert "It is untested on other data, on smaller models and at a constant" in output
    assert "(the whole grid and 12 added points)" in output


# ---------------------------------------------------------------------------------- accelerators


def test_jobs_of_several_accelerators_take_less_time_for_the_same_hours(plan: Plan) -> None:
    """Of the sweep's own template and of a size's, which goes before it."""
    path = plan.changed(("nvidia.com/gpu: 1", "nvidia.com/gpu: 4"))
    few, many = (plan.document(file) for file in (EXAMPLE, path))
    assert [size["accelerators"] for size in few["sizes"]] == [1, 8]
    assert [size["accelerators"] for size in many["sizes"]] == [4, 8]
    assert many["accelerator_hours"] == few["accelerator_hours"]
    saved = few["elapsed"]["whole_grid_hours"] - many["elapsed"]["whole_grid_hours"]
    assert saved == pytest.approx(0.75 * few["sizes"][0]["accelerator_hours"] / 9)


def test_a_plan_counts_the_accelerators_that_small_batches_leave_idle(plan: Plan) -> None:
    """Sequences are not split: of 5 on 4 accelerators, one trains two while the others wait."""
    small = (
        ("parallelism: 9", "parallelism: 18"),
        ("batchSizes: [64, 128, 256]", "batchSizes: [5, 10, 20]"),
    )
    one, four = (
        plan.changed(*small, ("nvidia.com/gpu: 1", f"nvidia.com/gpu: {count}")) for count in (1, 4)
    )
    few, many = (plan.document(file) for file in (one, four))
    at_work, after = (found["sizes"][0]["accelerator_hours"] for found in (few, many))
    assert after == pytest.approx(at_work * (8 / 5 + 12 / 10 + 20 / 20) / 3)
    # The longest of the points, which all train at once, is one of batch 5 on 8 accelerators.
    large = many["sizes"][1]
    assert large["batch_sizes"] == [5, 10, 20]
    share = (8 / 5) / (8 / 5 + 16 / 10 + 24 / 20) / 3
    longest = share * large["accelerator_hours"] / large["accelerators"]
    assert many["elapsed"]["whole_grid_hours"] == pytest.approx(longest)
    output = plan.words(four)
    assert (
        "Accelerators of dense-100m are idle for 21% of its hours: batches of 5, 10, 20" in output
    )
    assert "among the 4 accelerators of a Job" in output
    assert "accelerators are idle" not in plan.words()


def test_a_plan_counts_the_accelerators_of_all_nodes(plan: Plan) -> None:
    large = "    - name: dense-500m\n"
    path = plan.changed((large, f"{large}      nodes: 2\n"))
    one, two = (plan.document(file) for file in (EXAMPLE, path))
    assert [size["accelerators"] for size in two["sizes"]] == [1, 16]
    assert two["accelerator_hours"] == one["accelerator_hours"]
    assert "9 Jobs at a time of 1 to 16 accelerators each." in plan.words(path)


def test_a_plan_says_what_a_checkpoint_takes_and_what_a_preemption_loses(plan: Plan) -> None:
    """Of 807 million parameters, 16 bytes each, at 200 MB per second."""
    takes = "A checkpoint of dense-500m, 12.9 GB, takes about 65 s at 200 MB per second; its"
    assert (
        f"{takes} pods have 120 s of grace, which is enough unless a node leaves them less."
        in plan.words()
    )
    pods = "    spec:\n      nodeSelector"
    short = (pods, pods.replace("spec:", "spec:\n      terminationGracePeriodSeconds: 15"))
    loses = f"{takes} pods have 15 s of grace. That is too few: a preemption loses up to"
    assert f"{loses} 665 s of training, 365 s on average. With" in plan.words(plan.changed(short))
    rate = ("  fit:\n", "  training: {preemptionsPerDay: 6}\n  fit:\n")
    path = plan.changed(short, rate)
    assert f"{loses} 129 s of training, 97 s on average" in plan.words(path)
    small, large = (size["checkpointing"] for size in plan.document(path)["sizes"])
    assert large["interval"] == large["write"], "the copy takes 0.03 s: by it 31 s were best"
    assert small["interval"] == pytest.approx(math.sqrt(2 * small["copy"] * 14400))
    assert small["lost_share"] == pytest.approx(0.0052, abs=1e-4)


def test_a_plan_says_how_many_sequences_fit_beside_the_training_state(plan: Plan) -> None:
    """At most a device's share of the largest batch; computed twice if not one fits otherwise; or none at all."""
    fits = "sequences at once in the rest: on 80 GB 8, on 141 GB 15; memory of a node: up to"
    assert fits in plan.words()
    raw = manifest(plan.changed(("nvidia.com/gpu: 8", "nvidia.com/gpu: 1")))
    raw["spec"]["grid"]["batchSizes"] = [2, 3, 4]
    raw["spec"]["proxies"][1]["model"]["config"] = example_model("moe-500m")
    path = plan.text(json.dumps(raw))
    small, large = plan.document(path)["sizes"]
    assert small["fits"]["80 GB"] == {"sequences": 4, "recompute": False}
    assert large["fits"]["80 GB"] == {"sequences": 4, "recompute": True}
    assert "on 80 GB 4 with layers computed twice" in plan.words(path)
    raw["spec"]["proxies"][1]["model"]["config"] = LLAMA_70B
    path = plan.text(json.dumps(raw))
    assert "on 80 GB none, on 141 GB none" in plan.words(path)


# ---------------------------------------------------------------------------------- cost and budget


def test_a_plan_over_its_budget_says_so(plan: Plan) -> None:
    hours = ("acceleratorHours: 5000", "acceleratorHours: 5")
    ended = plan.isoloss("plan", plan.changed(('"2e21"', '"1e20"'), hours))
    assert ended.code == 0
    assert "Over the budget of 5 accelerator hours" in ended.out
    assert ended.out.count("some points would not start.") == 1  # the cheapest takes 22 hours
    assert ended.out.count("no point would start.") == 1


@pytest.mark.parametrize(
    ("flops", "searches", "says"),
    [
        ("2", False, "Over the budget of 2e0 FLOPs: no point would start."),
        ("9e20", False, "Over the budget of 9e20 FLOPs: some points would not start."),
        ("2e21", False, None),
        ("2", True, "Nothing would be trained"),
        ("6e20", True, "Over the budget of 6e20 FLOPs: the search is expected to need more"),
        (
            "9e20",
            True,
            "The budget of 9e20 FLOPs covers the expected cost of the search, but not its worst case.",
        ),
        ("9e21", True, None),
    ],
)
def test_a_plan_holds_its_budget_against_what_is_trained(
    plan: Plan, flops: str, searches: bool, says: str | None
) -> None:
    """The grid takes 1.58e21 FLOPs, its cheapest point 2.2e19, the search 6.8e20 and at worst 3.45e21."""
    given = ('"2e21"', f'"{flops}"')
    output = plan.words(plan.changed(given, SEARCHING) if searches else plan.changed(given))
    if says is not None:
        assert says in output
    reported = sum(
        f"{word} the budget of {flops.removesuffix('e0')}" in output for word in ("Over", "Within")
    )
    assert reported == (1 if says and "the budget" in says else 0)


def prediction(spec: str) -> str:
    """One beside the sweep."""
    return f"""
---
apiVersion: isoloss.dev/v1alpha1
kind: HyperparamPrediction
metadata: {{name: target}}
spec:
  sweepRef: {{name: dense}}
  budget: {{flops: "2e21"}}
  {spec}
"""


def near(uri: str) -> str:
    """A sweep around the answer of a prediction, beside the sweep."""
    return f"""
---
apiVersion: isoloss.dev/v1alpha1
kind: ScalingSweep
metadata: {{name: near}}
spec:
  storage: {{uri: "s3://lm-sweeps/dense"}}
  data:
    tokenizer: s3://lm-sweeps/tokenizer
    sequenceLength: 128
    domains: [{{name: general, uri: "s3://corpora/general/*.parquet", weight: 1}}]
  proxies:
    - name: near
      checkpoint: {{uri: "{uri}"}}
      tokens: 200000000
      grid: {{around: {{prediction: target}}}}
  training: {{additionalSeeds: [1]}}
"""


def test_a_plan_tells_what_sweeps_around_the_answers_of_predictions_cost(
    plan: Plan, tmp_path: Path
) -> None:
    """Five places, two seeds each, of the checkpoint's own size; alone it is a plan of its own."""
    assert plan.document(plan.changed())["validations"] == {}
    uri = write_checkpoint(tmp_path / "models" / "toy", TOY_CHECKPOINT)
    path = plan.changed(then=near(uri))
    (size,) = plan.document(path)["validations"]["near"]["sizes"]
    assert size["points"] == 10
    active = parameter_counts(TOY_CHECKPOINT).active
    assert size["flops"] == pytest.approx(6 * active * 10 * 200_000_000, rel=0.02)
    assert "ScalingSweep near, around answers, on top of that: at most 10 points" in plan.words(
        path
    )
    alone = plan.document(plan.text(near(uri)))
    assert [each["points"] for each in alone["sizes"]] == [10]


def test_a_plan_says_what_it_needs_of_a_checkpoint_that_is_continued(plan: Plan) -> None:
    output = plan.error(plan.changed(then=near("file:///nowhere/model")))
    assert "spec.proxies[0].checkpoint.uri" in output
    assert "config.json" in output


def test_a_plan_knows_the_size_of_a_checkpoint_that_a_sweep_continues(
    plan: Plan, tmp_path: Path
) -> None:
    huge = {"hidden_size": 65536, "intermediate_size": 229376, "num_hidden_layers": 512}
    uri = write_checkpoint(tmp_path / "models" / "llama", {**LLAMA_3_8B, **huge})
    asked = prediction(f'checkpoint: {{uri: "{uri}"}}')
    path = plan.changed(then=asked + near(uri))
    assert list(plan.document(path)["refused_predictions"]) == ["target"]


@pytest.mark.parametrize(
    ("target", "is_refused"),
    [
        ('checkpoint: {uri: "s3://models/of-unknown-size"}', False),
        ('initialLoss: "2.1"\n  targetParameters: 75000000000000', True),
        ('initialLoss: "2.1"\n  targetParameters: 75000000000', False),
        ('initialLoss: "2.1"', False),
    ],
)
def test_a_plan_says_of_which_target_the_size_will_be_refused(
    plan: Plan, target: str, is_refused: bool
) -> None:
    """From 187 and 640 million parameters ; of a checkpoint nothing is known here."""
    path = plan.changed(then=prediction(target))
    refused = plan.document(path)["refused_predictions"]
    assert list(refused) == (["target"] if is_refused else [])
    output = plan.words(path)
    sentence = "would refuse prediction target (ExtrapolationTooFar): The target size, 7.5e+13"
    assert (sentence in output) is is_refused
    assert ("Train a larger proxy, of at least" in output) is is_refused


# ---------------------------------------------------------------------------------- what is refused


NAMELESS = "apiVersion: isoloss.dev/v1alpha1\nkind: ScalingSweep"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Deployment", "has no ScalingSweep (isoloss.dev/v1alpha1), only Deployment"),
        ("!!python/object/apply:os.system [ls]", "not YAML"),
        (f"{NAMELESS}\nmetadata: {{name: a}}", "ScalingSweep a: spec: is required"),
        (f"{NAMELESS}\nmetadata: {{name: a}}\nspec: {{}}", "storage"),
    ],
)
def test_a_manifest_that_is_none_is_bad_input(plan: Plan, text: str, says: str) -> None:
    assert says in plan.error(plan.text(text))


@pytest.mark.parametrize("word", ["y", "n", "off", "2e4"])
def test_a_domain_named_by_a_word_that_kubernetes_does_not_take_for_text_is_refused(
    plan: Plan, word: str
) -> None:
    text = EXAMPLE.read_text()
    named = re.sub("name: [a-z]+", f"name: {word}", text.partition("domains:")[2], count=1)
    message = plan.error(plan.text(text.partition("domains:")[0] + "domains:" + named))
    assert "data.domains[0].name" in message


def test_learning_rates_in_another_unit_are_a_warning(plan: Plan) -> None:
    path = plan.changed(('["1e-4", "2e-4", "5e-4"]', '["1", "2", "5"]'))
    (warning,) = plan.document(path)["warnings"]
    assert warning.startswith("Most learning rates are above 0.03, up to 5:")


def test_what_a_cluster_wrote_into_a_manifest_may_stay(plan: Plan) -> None:
    written = "metadata:\n  generation: 2\n  uid: a\n  resourceVersion: '7'\n  managedFields: []\n"
    assert plan.document(plan.changed(("metadata:\n  name", f"{written}  name")))["warnings"] == []


def test_sizes_of_another_recipe_are_a_warning_and_rope_without_a_type_an_error(
    plan: Plan,
) -> None:
    text, base = EXAMPLE.read_text(), "          model_type: llama\n"
    assert text.count(base) > 1
    other = text.replace(base, f"{base}          rope_theta: 500000.0\n", 1)
    (warning,) = plan.document(plan.text(other))["warnings"]
    assert "differ in rope_theta: 500000 in dense-100m, the default in dense-500m." in warning
    unscaled = text.replace(base, f"{base}          rope_scaling: {{factor: 4.0}}\n", 1)
    assert "config.rope_scaling: rope_scaling has a factor" in plan.error(plan.text(unscaled))


def test_what_pod_security_refuses_is_a_warning_for_charts_may_allow_it(plan: Plan) -> None:
    assert plan.document()["warnings"] == []
    path = plan.changed(
        (
            "      nodeSelector: {",
            "      hostNetwork: true\n      hostPID: true\n      nodeSelector: {",
        )
    )
    (warning,) = plan.document(path)["warnings"]
    assert "not allowed by Pod Security 'restricted'" in warning
    assert "hostNetwork: must not be true, podTemplate.spec.hostPID: must not be true" in warning


def test_the_plan_says_what_the_answer_is_expected_to_lose_and_what_would_change_it(
    isoloss: Isoloss,
) -> None:
    """Every change costs something and lowers the expected regret; further ones than a larger size lower it little."""
    asked = (EXAMPLE, "--target-params", "8B", "--target-tokens", "430B")
    found = isoloss("plan", *asked, "--json").document["outlook"]
    assert found["expected_cost_share"] == pytest.approx(1.58e21 / (6 * 8e9 * 430e9), rel=0.01)
    for change in found["changes"].values():
        assert change["further_cost_share"] > 0.0
        assert change["expected_regret"] < found["expected_regret"]
        assert change["learning_rate_factor"] < found["learning_rate_factor"]
    assert list(found["changes"]) == [
        "one more size",
        "one more line",
        "twice the tokens",
        "a second seed of every run",
    ]
    out = isoloss("plan", *asked).words
    nats, share = found["expected_regret"], 100 * found["expected_regret_share"]
    assert f"expected to lose {nats:.2g} nats, worth {share:.2g}% more compute" in out
    assert "A published law costs nothing" in out
