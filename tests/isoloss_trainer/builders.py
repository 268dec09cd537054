"""Small corpora, tokenizers and tasks for the trainer's tests."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from isoloss_contract import layout, records
from isoloss_contract.store import Store
from isoloss_trainer.attempt import Attempt, Fence, Reporter
from isoloss_trainer.checkpoint import CheckpointManifest, Index
from isoloss_trainer.learner import Learner, StepFacts, local
from isoloss_trainer.log import Log
from isoloss_trainer.run import PointRun
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import Interruption
from isoloss_trainer.world import World
from tests.support.texts import text

SEQUENCE_LENGTH = 32
MIXTURE = {"code": 0.25, "prose": 0.75}
END = "<|end|>"
VOCABULARY = 384
TEXT_CHARACTERS = 860_000

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 64,
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "max_position_embeddings": 64,
}
QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3"}


def quiet() -> Log:
    """A log to nowhere."""
    return Log(Path("/dev/null").open("w"))


def documents(count: int, characters: int = TEXT_CHARACTERS) -> list[str]:
    """Stretches of text that are the same on every machine, so many characters in all."""
    whole = text(characters)
    size = len(whole) // count
    return [whole[i * size : (i + 1) * size] for i in range(count)]


def write_json_lines(path: Path, texts: list[str], field: str = "text") -> None:
    """One document a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))


def make_tokenizer(folder: Path, texts: list[str], vocabulary: int = VOCABULARY) -> Path:
    """A byte-level BPE in Hugging Face format."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return folder


def make_corpus(folder: Path, count: int = 240) -> Path:
    """Two domains of `count` documents in all, and a tokenizer."""
    texts = documents(count)
    write_json_lines(folder / "prose.jsonl", texts[::2])
    write_json_lines(folder / "code.jsonl", texts[1::2])
    make_tokenizer(folder / "tokenizer", texts)
    return folder


def uri(path: Path) -> str:
    """A path as a store URI."""
    return f"file://{path}"


def prepare_task(corpus: str, store: str, **changes: Any) -> records.PrepareTask:
    """Prepare both domains of a corpus that `make_corpus` made."""
    config = {
        "tokenizer": f"{corpus}/tokenizer",
        "sequence_length": SEQUENCE_LENGTH,
        "domains": tuple(
            records.DomainSource(name=name, uri=f"{corpus}/{name}.jsonl", text_field="text")
            for name in MIXTURE
        ),
        "validation_documents_per_thousand": 100,
    }
    return records.PrepareTask(
        config=records.PrepareConfig(**{**config, **changes}), store_uri=store
    )


def train_task(
    manifest: records.DataManifest,
    store: str,
    *,
    tokens: int = 2048,
    model: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    **changes: Any,
) -> records.TrainTask:
    """Train a tiny model on prepared data in the same store."""
    point = {
        "data_digest": manifest.digest,
        "mixture": MIXTURE,
        "model": model or LLAMA,
        "optimizer": records.OptimizerConfig(warmup_tokens=512),
        "learning_rate": 3e-3,
        "batch_size": 4,
        "sequence_length": SEQUENCE_LENGTH,
        "evaluation": records.EvaluationConfig(
            first_tokens=512, per_decade=4, sequences_per_domain=8
        ),
        "precision": "float32",
    }
    return records.TrainTask(
        point=records.PointConfig(**{**point, **changes}),
        tokens=tokens,
        store_uri=store,
        data_uri=f"{store}/data/{manifest.prepare_key}",
        **{"claimant": records.Claimant(sweep_uid="sweep", attempt=1), **(task or {})},
    )


def attempt(task: records.TrainTask, data: PreparedData) -> Attempt:
    """An attempt at `task` that is alone on the CPU and has claimed nothing."""
    store = Store(task.store_uri)
    fence = Fence(store, task.point.key, task.claimant)
    return Attempt(
        task, store, data, Path("/nonexistent"), fence, World(), Interruption(), quiet()
    )


def run_of(attempt: Attempt) -> PointRun:
    """The run of an attempt that reports nothing."""
    return PointRun(attempt, Reporter(attempt))


def part_of(learner: Learner, part: str = "weights") -> torch.Tensor:
    """All tensors of a part of the training state in one vector, copied."""
    tensors = learner.tensors().items()
    return torch.cat([local(t).flatten() for name, t in tensors if name.startswith(f"{part}.")])


def spoil_weights(learner: Learner) -> None:
    """As a step that diverged leaves them."""
    for name, tensor in learner.tensors().items():
        if name.startswith("weights."):
            tensor.fill_(float("nan"))


def last_state(store: Store, key: str) -> dict[str, list[str]]:
    """SHA-256 of every tensor's parts in the point's last checkpoint: weights, average, moments, biases."""
    folder = layout.point_checkpoints(key)
    last = f"{folder}/{store.names(folder)[-1]}"
    manifest = store.read_record(f"{last}/manifest.json", CheckpointManifest)
    tensors = Index.model_validate_json(store.read(f"{last}/{manifest.index}")).tensors
    return {name: [part.sha256 for part in tensor.parts] for name, tensor in tensors.items()}


def evaluate_task(
    manifest: records.DataManifest, store: str, checkpoint: str, **changes: Any
) -> records.EvaluateTask:
    """Measure a checkpoint on prepared data in the same store."""
    config = {
        "data_digest": manifest.digest,
        "mixture": MIXTURE,
        "checkpoint": checkpoint,
        "sequence_length": SEQUENCE_LENGTH,
        "sequences_per_domain": 64,
        "precision": "float32",
    }
    return records.EvaluateTask(
        config=records.EvaluateConfig(**{**config, **changes}),
        store_uri=store,
        data_uri=f"{store}/data/{manifest.prepare_key}",
    )


class CountedSteps(Interruption):
    """Says how many steps were begun."""

    steps = 0


@contextmanager
def stop_during_step(step: int) -> Iterator[CountedSteps]:
    """A stop request that comes during the `step`-th training step of the block."""
    interruption = CountedSteps()
    original = Learner.step

    def counted(self: Learner, batch: torch.Tensor, tokens: int) -> StepFacts:
        interruption.steps += 1
        interruption.requested = interruption.steps >= step
        return original(self, batch, tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", counted)
        yield interruption


class StopAfter(Interruption):
    """A stop request that is set after `count` checks: SIGTERM at a chosen step."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    @property
    def requested(self) -> bool:  # type: ignore[override, unused-ignore]
        self._count -= 1
        return self._count < 0

    @requested.setter
    def requested(self, value: bool) -> None:
        """The base class sets it to False; nothing else does."""


class Gone(Exception):
    """The node was lost."""


def at_write(
    monkeypatch: pytest.MonkeyPatch, number: int, fault: Callable[[int], object]
) -> list[str]:
    """What is written and removed from now on, by its path; `fault` is called before the `number`-th of them and all that follow, with
    how many there were."""
    written: list[str] = []

    def faulty(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(store: Store, path: str, *rest: Any) -> Any:
            written.append(path)
            if len(written) >= number:
                fault(len(written) - number)
            return original(store, path, *rest)

        return write

    for name in ("write", "write_if", "remove"):
        monkeypatch.setattr(Store, name, faulty(getattr(Store, name)))
    return written


def is_lost(*_: object) -> None:
    raise Gone
