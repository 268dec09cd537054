"""The initial loss of checkpoints: exact, or marked as converted, or refused."""

import io
import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isoloss_trainer.evaluate as evaluate_module
import isoloss_trainer.foreign_model as foreign_model_module
from isoloss_contract import layout
from isoloss_contract.records import EvaluateTask, EvaluationResult
from isoloss_contract.store import Store
from isoloss_trainer.evaluate import evaluate
from isoloss_trainer.evaluation import Loss, TokenLosses, ValidationSet, bytes_per_token
from isoloss_trainer.foreign_model import (
    ForeignModel,
    fetch_directory,
    fetching,
    load_network,
)
from isoloss_trainer.log import Log
from isoloss_trainer.model import LanguageModel, build_network
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import BadData, Interrupted, Interruption, TrainerError
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import (
    DEEPSEEK,
    LLAMA,
    MIXTURE,
    QWEN3_MOE,
    SEQUENCE_LENGTH,
    VOCABULARY,
    documents,
    make_tokenizer,
    quiet,
    uri,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.families import FAMILIES, REFUSED

ALONE = World()


def run(task: EvaluateTask, scratch: Path) -> EvaluationResult:
    evaluate(task, scratch, Interruption(), quiet())
    path = layout.evaluation_result(task.config.key)
    return Store(task.store_uri).read_record(path, EvaluationResult)


def own_losses(network: Any) -> TokenLosses:
    """By the network's own logits."""

    def losses(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = network(inputs, use_cache=False).logits[:, -targets.shape[1] :]
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")

    return losses


def estimate(prepared: Prepared, scratch: Path, losses: TokenLosses, sequences: int = 64) -> Loss:
    data = PreparedData(prepared.data_uri, scratch)
    return ValidationSet(data, MIXTURE, sequences).evaluate(losses, ALONE, 16)[0]


def save(
    folder: Path,
    config: dict[str, Any],
    tokenizer: Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Path:
    build_network(config, seed=seed).save_pretrained(folder, **options)
    if tokenizer is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / name, folder / name)
    return folder


@pytest.mark.parametrize(
    "config", [LLAMA, DEEPSEEK, QWEN3_MOE], ids=lambda config: config["model_type"]
)
@pytest.mark.parametrize("size", ["10GB", "20KB"], ids=["one file", "sharded"])
def test_the_loss_is_that_of_the_same_weights_in_training(
    prepared: Prepared, corpus: Path, tmp_path: Path, config: dict[str, Any], size: str
) -> None:
    folder = save(tmp_path / "model", config, corpus / "tokenizer", max_shard_size=size)
    result = run(prepared.evaluate_task(folder), tmp_path)
    data = PreparedData(prepared.data_uri, tmp_path)
    model = LanguageModel(build_network(config, seed=0), SEQUENCE_LENGTH)
    loss = estimate(prepared, tmp_path, model.token_losses)
    assert result.loss == pytest.approx(loss.value, abs=1e-6)
    assert result.loss_standard_error == pytest.approx(loss.standard_error, rel=1e-3)
    assert result.same_tokenizer
    assert result.nats_per_byte == pytest.approx(loss.value / bytes_per_token(data, MIXTURE))
    assert result.tokenizer_digest == prepared.manifest.tokenizer_digest
    assert {"isoloss", "torch", "transformers"} <= result.versions.keys()


def test_a_stop_during_an_evaluation_ends_it_without_a_result(
    prepared: Prepared, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_module, "CPU_MICRO_BATCH_TOKENS", SEQUENCE_LENGTH)
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer")
    task = prepared.evaluate_task(folder)
    interruption = Interruption()
    original, calls = ForeignModel.token_losses, itertools.count(1)

    def counted(self: ForeignModel, *batch: torch.Tensor) -> torch.Tensor:
        number = next(calls)
        assert number <= 3, "the evaluation continued"
        interruption.requested = number == 3
        return original(self, *batch)

    monkeypatch.setattr(ForeignModel, "token_losses", counted)
    with pytest.raises(Interrupted):
        evaluate(task, tmp_path, interruption, quiet())
    assert not prepared.store.exists(layout.evaluation_result(task.config.key))


def test_an_evaluated_checkpoint_is_not_evaluated_again(
    prepared: Prepared, corpus: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer")
    task = prepared.evaluate_task(folder)
    run(task, tmp_path)
    shutil.rmtree(folder)
    assert evaluate(task, tmp_path, Interruption(), quiet()).startswith("already evaluated")


def test_an_equal_tokenizer_in_another_file_form_is_recognised_by_its_tokens(
    prepared: Prepared, corpus: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer")
    description = json.loads((folder / "tokenizer.json").read_text())
    description["normalizer"] = {"type": "Sequence", "normalizers": []}
    (folder / "tokenizer.json").write_text(json.dumps(description))
    result = run(prepared.evaluate_task(folder), tmp_path)
    assert result.tokenizer_digest != prepared.manifest.tokenizer_digest
    assert result.same_tokenizer


def test_another_tokenizer_is_converted_through_bytes_and_marked(
    prepared: Prepared, tmp_path: Path
) -> None:
    """A uniform model loses ln(V) per token of its own; per byte that depends on its tokenizer alone."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer", documents(10), vocabulary=300)
    folder = save(tmp_path / "model", {**LLAMA, "vocab_size": 300}, tokenizer)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    result = run(prepared.evaluate_task(folder), tmp_path)
    assert not result.same_tokenizer

    from isoloss_trainer.foreign_tokens import validation_documents
    from isoloss_trainer.tokenization import load_tokenizer

    data = PreparedData(prepared.data_uri, tmp_path)
    theirs = load_tokenizer(uri(tokenizer))
    expected = 0.0
    for name, share in MIXTURE.items():
        texts = validation_documents(data, name)
        tokens = sum(len(t) + 1 for t in theirs.encode(texts))
        size = sum(len(text.encode()) for text in texts)
        domain = data.domain(name)
        per_token = domain.validation_bytes / domain.validation_tokens
        expected += share * 5.703782 * tokens / size * per_token
    assert result.loss == pytest.approx(expected, rel=0.03)


def test_without_a_tokenizer_the_vocabulary_must_include_the_sweeps(
    prepared: Prepared, tmp_path: Path
) -> None:
    folder = save(tmp_path / "good", LLAMA)
    result = run(prepared.evaluate_task(folder), tmp_path)
    assert result.tokenizer_digest is None
    small = save(tmp_path / "small", {**LLAMA, "vocab_size": VOCABULARY - 1})
    with pytest.raises(BadData) as caught:
        run(prepared.evaluate_task(small), tmp_path)
    assert caught.value.code == "TokenizerDiffers"


LEGACY: dict[str, tuple[str, ...]] = {
    "SentencePiece": ("tokenizer.model", "tokenizer_config.json"),
    "GPT-2": ("vocab.json", "merges.txt"),
    "WordPiece": ("vocab.txt",),
    "tiktoken": ("qwen.tiktoken",),
    "its configuration alone": ("tokenizer_config.json",),
}


@pytest.mark.parametrize("form", LEGACY)
@pytest.mark.parametrize("copied", [False, True], ids=["volume", "bucket"])
def test_a_tokenizer_in_a_form_that_is_not_read_is_not_taken_for_the_sweeps(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, copied: bool
) -> None:
    """In the sweep's tokens, every word of the text would stand for another."""
    if copied:
        monkeypatch.setattr(foreign_model_module, "LOCAL", "no scheme")
    folder = save(tmp_path / "model", LLAMA)
    for name in LEGACY[form]:
        (folder / name).write_text("{}")
    with pytest.raises(BadData, match="AutoTokenizer") as caught:
        run(prepared.evaluate_task(folder), tmp_path)
    assert caught.value.code == "TokenizerNotLoadable"
    assert all(name in caught.value.message for name in LEGACY[form])


def _spoil_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def _add_shards(folder: Path) -> None:
    """Newer weights in shards beside the single file of older ones."""
    build_network(LLAMA, seed=1).save_pretrained(folder / "newer", max_shard_size="20KB")
    for path in (folder / "newer").glob("model*"):
        shutil.move(path, folder / path.name)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def _edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    (folder / "model.safetensors").unlink()
    _add_shards(folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def _sharded(folder: Path, **changes: object) -> None:
    _edit_index(folder, lambda _: None)
    _edit_config(folder, **changes)


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "an old file beside newer shards": (
        _add_shards,
        r"both model\.safetensors and model\.safetensors\.index\.json",
    ),
    "an adapter": (
        lambda f: (f / "adapter_config.json").write_text("{}"),
        r"adapter_config\.json is of an adapter",
    ),
    "an adapter's weights alone": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b""),
        r"adapter_model\.safetensors is of an adapter",
    ),
    "no index": (
        lambda f: (f / "model.safetensors").rename(f / "model-00001-of-00001.safetensors"),
        r"neither model\.safetensors nor model\.safetensors\.index\.json",
    ),
    "an index without metadata": (
        lambda f: _edit_index(f, lambda index: index.pop("metadata")),
        r"model\.safetensors\.index\.json: no metadata",
    ),
    "an index without names": (
        lambda f: _edit_index(f, lambda index: index.pop("weight_map")),
        r"model\.safetensors\.index\.json: no weight_map",
    ),
    "an index of no names": (
        lambda f: _edit_index(f, lambda index: index["weight_map"].clear()),
        r"model\.safetensors\.index\.json: its weight_map is empty",
    ),
    "an index behind a byte order mark": (
        lambda f: (
            _edit_index(f, lambda _: None),
            _replace(f / "model.safetensors.index.json", "{", "\ufeff{"),
        ),
        r"model\.safetensors\.index\.json: .*BOM",
    ),
    "a configuration behind a byte order mark": (
        lambda f: _replace(f / "config.json", "{", "\ufeff{"),
        r"model/config\.json: .*BOM",
    ),
    "a pointer of Git LFS": (
        lambda f: (
            _edit_index(f, lambda _: None),
            max(f.glob("model-0*")).write_text("version https://git-lfs\n"),
        ),
        r"model-(\d+)-of-\1\.safetensors: no safetensors file, or not all of it .*copy it again",
    ),
    "a shard that is not there": (
        lambda f: _edit_index(f, lambda index: index["weight_map"].update({"x": "y.safetensors"})),
        r"no y\.safetensors, which model\.safetensors\.index\.json names",
    ),
    "a shard elsewhere": (
        lambda f: _edit_index(f, lambda i: i["weight_map"].update({"x": "../y.safetensors"})),
        r"\.\./y\.safetensors is not a \.safetensors file of this folder",
    ),
    "a head that is not the embeddings to which it is tied": (
        lambda f: _edit_config(f, tie_word_embeddings=True),
        r"lm_head\.weight is not model\.embed_tokens\.weight, to which config\.json ties it",
    ),
    "the same in another shard": (
        lambda f: _sharded(f, tie_word_embeddings=True),
        r"lm_head\.weight is not model\.embed_tokens\.weight, to which config\.json ties it",
    ),
    "a weight in two shards by the index": (
        lambda f: (
            _edit_index(f, lambda _: None),
            _replace(
                f / "model.safetensors.index.json",
                '"lm_head.weight":',
                '"lm_head.weight": "x.safetensors", "lm_head.weight":',
            ),
        ),
        r"model\.safetensors\.index\.json: the key 'lm_head\.weight' is there twice",
    ),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "NotACheckpoint"),
    "config in another encoding": (
        lambda f: (f / "config.json").write_bytes(b'{"model_type": "\xe9"}'),
        r"config\.json: no JSON, or not all of it: not UTF-8 at byte 16",
    ),
    "config is a list": (
        lambda f: (f / "config.json").write_text("[1]"),
        r"json: names no model_type",
    ),
    "config without a type": (
        lambda f: (f / "config.json").write_text("{}"),
        r"json: names no model_type",
    ),
    "unknown model": (
        lambda f: _edit_config(f, model_type="no_such"),
        r"json: model_type is no_such, which transformers [\d.]+, the trainer's, does not have",
    ),
    "weights of another form": (
        lambda f: (f / "model.safetensors").rename(f / "consolidated.safetensors"),
        r"neither model\.safetensors nor .*: save_pretrained\(FOLDER\) writes one of them",
    ),
    "text for a number": (
        lambda f: _edit_config(f, vocab_size="384"),
        r"transformers cannot use it: Validation error for field 'vocab_size': Field 'vocab_size' expected",
    ),
    "a decoder made an encoder": (
        lambda f: _edit_config(f, is_causal=False),
        r"a model of type llama sees later tokens, since is_causal is false",
    ),
    "not causal": (lambda f: _edit_config(f, model_type="vit"), "NotACheckpoint"),
    "remote code": (
        lambda f: _edit_config(f, model_type="new", auto_map={"AutoModel": "x.Y"}),
        "RemoteCodeRefused",
    ),
    "remote code under a known name": (
        lambda f: (
            _edit_config(f, auto_map={"AutoModel": "x.Y"}),
            _spoil_weights(f, lambda w: w.update({"model.gate.weight": torch.ones(2)})),
        ),
        "RemoteCodeRefused",
    ),
    "a weight is missing": (
        lambda f: _spoil_weights(f, lambda w: w.pop("model.norm.weight")),
        "WeightsMissing",
    ),
    "biases that config.json does not name": (
        lambda f: _spoil_weights(
            f, lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)})
        ),
        "WeightsUnexpected",
    ),
    "NaN in a weight": (
        lambda f: _spoil_weights(f, lambda w: w["model.norm.weight"].fill_(float("nan"))),
        "NonFiniteWeights",
    ),
    "codes without their meaning": (
        lambda f: _spoil_weights(
            f, lambda w: w.update({"lm_head.weight": w["lm_head.weight"].to(torch.int8)})
        ),
        "NotACheckpoint",
    ),
    "a setting twice, which a tokenizer is compared with first": (
        lambda f: _replace(f / "config.json", '"vocab_size":', '"vocab_size": 1, "vocab_size":'),
        "TokenizerNotLoadable",
    ),
    "positions too few": (lambda f: _edit_config(f, max_position_embeddings=8), "SequenceTooLong"),
}
"""How a checkpoint is spoilt, and the code of what is said, or words of NotACheckpoint."""


@pytest.mark.parametrize("case", SPOILT)
@pytest.mark.parametrize("copied", [False, True], ids=["volume", "bucket"])
def test_checkpoints_whose_loss_would_be_another_are_refused(
    prepared: Prepared,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    copied: bool,
) -> None:
    if copied:
        monkeypatch.setattr(foreign_model_module, "LOCAL", "no scheme")
    spoil, words = SPOILT[case]
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer")
    spoil(folder)
    with pytest.raises(TrainerError) as caught:
        run(prepared.evaluate_task(folder), tmp_path)
    assert caught.value.code == (words if words.isalpha() else "NotACheckpoint")
    assert words.isalpha() or re.search(words, caught.value.message)


@pytest.mark.parametrize("copied", [False, True], ids=["volume", "bucket"])
@pytest.mark.parametrize("size", ["10GB", "20KB"], ids=["one file", "sharded"])
def test_files_that_are_not_loaded_are_not_looked_at(
    prepared: Prepared,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copied: bool,
    size: str,
) -> None:
    """Such as the weights of a draft model, or the same ones in eight bits."""
    if copied:
        monkeypatch.setattr(foreign_model_module, "LOCAL", "no scheme")
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer", max_shard_size=size)
    codes = {"layers.0.weight": torch.ones(4, 4, dtype=torch.int8)}
    save_file(codes, folder / "consolidated.safetensors")
    (folder / "draft.safetensors").write_bytes(b"no safetensors")
    task = prepared.evaluate_task(folder)
    assert run(task, tmp_path).loss > 0
    names = [path.name for path in (tmp_path / "checkpoint").glob("*.safetensors")]
    assert not {"consolidated.safetensors", "draft.safetensors"} & {*names}


@pytest.mark.parametrize("copied", [False, True], ids=["volume", "bucket"])
def test_shards_in_a_folder_of_the_checkpoint_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    if copied:
        monkeypatch.setattr(foreign_model_module, "LOCAL", "no scheme")
    folder = save(tmp_path / "model", LLAMA, max_shard_size="20KB")
    (folder / "weights" / "of").mkdir(parents=True)
    for path in folder.glob("*.safetensors"):
        path.rename(folder / "weights" / "of" / path.name)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"model-', '"weights/of/model-'))
    fetched = fetch_directory(uri(folder), tmp_path)
    assert (fetched == folder) is not copied
    loaded = load_network(fetched, uri(folder), torch.float32)
    for name, weight in build_network(LLAMA, seed=0).state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name


COMMON, _ = Counter(
    word for text in documents(240) for word in text.split() if len(word) > 3
).most_common(1)[0]


def _add_token(folder: Path, text: str) -> int:
    """Add a token behind all others, as fine-tuning codes do; returns its number."""
    description = json.loads((folder / "tokenizer.json").read_text())
    number = max(
        [*description["model"]["vocab"].values(), *(t["id"] for t in description["added_tokens"])]
    )
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    description["added_tokens"].append({"id": number + 1, "content": text, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(description))
    return number + 1


@pytest.mark.parametrize("text", [COMMON, "<|other|>"], ids=["a word", "an end of text"])
def test_a_token_beyond_the_embeddings_is_bad_data_that_names_it(
    prepared: Prepared, tmp_path: Path, text: str
) -> None:
    """An IndexError, or an assertion of the device, would be retried and charged."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer", documents(10), vocabulary=300)
    folder = save(tmp_path / "model", {**LLAMA, "vocab_size": 300}, tokenizer)
    assert _add_token(folder, text) == 300
    if text != COMMON:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": text}))
    with pytest.raises(BadData, match=re.escape(f"token {text!r} (300)")) as caught:
        run(prepared.evaluate_task(folder), tmp_path)
    assert caught.value.code == "TokenizerDiffers"
    assert "embeddings for 300 tokens" in caught.value.message


def test_a_token_beyond_the_embeddings_that_no_text_has_does_not_matter(
    prepared: Prepared, corpus: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer")
    plain = run(prepared.evaluate_task(folder), tmp_path)
    added = save(tmp_path / "added", LLAMA, corpus / "tokenizer")
    _add_token(added, "<|tool_call|>")
    result = run(prepared.evaluate_task(added), tmp_path)
    assert (result.same_tokenizer, result.loss) == (True, plain.loss)


def test_a_stop_ends_a_fetch_which_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interruption, output, parts = Interruption(), io.StringIO(), Store.parts

    def stopping(self: Store, path: str) -> Iterator[bytes]:
        interruption.requested = path == "model.safetensors"
        yield from parts(self, path)

    for name in ("config.json", "model.safetensors", "special.json"):
        (tmp_path / name).write_bytes(b"four")
    monkeypatch.setattr(foreign_model_module, "LOCAL", "no scheme")
    monkeypatch.setattr(Store, "parts", stopping)
    with pytest.raises(Interrupted):
        fetch_directory(
            uri(tmp_path), tmp_path / "scratch", fetching(interruption, Log(output, seconds=0.0))
        )
    reported = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [(line["event"], line["bytes"]) for line in reported] == [
        ("fetch", size) for size in (4, 8, 12)
    ]


HARMLESS = {
    "masks": ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
    "masks of GPT-Neo": ("gpt_neo", ["transformer.h.0.attn.attention.bias"]),
    "masks of GPT-J": ("gptj", ["transformer.h.0.attn.bias"]),
    "positions": ("llama", ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
    "state of 8-bit training": ("llama", ["model.layers.0.mlp.up_proj._extra_state"]),
    "multi-token prediction": ("deepseek_v3", ["model.layers.61.eh_proj.weight"]),
    "a head that is tied": ("qwen2", ["lm_head.weight"]),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_checkpoints_carry_beside_the_weights_is_passed_over(
    tmp_path: Path, case: str
) -> None:
    kind, names = HARMLESS[case]
    config = {"model_type": kind, **FAMILIES[kind]}
    network = build_network({**config, "tie_word_embeddings": "tied" in case}, seed=0)
    network.save_pretrained(tmp_path)
    head = network.get_output_embeddings().weight.detach()
    _spoil_weights(tmp_path, lambda w: w.update({name: head.clone() for name in names}))
    loaded = load_network(tmp_path, uri(tmp_path), torch.float32)
    for name, weight in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name


LAST = DEEPSEEK["num_hidden_layers"]


@pytest.mark.parametrize(
    ("counted", "layer", "joins", "passed"),
    [
        pytest.param(1, LAST, False, True, id="counted"),
        pytest.param(1, LAST + 1, False, False, id="one more than is counted"),
        pytest.param(0, LAST, True, True, id="not counted, by what it has"),
        pytest.param(None, LAST + 1, True, True, id="by what it has alone"),
        pytest.param(None, LAST, False, False, id="a layer like the others"),
        pytest.param(None, 61, False, False, id="the same at the published depth"),
    ],
)
def test_a_layer_behind_the_last_is_passed_over_if_it_predicts_later_tokens(
    tmp_path: Path, counted: int | None, layer: int, joins: bool, passed: bool
) -> None:
    """As a whole, at any depth; another would make a larger model."""
    save(tmp_path, DEEPSEEK)
    _edit_config(tmp_path, num_nextn_predict_layers=counted)

    def add_layer(weights: dict[str, torch.Tensor]) -> None:
        last = f"model.layers.{LAST - 1}."
        copied = {n.replace(last, f"model.layers.{layer}."): n for n in weights if last in n}
        weights |= {name: weights[other].clone() for name, other in copied.items()}
        if joins:
            weights[f"model.layers.{layer}.eh_proj.weight"] = torch.ones(2, 2)

    _spoil_weights(tmp_path, add_layer)
    if passed:
        loaded = load_network(tmp_path, uri(tmp_path), torch.float32)
        for name, weight in build_network(DEEPSEEK, seed=0).state_dict().items():
            assert torch.equal(loaded.state_dict()[name], weight), name
        return
    words = (
        rf"layers\.{layer}\..*num_hidden_layers is {LAST}, and the files have layer {layer}, too"
    )
    with pytest.raises(BadData, match=words) as caught:
        load_network(tmp_path, uri(tmp_path), torch.float32)
    assert caught.value.code == "WeightsUnexpected"


def test_code_that_transformers_has_by_now_is_passed_over(
    prepared: Prepared, corpus: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer")
    plain = run(prepared.evaluate_task(folder), tmp_path)
    _edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    task = prepared.evaluate_task(folder, checkpoint_stamp="later")
    assert run(task, tmp_path).loss == plain.loss


def _adding_first_tokens(corpus: Path, folder: Path, tokens: tuple[int, ...]) -> Path:
    """The corpus' tokenizer with these tokens before each text, as the files of Gemma and GLM have them."""
    shutil.copytree(corpus / "tokenizer", folder)
    description = json.loads((folder / "tokenizer.json").read_text())
    names = {number: piece for piece, number in description["model"]["vocab"].items()}
    pieces = {token: names[token] for token in tokens}
    description["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            *({"SpecialToken": {"id": piece, "type_id": 0}} for piece in pieces.values()),
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            piece: {"id": piece, "ids": [token], "tokens": [piece]}
            for token, piece in pieces.items()
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("first", [(5,), (5, 7)], ids=["one", "two"])
@pytest.mark.parametrize("positions", [64, SEQUENCE_LENGTH], ids=["room", "no room for it"])
@pytest.mark.parametrize("seed", range(3))
def test_the_tokenizers_first_tokens_are_used_where_the_loss_is_lower_with_them(
    prepared: Prepared,
    corpus: Path,
    tmp_path: Path,
    seed: int,
    positions: int,
    first: tuple[int, ...],
) -> None:
    config = {**LLAMA, "max_position_embeddings": positions, "initializer_range": 0.5}
    tokenizer = _adding_first_tokens(corpus, tmp_path / "tokenizer", first)
    folder = save(tmp_path / "model", config, tokenizer, seed)
    result = run(prepared.evaluate_task(folder), tmp_path)
    losses = own_losses(build_network(config, seed=seed).eval())

    def with_first(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rest, used = (inputs, first) if positions > SEQUENCE_LENGTH else (inputs[:, 1:], first[:1])
        return losses(torch.cat([torch.tensor(used).expand(len(inputs), -1), rest], 1), targets)

    probe = evaluate_module.PROBE_SEQUENCES
    with_it, without = (estimate(prepared, tmp_path, f, probe).value for f in (with_first, losses))
    assert result.first_token == (5 if with_it < without else None)
    used = with_first if with_it < without else losses
    wanted = estimate(prepared, tmp_path, used)
    assert result.loss == pytest.approx(wanted.value, abs=1e-5)


def test_too_few_documents_for_an_error_bar_are_refused(
    prepared: Prepared, corpus: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer")
    task = prepared.evaluate_task(folder, sequences_per_domain=1)
    with pytest.raises(BadData, match="the error cannot be estimated"):
        run(task, tmp_path)


def _sees_only_what_was_before(network: Any) -> bool:
    tokens = torch.arange(SEQUENCE_LENGTH)[None]
    changed = torch.cat([tokens[:, :16], tokens[:, 16:].flip(1)], 1)
    with torch.no_grad():
        before, after = (network(t, use_cache=False).logits[:, :16] for t in (tokens, changed))
    return torch.allclose(before, after, atol=1e-6)


WITH_DROPOUT = ("gpt2", "gpt_neox", "opt")


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_loss_of_each_family_is_that_of_its_own_logits(
    prepared: Prepared, corpus: Path, tmp_path: Path, kind: str
) -> None:
    """With whatever attention, states, scales and caps transformers computes it, and without its training's dropout."""
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        pytest.skip("not in this version of transformers")
    config = {"model_type": kind, **FAMILIES[kind]}
    network = build_network(config, seed=0).eval()
    settings = network.config.to_dict().items()
    assert any("drop" in name and value for name, value in settings) or kind not in WITH_DROPOUT
    folder = save(tmp_path / "model", config, corpus / "tokenizer")
    result = run(prepared.evaluate_task(folder, sequences_per_domain=8), tmp_path)
    wanted = estimate(prepared, tmp_path, own_losses(network), sequences=8)
    assert result.loss == pytest.approx(wanted.value, abs=1e-5)
    assert _sees_only_what_was_before(network)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_sees_the_tokens_that_it_is_to_predict_is_refused_by_name(
    prepared: Prepared, corpus: Path, tmp_path: Path, kind: str
) -> None:
    folder = save(tmp_path / "model", {"model_type": kind, **REFUSED[kind]}, corpus / "tokenizer")
    if kind != "xlnet":  # known before the weights are read
        _edit_config(folder, is_decoder=False, is_encoder_decoder=kind == "bart")
        (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadData, match=kind) as caught:
        run(prepared.evaluate_task(folder), tmp_path)
    assert caught.value.code == "NotACheckpoint"


def test_the_docs_list_the_families_that_are_evaluated_here() -> None:
    """With what computes their attention."""
    text = (Path(__file__).parents[2] / "docs/reference/checkpoints.md").read_text()
    text = text.partition("|refusal|")[0]
    listed = {}
    for names, attention in re.findall(r"^\|(`.*`)\|(.*)\|$", text, re.M):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), attention)
    assert listed.keys() == FAMILIES.keys()
    import transformers
    from transformers import CONFIG_MAPPING

    assert set(listed.values()) <= set(ATTENTION.values())
    release = transformers.__version__.split(".")[:2]
    if release != LISTED_FOR:
        pytest.skip(f"the attention on the page is that of transformers {'.'.join(LISTED_FOR)}")
    here = [kind for kind in FAMILIES if kind in CONFIG_MAPPING]
    assert {kind: listed[kind] for kind in here} == {
        kind: ATTENTION[_attention(kind)] for kind in here
    }


LISTED_FOR = ["5", "23"]
"""The release of transformers of which the page lists what computes attention: others chose otherwise."""
ATTENTION = {
    "isoloss_causal": "as in training",
    "sdpa": "torch's, with a mask if one is needed",
    "isoloss_sinks": "torch's, with a mask if one is needed",
    "eager": "transformers' own operations",
}


def _attention(kind: str) -> str:
    network = build_network({"model_type": kind, **FAMILIES[kind]})
    LanguageModel(network, SEQUENCE_LENGTH)
    return str(network.config._attn_implementation)
