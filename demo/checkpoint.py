"""The checkpoint whose continued pre-training the demo asks about.

It is briefly pre-trained on text outside the sweep's corpus (docstrings of torch and transformers),
with a size that the sweep does not train, and saved in Hugging Face format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from demo.corpus import PRETRAINING

SEQUENCE_LENGTH = 128
BATCH_SIZE = 4
TOKENS = 450_000
LEARNING_RATE = 2e-3
WARMUP_TOKENS = 20_000
SEED = 1

Report = Callable[[int, float], None]
"""Called with the tokens seen and the latest training loss."""


def pretrain(tokenizer_folder: Path, folder: Path, report: Report) -> None:
    """Train for TOKENS tokens and save model and tokenizer to `folder`. Deterministic."""
    torch.set_num_threads(1)  # the sweep's first pods run at the same time
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    sequences = _sequences(tokenizer, PRETRAINING.documents())
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(_shape(len(tokenizer)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
    )
    order = torch.randperm(len(sequences))
    per_step = BATCH_SIZE * SEQUENCE_LENGTH
    for step in range(TOKENS // per_step):
        rows = order[torch.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE) % len(order)]
        loss = _step(
            model, optimizer, sequences[rows], min(1.0, (step + 1) * per_step / WARMUP_TOKENS)
        )
        report((step + 1) * per_step, loss)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _shape(vocabulary: int) -> LlamaConfig:
    """About 0.3 million active parameters: between the sweep's sizes, equal to neither."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=96,
        intermediate_size=264,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=SEQUENCE_LENGTH,
    )


def _sequences(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> torch.Tensor:
    """[sequences, S + 1] consecutive tokens of all texts."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    end = tokenizer.eos_token_id
    tokens = [token for e in backend.encode_batch(list(texts)) for token in (*e.ids, end)]
    whole = len(tokens) // (SEQUENCE_LENGTH + 1) * (SEQUENCE_LENGTH + 1)
    return torch.tensor(tokens[:whole]).view(-1, SEQUENCE_LENGTH + 1)


def _step(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, rows: torch.Tensor, warmup: float
) -> float:
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * warmup
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())
