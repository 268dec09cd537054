"""The checkpoint whose continued pre-training the demo asks about.

It is briefly pre-trained on text like the sweep's, none of which is in the sweep's corpus, with a size
that the sweep does not train and a learning rate that falls to zero, and saved in Hugging Face format.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from demo.corpus import DOMAINS

SEQUENCE_LENGTH = 128
BATCH_SIZE = 4
TOKENS = 450_000
SHARES = {"general": 0.82, "math": 0.09, "code": 0.09}
"""Of the tokens, by domain: as the sweep weights them."""
LEARNING_RATE = 2e-3
WARMUP_TOKENS = 20_000
COOLDOWN_SHARE = 0.3
"""Of the tokens, over which the learning rate falls to zero."""
SEED = 1

Report = Callable[[int, float], None]
"""Called with the tokens seen and the latest training loss."""


def pretrain(tokenizer_folder: Path, folder: Path, report: Report) -> None:
    """Train for TOKENS tokens and save model and tokenizer to `folder`. Deterministic."""
    torch.set_num_threads(1)  # the sweep's first pods run at the same time
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    texts = {name: domain.split()[1] for name, domain in DOMAINS.items()}
    sequences = _mixed(tokenizer, texts)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(_shape(len(tokenizer)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
    )
    steps = torch.split(torch.randperm(len(sequences)), BATCH_SIZE)
    for step, rows in enumerate(steps):
        loss = _step(model, optimizer, sequences[rows], _schedule((step + 1) / len(steps)))
        report((step + 1) * BATCH_SIZE * SEQUENCE_LENGTH, loss)
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


def _mixed(tokenizer: PreTrainedTokenizerFast, texts: Mapping[str, Sequence[str]]) -> torch.Tensor:
    """[sequences, S + 1] of all domains, as many of each as its share. Raises ValueError for too little text."""
    parts = []
    for name, share in SHARES.items():
        found = _sequences(tokenizer, texts[name])
        wanted = int(TOKENS * share / SEQUENCE_LENGTH)
        if len(found) < wanted:
            raise ValueError(f"{name} has {len(found)} sequences; the checkpoint needs {wanted}")
        parts.append(found[:wanted])
    return torch.cat(parts)


def _schedule(passed: float) -> float:
    """Factor of the learning rate after a share of all tokens: warm-up, constant, and down to zero."""
    return min(1.0, passed * TOKENS / WARMUP_TOKENS, (1.0 - passed) / COOLDOWN_SHARE)


def _sequences(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> torch.Tensor:
    """[sequences, S + 1] consecutive tokens of all texts."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    end = tokenizer.eos_token_id
    tokens = [token for e in backend.encode_batch(list(texts)) for token in (*e.ids, end)]
    whole = len(tokens) // (SEQUENCE_LENGTH + 1) * (SEQUENCE_LENGTH + 1)
    return torch.tensor(tokens[:whole]).view(-1, SEQUENCE_LENGTH + 1)


def _step(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, rows: torch.Tensor, factor: float
) -> float:
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * factor
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())
