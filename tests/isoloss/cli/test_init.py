"""`isoloss init`: manifests for a checkpoint that can be applied as they are, and errors that name the option."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isoloss.cli.inputs import count
from isoloss.laws import size_refusal
from isoloss.yaml_text import read_documents
from isoloss_operator.commands.derived_proxies import derive_proxy
from isoloss_operator.commands.nearest_family import nearest
from isoloss_operator.planning.models import completed, parameter_counts, text_model
from isoloss_operator.planning.specs import parse_prediction_spec, parse_sweep_spec
from tests.support import published_configs
from tests.support.command_line import Ended, Isoloss
from tests.support.published_configs import (
    DEEPSEEK_V3,
    LLAMA_3_8B,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    NEIGHBOURS,
    QWEN3_8B,
    QWEN3_30B_A3B,
    SMALL_DEEPSEEK,
    write_checkpoint,
)

FAMILIES = {
    "llama": LLAMA_3_8B,
    "qwen3": QWEN3_8B,
    "deepseek-v3": DEEPSEEK_V3,
    "mixtral": MIXTRAL_8X7B,
    **{
        name.lower().replace(".", "-"): config
        for name, config in published_configs.FAMILIES.items()
    },
}
BASE = ("llama", "qwen3", "deepseek-v3", "mixtral")
WRITTEN = [
    *((name, "55B", grid) for name in BASE for grid in ((), ("--grid",))),
    *((name, "5B", ()) for name in FAMILIES if name not in BASE),
]
CORPUS = ("--corpus", "s3://corpora/pile/*.parquet")


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return write_checkpoint(tmp_path / "models" / "Llama-3-8B", LLAMA_3_8B)


@pytest.fixture
def init(isoloss: Isoloss, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Isoloss:
    """Runs it in an empty folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    return lambda *arguments: isoloss("init", *arguments)


def specs(path: Path) -> tuple[Any, Any]:
    """Sweep and prediction, read as strictly as the operator reads them."""
    sweep, prediction = read_documents(path.read_text())
    return parse_sweep_spec(sweep["spec"]), parse_prediction_spec(prediction["spec"])


def test_a_validation_is_a_sweep_around_the_answer_that_the_prediction_reads(
    init: Isoloss, isoloss: Isoloss, llama: str
) -> None:
    """Of the same corpus, loss and optimizer: else its points would not be judged."""
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--validate", "0.3", "--json")
    assert ended.code == 0, ended.err
    path = Path(ended.document["manifest"])
    first, asked, third = read_documents(path.read_text())
    sweep, near = parse_sweep_spec(first["spec"]), parse_sweep_spec(third["spec"])
    prediction = parse_prediction_spec(asked["spec"])
    assert prediction.validation is not None
    assert prediction.validation.sweep_ref.name == third["metadata"]["name"]
    (proxy,) = near.proxies
    assert proxy.checkpoint is not None
    assert (proxy.checkpoint.uri, proxy.tokens) == (llama, 16_500_000_000)
    assert proxy.around is not None
    assert proxy.around.prediction == asked["metadata"]["name"]
    assert (near.data, near.optimizer, near.storage) == (
        sweep.data,
        sweep.optimizer,
        sweep.storage,
    )
    assert near.design == "Checked"
    planned = isoloss("plan", path, "--json")
    assert planned.code == 0, planned.err
    assert [*planned.document["validations"]] == [third["metadata"]["name"]]


def test_what_a_validation_costs_is_said_in_the_file_and_on_the_terminal(
    init: Isoloss, tmp_path: Path
) -> None:
    """Of Llama 3 70B: more than the sweep itself, on far more accelerators."""
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    large = {**LLAMA_3_8B, **sizes, "num_attention_heads": 64}
    uri = write_checkpoint(tmp_path / "models" / "70b", large)
    ended = init("--checkpoint", uri, *CORPUS, "--tokens", "50B", "--validate", "0.3")
    assert ended.code == 0, ended.err
    costs = "Five runs around the answer come on top: 1.5 times the continued run, on 256 accelerators."
    assert costs in ended.words
    text = Path("70b.yaml").read_text()
    assert f"# {costs}" in text.partition("apiVersion")[0]
    assert parse_sweep_spec(read_documents(text)[2]["spec"]).proxies[0].nodes == 32


def test_a_search_names_the_whole_grid_where_it_gives_its_cost(init: Isoloss, llama: str) -> None:
    """Beside the expected cost of the search, which is half as much."""
    asked = ("--checkpoint", llama, *CORPUS, "--tokens", "55B")
    assert "The whole grid costs" in init(*asked).words
    assert "The sweep costs" in init(*asked, "--grid", "--out", "grid.yaml").words


def named_size(name: str) -> int:
    """Parameters that a size was derived for, which its name has."""
    return count("size", name.removeprefix("proxy-").replace("-", ".").upper())


@pytest.mark.parametrize(("family", "tokens", "grid"), WRITTEN)
def test_what_is_written_is_valid_and_the_plan_reads_it(
    init: Isoloss,
    isoloss: Isoloss,
    tmp_path: Path,
    family: str,
    tokens: str,
    grid: tuple[str, ...],
) -> None:
    uri = write_checkpoint(tmp_path / "models" / family, FAMILIES[family])
    ended = init(
        *("--checkpoint", uri, *CORPUS, "--tokens", tokens, "--accelerators", 16, "--json", *grid)
    )
    assert ended.code == 0, ended.err
    path = Path(ended.document["manifest"])
    assert path == Path(f"{family}.yaml")
    sweep, prediction = specs(path)
    config = completed(text_model(FAMILIES[family]))
    for proxy in sweep.proxies:
        assert proxy.model.config == {
            key: value
            for key, value in derive_proxy(config, named_size(proxy.name)).items()
            if value is not None  # the API server would drop it
        }
    assert sweep.searches is not bool(grid)
    assert prediction.checkpoint.uri == uri
    assert prediction.budget.tokens == count("tokens", tokens)
    plan = isoloss("plan", path, "--json")
    assert plan.code == 0, plan.err
    for figure in ("points", "flops", "accelerator_hours"):
        assert plan.document[figure] == ended.document[figure]
    message = isoloss("plan", path).out
    assert "Over the budget" not in message
    assert "Evaluations take up to" not in message


def test_cost_and_expected_regret_are_a_small_share_of_the_planned_run(
    init: Isoloss, llama: str
) -> None:
    """Of an 8B model. The expected cost alone was a quarter of 43B tokens when designs were as large as half of the run
    allowed. A run of ten times the tokens is worth a dearer sweep, and loses less with it as a share of the run."""
    found = []
    for tokens, cost in (("43B", 0.08), ("430B", 0.03)):
        asked = ("--checkpoint", llama, *CORPUS, "--tokens", tokens, "--out", f"{tokens}.yaml")
        designs = init(*asked, "--json").document["designs"]
        (chosen,) = (each for each in designs if each["chosen"])
        sums = [each["expected_cost_share"] + each["expected_regret_share"] for each in designs]
        assert chosen["expected_cost_share"] <= cost
        assert min(sums) <= 0.10
        assert sums[designs.index(chosen)] == pytest.approx(min(sums))
        found.append((min(sums), chosen))
    (sum_of_short, short), (sum_of_long, long) = found
    assert short["expected_hours"] < long["expected_hours"] < 20 * short["expected_hours"]
    assert long["expected_regret_share"] < short["expected_regret_share"]
    assert sum_of_long < sum_of_short


def test_the_designs_go_from_cheap_to_dear_and_each_loses_less(init: Isoloss, llama: str) -> None:
    """The chosen one is what is written."""
    document = init("--checkpoint", llama, *CORPUS, "--tokens", "430B", "--json").document
    curve = document["designs"]
    assert len(curve) == 5
    for cheap, dear in pairwise(curve):
        assert cheap["expected_cost_share"] < dear["expected_cost_share"]
        assert cheap["expected_regret_share"] > dear["expected_regret_share"]
        assert cheap["expected_hours"] < dear["expected_hours"]
    (chosen,) = (each for each in curve if each["chosen"])
    sweep, _ = specs(Path(document["manifest"]))
    assert [proxy.tokens for proxy in sweep.proxies] == [
        size["tokens"] for size in chosen["sizes"]
    ]


@pytest.mark.parametrize(
    ("cap", "figure", "most"),
    [("3%", "expected_cost_share", 0.03), ("40h", "expected_hours", 40.0)],
    ids=["a share", "hours"],
)
def test_a_cap_is_kept_and_costs_regret(
    init: Isoloss, llama: str, cap: str, figure: str, most: float
) -> None:
    asked = ("--checkpoint", llama, *CORPUS, "--tokens", "430B", "--json")
    free = init(*asked, "--out", "free.yaml").document["designs"]
    capped = init(*asked, "--spend", cap).document["designs"]
    (one,), (other,) = ([each for each in found if each["chosen"]] for found in (free, capped))
    assert other[figure] <= most
    if one[figure] > most:
        assert other["expected_regret"] > one["expected_regret"]
    message = init(*asked[:-1], "--spend", cap, "--out", "said.yaml").words
    assert "->" in message
    assert "A published law costs nothing" in message


def test_a_cap_below_every_sweep_is_refused_with_the_least_one(init: Isoloss, llama: str) -> None:
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "43B", "--spend", "0.001%")
    assert_refused(ended, "--spend: no sweep of this checkpoint is expected to cost less than")
    long = init("--checkpoint", llama, *CORPUS, "--tokens", "1000T", "--spend", "0.0000001%")
    assert " 0.00%" not in long.words
    assert list(Path().iterdir()) == []


def test_a_cap_so_tight_that_the_target_is_far_is_told_of_as_such(
    init: Isoloss, isoloss: Isoloss, llama: str
) -> None:
    """Such a search adds points beyond its grids, and may cost more than these."""
    asked = ("--checkpoint", llama, *CORPUS, "--tokens", "15T", "--spend", "60h")
    message = init(*asked, "--accelerators", "64").words
    assert "The marked design has the least sum of those within --spend" in message
    assert "a higher --spend allows larger proxies" in message
    assert "Over the budget" not in message
    (search, _) = read_documents(Path("llama-3-8b.yaml").read_text())
    target = search["spec"]["search"]["target"]
    shares = [f"--target-{each}" for each in ("params", "tokens")]
    options = (shares[0], str(target["parameters"]), shares[1], str(target["tokens"]))
    planned = isoloss("plan", "llama-3-8b.yaml", *options, "--json").document
    assert planned["search"]["expected_flops"] > planned["flops"]
    assert float(search["spec"]["budget"]["flops"]) > planned["search"]["expected_flops"]


@pytest.mark.parametrize("more", [("43B",), ("15T", "--spend", "60h")], ids=" ".join)
def test_plan_expects_of_the_manifests_what_init_did(
    init: Isoloss, isoloss: Isoloss, llama: str, more: tuple[str, ...]
) -> None:
    asked = ("--checkpoint", llama, *CORPUS, "--tokens", *more, "--json")
    (chosen,) = [each for each in init(*asked).document["designs"] if each["chosen"]]
    active = str(parameter_counts(completed(LLAMA_3_8B)).active)
    target = ("--target-params", active, "--target-tokens", more[0], "--json")
    outlook = isoloss("plan", "llama-3-8b.yaml", *target).document["outlook"]
    for figure in ("expected_cost_share", "expected_regret", "learning_rate_factor"):
        assert outlook[figure] == pytest.approx(chosen[figure], rel=0.05)


def test_the_head_of_the_file_says_what_it_costs(init: Isoloss, llama: str) -> None:
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "55B")
    head = Path("llama-3-8b.yaml").read_text().partition("apiVersion")[0]
    assert "for 55B more tokens" in head
    assert "accelerator hours" in head
    assert "takes 2.48e21 FLOPs" in head
    message = ended.words
    assert "Accelerator hours at" in message
    assert "GiB of each for the training state" in message
    assert "kubectl apply -f llama-3-8b.yaml" in ended.out


@pytest.mark.parametrize("more", [(), ("--grid",), ("--spend", "40h")], ids=str)
def test_hours_are_one_number_in_the_file_the_table_and_the_cap(
    init: Isoloss, llama: str, more: tuple[str, ...]
) -> None:
    """Those included in which accelerators idle beside batches that they do not divide."""
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "20B", "--accelerators", 16, *more)
    head = Path("llama-3-8b.yaml").read_text().partition("apiVersion")[0]
    (written,) = re.findall(r"about ([\d.]+) accelerator hours of an H100", head)[:1]
    (chosen,) = re.findall(r"^-> .*?% +([\d.]+) ", ended.out, re.MULTILINE)
    assert chosen == written
    if "40h" in more:
        assert float(written) <= 40


def test_a_price_is_in_the_head_of_the_file_and_in_the_table_of_designs(
    init: Isoloss, llama: str
) -> None:
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--price-per-hour", "2")
    head = Path("llama-3-8b.yaml").read_text().partition("apiVersion")[0]
    assert "# At 2 per accelerator hour: " in head
    assert re.search(r"H100 h +price +regret", ended.out)
    (chosen,) = re.findall(r"^-> .*?% +([\d.]+) +([\d.]+) ", ended.out, re.MULTILINE)
    assert float(chosen[1]) == pytest.approx(2 * float(chosen[0]), rel=0.01)


def test_in_a_pipe_sentences_fold_and_commands_stay_whole(init: Isoloss, llama: str) -> None:
    path = Path("x" * 80, "sweep.yaml")
    path.parent.mkdir()
    message = init("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--out", path).out
    long = [line for line in message.splitlines() if len(line.rstrip()) > 80]
    assert f"    kubectl apply -f {path}" in long
    assert all(str(path) in line for line in long)


def test_every_guess_is_marked_and_nothing_that_was_given(init: Isoloss, llama: str) -> None:
    common = ("--checkpoint", llama, "--tokens", "55B")
    init(*common, "--corpus", "s3://corpora/pile/", "--corpus", "s3://corpora/code/*.jsonl")
    assert marked(Path("llama-3-8b.yaml")) == [
        *("uri", "sequenceLength"),
        *("uri", "textField", "weight", "textField", "weight", "requests"),
        *("optimizer", "resources", "resources"),
    ]
    given = (*CORPUS, "--storage", "s3://sweeps/llama", "--sequence-length", 4096)
    assert init(*common, *given, "--name", "own").code == 0
    assert marked(Path("own.yaml")) == [
        *("textField", "requests", "optimizer", "resources", "resources")
    ]


def marked(path: Path) -> list[str]:
    """The keys whose lines are said to be guesses."""
    lines = [line for line in path.read_text().splitlines() if "# guessed" in line]
    return [line.strip().removeprefix("- ").partition(":")[0] for line in lines]


def test_the_options_are_in_the_manifests(init: Isoloss, llama: str, tmp_path: Path) -> None:
    tokenizer = write_checkpoint(tmp_path / "models" / "tokenizer", LLAMA_3_8B)
    ended = init(
        *("--checkpoint", llama, "--corpus", "math=gs://texts/m/*.parquet", "--tokens", "1_000M"),
        *("--name", "own", "-n", "research", "--storage", "s3://sweeps/own/", "--secret", "keys"),
        *("--tokenizer", tokenizer, "--sequence-length", 2048, "--out", "a/b.yaml"),
        *("--accelerators", 3),
    )
    assert ended.code == 0, ended.err
    path = Path("a/b.yaml")
    for document in read_documents(path.read_text()):
        assert document["metadata"] == {"name": "own", "namespace": "research"}
    sweep, prediction = specs(path)
    assert (sweep.storage.uri, sweep.storage.secret_name) == ("s3://sweeps/own", "keys")
    assert (sweep.data.tokenizer, sweep.data.sequence_length) == (tokenizer, 2048)
    assert [(each.name, each.uri) for each in sweep.data.domains] == [
        ("math", "gs://texts/m/*.parquet")
    ]
    assert sweep.parallelism == 3
    assert prediction.budget.tokens == 1_000_000_000
    assert prediction.sweep_ref.name == "own"


@pytest.mark.parametrize("name", ["on", "y", "1e3", "null", "007"])
def test_a_name_that_yaml_would_read_as_something_else_stays_a_text(
    init: Isoloss, llama: str, name: str
) -> None:
    init("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--name", name)
    sweep, prediction = read_documents(Path(f"{name}.yaml").read_text())
    assert sweep["metadata"]["name"] == prediction["metadata"]["name"] == name


def test_the_line_of_the_pretrainings_learning_rate_is_valid_without_its_mark(
    init: Isoloss, llama: str
) -> None:
    assert init("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--out", "a.yaml").code == 0
    path = Path("a.yaml")
    assert specs(path)[1].pretraining_learning_rate is None
    path.write_text(path.read_text().replace("  # pretraining", "  pretraining"))
    assert specs(path)[1].pretraining_learning_rate == "3e-4"


def test_a_refusal_advises_nothing_that_there_is_no_option_for(init: Isoloss, llama: str) -> None:
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "1M")
    assert "no first points can be placed" in ended.err
    assert "give a grid" not in ended.err


def test_a_file_that_is_there_is_not_written_over(init: Isoloss, llama: str) -> None:
    Path("llama-3-8b.yaml").write_text("mine")
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "55B")
    assert_refused(ended, "--out: llama-3-8b.yaml exists")
    assert Path("llama-3-8b.yaml").read_text() == "mine"


def assert_refused(ended: Ended, words: str) -> None:
    assert words in ended.error
    assert len(ended.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"--tokens": "1M"},
            "--tokens: 1M tokens allow no sweep of this checkpoint (write 5 billion as 5B): spec.proxies[0]",
        ),
        (
            {"--tokens": "1k"},
            "--tokens: 1k tokens allow no sweep of this checkpoint (write 5 billion as 5B): spec: every proxy",
        ),
        (
            {"--corpus": "s3://c/x/*.warc.wet.gz"},
            "web pages as text (WET), which docs/reference/corpora.md",
        ),
        ({"--corpus": "s3://c/x/*.csv.gz"}, "--corpus: s3://c/x/*.csv.gz: no documents are read"),
        ({"--corpus": "s3://c/v1.5"}, "or a folder with / at its end"),
        ({"--corpus": "/data/text"}, "--corpus: /data/text/*: must be where pods can read it"),
        ({"--corpus": "s3://c/a/../b/"}, "--corpus: s3://c/a/../b/*: must not contain empty, '.'"),
        ({"--corpus": "A=s3://c/a/"}, "--corpus: A: must be at most 63 lower-case letters"),
        ({"--checkpoint": "hf://org/model"}, "--checkpoint: hf://org/model: must be where pods"),
        ({"--storage": "sweeps"}, "--storage: sweeps: must be where pods can read it"),
        ({"--storage": "s3://c/*"}, "--storage: s3://c/*: must name one folder, not a pattern"),
        ({"--tokenizer": "org/model"}, "--tokenizer: org/model: must be where pods can read it"),
        ({"--tokenizer": "file:///none"}, "--tokenizer: file:///none has no tokenizer.json: give"),
        ({"--tokenizer": "file:///none", "--tokens": "1M"}, "--tokenizer: file:///none has no"),
        ({"--name": "My sweep"}, "--name: My sweep: must be at most 63 lower-case letters"),
        ({"--spend": "5"}, "--spend: 5 is not a cap: write a share of the planned run such as 5%"),
        ({"--spend": "0%"}, "--spend: 0% is not a cap"),
        *(
            ({"--validate": share}, "--validate: must be above 0 and at most 1")
            for share in ("0", "1.5")
        ),
        ({"--sequence-length": "9000"}, "--sequence-length: 9000 is more than the 8192 positions"),
    ],
    ids=str,
)
def test_an_error_names_the_option_and_what_it_should_be(
    init: Isoloss, llama: str, options: dict[str, str], words: str
) -> None:
    asked = {"--checkpoint": llama, "--corpus": CORPUS[1], "--tokens": "55B", **options}
    assert_refused(init(*(word for pair in asked.items() for word in pair)), words)
    assert list(Path().iterdir()) == []


DIFFERS = {
    "Gemma-2-9B": "norms of queries and keys instead of soft caps on attention scores and logits",
    "GPT-2-XL": "rotary instead of learned positions; RMSNorm instead of LayerNorm",
    "StarCoder2-7B": "gated feed-forwards of three matrices instead of two, two thirds as wide",
    "Command-R7B": "attention and feed-forward one after the other instead of side by side",
    "Mamba-2.8B": "one layer of attention and feed-forward for two layers of states",
    "Qwen1.5-MoE-A2.7B": "the experts and the routing of glm4_moe",
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_of_another_family_the_nearest_one_is_written_with_what_differs(
    init: Isoloss, isoloss: Isoloss, tmp_path: Path, name: str
) -> None:
    """In the file and on the terminal, with a prediction that measures the checkpoint itself."""
    kind = text_model(NEIGHBOURS[name])["model_type"]
    uri = write_checkpoint(tmp_path / "models" / name, NEIGHBOURS[name])
    ended = init(
        *("--checkpoint", uri, *CORPUS, "--tokens", "20B", "--accelerators", 16, "--out", "a.yaml")
    )
    assert ended.code == 0, ended.err
    sweep, prediction = specs(Path("a.yaml"))
    (family,) = {proxy.model.config["model_type"] for proxy in sweep.proxies}
    message = f"isoloss cannot train {kind}: the proxies are {family}, the nearest family"
    assert message in ended.words
    assert DIFFERS.get(name, "They have") in ended.words
    head = Path("a.yaml").read_text().partition("apiVersion")[0]
    assert message in head
    assert DIFFERS.get(name, "They have") in head
    assert prediction.checkpoint.uri == uri
    planned = isoloss("plan", "a.yaml")
    assert planned.code == 0, planned.err


def test_of_a_family_that_nothing_is_known_of_the_counted_parameters_are_said(
    init: Isoloss, tmp_path: Path
) -> None:
    """Its sizes may have names that are not read: here all are, DBRX's among them."""
    dbrx = {
        "architectures": ["DbrxForCausalLM"],
        "model_type": "dbrx",
        "d_model": 6144,
        "n_heads": 48,
        "n_layers": 40,
        "max_seq_len": 32768,
        "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8},
        "tie_word_embeddings": False,
        "hidden_act": ["x"],
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }
    uri = write_checkpoint(tmp_path / "models" / "dbrx", dbrx)
    message = init("--checkpoint", uri, *CORPUS, "--tokens", "100B", "--accelerators", 64).words
    assert "the proxies are qwen3_moe" in message
    assert "35.9B active parameters and 132B in all, counted by its sizes" in message


HYBRID = {
    "architectures": ["XForCausalLM"],
    "model_type": "x",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "sliding_window": 1024,
    "vocab_size": 50_000,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "replaced"),
    [
        ({"layer_types": ["linear_attention", "full_attention"], **EXPERTS}, "linear_attention"),
        ({"layer_types": ["sliding_attention", "full_attention"], **EXPERTS}, "sliding_attention"),
        ({"layer_types": ["linear_attention", "sliding_attention"]}, "linear_attention, sliding_attention"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, ""),
    ],
)  # fmt: skip
def test_layers_that_the_nearest_family_lacks_are_named(
    config: dict[str, Any], replaced: str
) -> None:
    message = " ".join(nearest({**HYBRID, **config}).sentences)
    assert ("instead of layers of other kinds" in message) == bool(replaced)
    assert f"({replaced})" in message or not replaced


@pytest.mark.parametrize("heads", [8, 16])
def test_a_stand_in_with_windows_has_heads_as_wide_as_the_checkpoints(heads: int) -> None:
    """qwen3's are 128 wide where its config leaves that out, other families' as wide as they divide hidden_size."""
    config = {**HYBRID, "num_attention_heads": heads}
    kinds = ["sliding_attention", "full_attention"]
    with_windows = nearest({**config, "layer_types": kinds}).config
    plain = nearest({**config, "sliding_window": None}).config
    counts = [parameter_counts(completed(each)).body_active for each in (with_windows, plain)]
    assert (with_windows["model_type"], plain["model_type"]) == ("qwen3", "llama")
    assert counts[0] == counts[1]


def test_an_older_checkpoint_of_a_family_is_told_apart_by_its_settings() -> None:
    """RedPajama-INCITE has its parts one after the other, Falcon-RW has that and ALiBi."""
    message = " ".join(
        nearest({**NEIGHBOURS["Pythia-6.9B"], "use_parallel_residual": False}).sentences
    )
    assert "side by side" not in message
    rw = {"alibi": True, "parallel_attn": False, "multi_query": False}
    message = " ".join(nearest({**NEIGHBOURS["Falcon-7B"], **rw}).sentences)
    assert ("side by side" in message, "instead of ALiBi" in message) == (False, True)


def test_a_checkpoint_with_dropout_is_not_blamed_on_the_tokens(
    init: Isoloss, tmp_path: Path
) -> None:
    uri = write_checkpoint(tmp_path / "models" / "drops", {**LLAMA_3_8B, "attention_dropout": 0.1})
    refused = init("--checkpoint", uri, *CORPUS, "--tokens", "55B", "--validate", "0.3")
    assert_refused(refused, "--validate: isoloss cannot continue this checkpoint: leave it out")
    assert "attention_dropout" in refused.err


def test_of_another_family_no_continued_run_is_written(
    init: Isoloss, isoloss: Isoloss, tmp_path: Path
) -> None:
    """Nor is one that was written by hand taken."""
    uri = write_checkpoint(tmp_path / "models" / "gpt2", NEIGHBOURS["GPT-2-XL"])
    asked = ("--checkpoint", uri, *CORPUS, "--tokens", "20B")
    refused = init(*asked, "--validate", "0.1")
    assert_refused(refused, "--validate: isoloss cannot continue a checkpoint of type gpt2")
    llama = write_checkpoint(tmp_path / "models" / "llama", LLAMA_3_8B)
    init("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--validate", "0.1", "--out", "a.yaml")
    Path("a.yaml").write_text(Path("a.yaml").read_text().replace(f"uri: {llama}", f"uri: {uri}"))
    assert "'gpt2' is not supported" in isoloss("plan", "a.yaml").err


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"model_type": "gpt2"},
            "architectures: is missing: it names a causal language model, such as GPT2LM",
        ),
        ({**LLAMA_3_8B, "hidden_size": None}, "config.json: hidden_size: is required"),
        (
            {**LLAMA_3_8B, "max_position_embeddings": "8k"},
            "max_position_embeddings: must be an integer",
        ),
        ({**QWEN3_8B, "layer_types": ["full_attention"]}, "layer_types: must be a list with an"),
        (
            {**LLAMA_3_8B, "quantization_config": {"quant_method": "awq"}},
            "config.json: its weights are quantized (awq)",
        ),
        (
            {**LLAMA_3_8B, "rope_scaling": {"factor": 8.0}},
            "config.json: rope_scaling has a factor, and its rope_type is missing",
        ),
        (
            {**LLAMA_3_8B, "final_logit_softcapping": 30.0},
            "which transformers' model of type llama does not read",
        ),
        ({**LLAMA_3_8B, "sliding_window": 4096}, "sliding_window is 4096, which transformers"),
        (
            {**LLAMA_3_8B, "num_hidden_layers": 4},
            "continue the checkpoint itself on a grid, by proxies[].checkpoint",
        ),
        (
            {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
            "BertForMaskedLM is not a ca",
        ),
        (
            {
                "architectures": ["T5ForConditionalGeneration"],
                "model_type": "t5",
                "is_encoder_decoder": True,
            },
            "is_encoder_decoder: is true: only causal language models",
        ),
        (
            {"architectures": ["CLIPModel"], "model_type": "clip", "text_config": {}},
            "CLIPModel is not a causal language model",
        ),
        (
            {"architectures": ["XForCausalLM"], "model_type": "x", "n_embd": 64},
            "num_hidden_layers: is required",
        ),
        (
            {**NEIGHBOURS["GPT-2-XL"], "n_head": 24},
            "num_attention_heads: 24 does not divide hidden_size 1600",
        ),
        ({**NEIGHBOURS["GPT-2-XL"], "n_layer": "48"}, "num_hidden_layers: must be a positive in"),
        (
            {**NEIGHBOURS["GPT-2-XL"], "model_type": "x\nkind: Pod"},
            "model_type: must be a name such",
        ),
        (
            {**HYBRID, "layer_types": ["x\nkind: Pod", "x"]},
            "layer_types: must be names such as full",
        ),
        ({**NEIGHBOURS["Mamba-2.8B"], "hidden_size": 1001}, "hidden_size: 1001 is not a multiple"),
        ({**NEIGHBOURS["MPT-7B"], "expansion_ratio": "four"}, "expansion_ratio: must be a pos"),
        ({**NEIGHBOURS["OPT-6.7B"], "tie_word_embeddings": "no"}, "tie_word_embeddings: must be"),
        (
            {**NEIGHBOURS["OLMoE-1B-7B"], "num_experts_per_tok": 65},
            "num_experts_per_tok: 65 is more than 64 experts",
        ),
        ({**NEIGHBOURS["Command-R7B"], "layer_types": ["full_attention"]}, "layer_types: must be"),
        ({**NEIGHBOURS["Qwen1.5-MoE-A2.7B"], "n_shared_experts": "x"}, "n_shared_experts: must"),
        ({**NEIGHBOURS["Command-R7B"], "layer_types": 5}, "layer_types: must be a list"),
        (
            {**NEIGHBOURS["GPT-2-XL"], "layer_norm_epsilon": "small"},
            "rms_norm_eps: must be a posi",
        ),
        ({**NEIGHBOURS["GPT-2-XL"], "model_type": ["gpt2"]}, "model_type: must be a name"),
        ({**NEIGHBOURS["GPT-2-XL"], "architectures": 7}, "architectures: is missing"),
    ],
)
def test_what_cannot_be_measured_or_has_no_sizes_is_refused_by_its_field(
    init: Isoloss, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    uri = write_checkpoint(tmp_path / "models" / "odd", config)
    ended = init("--checkpoint", uri, *CORPUS, "--tokens", "20B")
    assert_refused(ended, words)
    assert "--checkpoint: " in ended.err


def test_a_checkpoint_without_config_or_tokenizer_is_named(init: Isoloss, llama: str) -> None:
    folder = Path(llama.removeprefix("file://"))
    asked = ("--checkpoint", llama, *CORPUS, "--tokens", "55B")
    (folder / "tokenizer.json").unlink()
    assert_refused(init(*asked), f"--tokenizer: {llama} has no tokenizer.json")
    (folder / "config.json").unlink()
    assert_refused(init(*asked), f"--checkpoint: {llama} has no config.json")


def test_proxies_fit_the_accelerators_that_there_are(init: Isoloss, tmp_path: Path) -> None:
    """Of a mixture with many experts the smallest alone fits on few."""
    uri = write_checkpoint(tmp_path / "models" / "deepseek", SMALL_DEEPSEEK)
    asked = ("--checkpoint", uri, *CORPUS, "--tokens", "55B", "--json")
    ended = init(*asked, "--accelerators", 2)
    assert ended.code == 0, ended.err
    assert {size["accelerators"] for size in ended.document["sizes"]} <= {1, 2}


def test_more_accelerators_than_a_sweep_may_use_are_left_out(init: Isoloss, llama: str) -> None:
    asked = ("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--accelerators", 100_000)
    sizes = init(*asked, "--json").document["sizes"]
    assert specs(Path("llama-3-8b.yaml"))[0].parallelism == 1000
    most = 1000 * max(size["accelerators"] for size in sizes)
    written = Path("llama-3-8b.yaml").read_text()
    assert f"parallelism: 1000 # Jobs at a time, on {most} accelerators" in written


@pytest.mark.parametrize("name", ["*", "part-[0-9]", "x.JSONL.zst", "*.{json,txt}", "v1.5/"])
def test_corpora_with_a_file_that_can_be_read_are_taken(
    init: Isoloss, llama: str, name: str
) -> None:
    asked = ("--checkpoint", llama, "--corpus", f"s3://corpora/pile/{name}", "--tokens", "55B")
    assert init(*asked).code == 0


@pytest.mark.parametrize("grid", [(), ("--grid",)], ids=["search", "grid"])
def test_a_run_too_short_for_any_sweep_is_told_so(
    init: Isoloss, tmp_path: Path, grid: tuple[str, ...]
) -> None:
    """With what a published law, which is free, is expected to lose."""
    uri = write_checkpoint(tmp_path / "models" / "qwen3-30b", QWEN3_30B_A3B)
    asked = ("--checkpoint", uri, *CORPUS, "--tokens", "1B", *grid)
    out = init(*asked).words
    assert "A sweep does not pay off for such a short run" in out
    assert "a published law, which costs nothing, is expected to lose 0.053 nats" in out
    (warning,) = init(*asked, "--out", "other.yaml", "--json").document["warnings"]
    assert warning in out


@pytest.mark.parametrize("tokens", ["3B", "1B"])
def test_no_run_is_longer_than_the_planned_one(init: Isoloss, tmp_path: Path, tokens: str) -> None:
    """What comes after that tells nothing of what is asked for."""
    uri = write_checkpoint(tmp_path / "models" / "mistral", MISTRAL_7B)
    assert init("--checkpoint", uri, *CORPUS, "--tokens", tokens).code == 0
    sweep, prediction = specs(Path("mistral.yaml"))
    assert max(proxy.tokens for proxy in sweep.proxies) <= prediction.budget.tokens


@pytest.mark.parametrize("tokens", ["100M", "10B", "15B", "55B"])
def test_the_laws_of_what_is_written_reach_the_checkpoint(
    init: Isoloss, isoloss: Isoloss, llama: str, tokens: str
) -> None:
    """Whether a sweep pays is another question: it does not for 100M tokens."""
    out = init("--checkpoint", llama, *CORPUS, "--tokens", tokens).words
    plan = isoloss("plan", "llama-3-8b.yaml", "--json").document
    assert size_refusal(7.5e9, [size["params"] for size in plan["sizes"]]) is None
    assert plan["refused_predictions"] == {}
    assert ("A sweep does not pay off" in out) is (tokens == "100M")
    if advised := re.search(r"`isoloss ([^`]*)`, with the FLOPs of pre-training included", out):
        assert isoloss(*advised[1].replace("FLOPS", "1e23").split()).code == 0
    assert (advised is not None) is (tokens == "100M")


def test_proxies_whose_training_does_not_fit_a_node_are_given_several(
    init: Isoloss, isoloss: Isoloss, tmp_path: Path
) -> None:
    """DeepSeek-V3's: as far as there are accelerators for them. Those of a node are further from it."""
    uri = write_checkpoint(tmp_path / "models" / "deepseek", DEEPSEEK_V3)
    asked = ("--checkpoint", uri, *CORPUS, "--tokens", "1T", "--json")
    ended = init(*asked, "--accelerators", 64)
    assert ended.code == 0, ended.err
    path = Path("deepseek.yaml")
    *small, largest = [proxy.nodes or 1 for proxy in specs(path)[0].proxies]
    assert largest == 4
    assert set(small) == {1}
    assert "nvidia.com/gpu: 8}" in path.read_text()
    plan = isoloss("plan", path, "--json")
    assert plan.code == 0, plan.err
    *few_each, most = [size["accelerators"] for size in plan.document["sizes"]]
    assert most == 8 * largest
    assert max(few_each) <= 8
    assert all(size["fits"]["80 GB"] for size in plan.document["sizes"])
    few = init(*asked, "--accelerators", 8, "--out", "few.yaml")
    assert {proxy.nodes for proxy in specs(Path("few.yaml"))[0].proxies} == {None}
    regrets = [
        next(each["expected_regret"] for each in found.document["designs"] if each["chosen"])
        for found in (ended, few)
    ]
    assert regrets[0] < 0.8 * regrets[1]
    path.unlink()


def test_too_few_accelerators_for_any_proxy_are_named(init: Isoloss, tmp_path: Path) -> None:
    """Of one with many more experts no proxies fit one accelerator."""
    wide = {**DEEPSEEK_V3, "n_routed_experts": 512}
    uri = write_checkpoint(tmp_path / "models" / "wide", wide)
    asked = ("--checkpoint", uri, *CORPUS, "--tokens", "1T")
    assert_refused(init(*asked, "--accelerators", 1), "--accelerators: the largest proxy")
    assert list(Path().iterdir()) == []


def test_runs_that_are_mostly_warm_up_are_told_so(init: Isoloss, tmp_path: Path) -> None:
    uri = write_checkpoint(tmp_path / "models" / "mistral", MISTRAL_7B)
    asked = ("--checkpoint", uri, *CORPUS, "--tokens", "100M")
    out = init(*asked).words
    assert "per parameter of the largest proxy" in out
    (warning,) = init(*asked, "--out", "other.yaml", "--json").document["warnings"]
    assert "per parameter of the largest proxy" in warning


def test_the_command_to_paste_takes_a_file_whatever_its_name_is(init: Isoloss, llama: str) -> None:
    ended = init("--checkpoint", llama, *CORPUS, "--tokens", "55B", "--out", "my sweep.yaml")
    assert "kubectl apply -f 'my sweep.yaml'" in ended.out


def test_the_same_text_is_not_trained_twice(init: Isoloss, llama: str) -> None:
    twice = ("--corpus", "s3://c/x", "--corpus", "y=s3://c/x/")
    ended = init("--checkpoint", llama, *twice, "--tokens", "55B")
    assert_refused(ended, "--corpus: s3://c/x/* is given twice")


def test_a_job_has_no_more_accelerators_than_its_smallest_batch_has_sequences(
    init: Isoloss, isoloss: Isoloss, tmp_path: Path
) -> None:
    """8 of 64 would go to each of a search's Jobs, and its first points have batches of 3, 6 and 12."""
    uri = write_checkpoint(tmp_path / "models" / "qwen3-30b", QWEN3_30B_A3B)
    asked = ("--checkpoint", uri, *CORPUS, "--tokens", "1B", "--accelerators", 64, "--json")
    ended = init(*asked)
    batches = [size["batch_sizes"] for size in ended.document["sizes"]]
    assert batches == [[3, 6, 12], [5, 10, 20]]
    written = Path("qwen3-30b.yaml").read_text()
    assert "limits: {nvidia.com/gpu: 2}} # guessed: of 80 GB each, for every pod" in written
    assert "parallelism: 32 # Jobs at a time, on 64 accelerators" in written
    plan = isoloss("plan", ended.document["manifest"], "--json").document
    assert plan["accelerator_hours"] == ended.document["accelerator_hours"]


def test_domains_are_named_by_their_folders_each_once(init: Isoloss, llama: str) -> None:
    uris = (
        "s3://c/The_Pile/",
        "s3://d/the-pile/*.parquet",
        "s3://c/code.jsonl",
        "gs://c/x.json.gz",
    )
    corpus = [word for uri in uris for word in ("--corpus", uri)]
    assert init("--checkpoint", llama, *corpus, "--tokens", "55B").code == 0
    sweep, _ = specs(Path("llama-3-8b.yaml"))
    assert [(each.name, each.uri) for each in sweep.data.domains] == [
        ("the-pile", "s3://c/The_Pile/*"),
        ("the-pile-2", "s3://d/the-pile/*.parquet"),
        ("c", "s3://c/code.jsonl"),
        ("c-2", "gs://c/x.json.gz"),
    ]
