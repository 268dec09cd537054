"""A small byte-level BPE tokenizer, trained on the demo's own corpus."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1024
END = "<|end|>"
SAMPLE_BYTES = 1_500_000
"""Text of each domain that merges are learned from: with so few merges, more changes little."""


def train_tokenizer(
    domains: Sequence[Sequence[str]], folder: Path, vocabulary: int = VOCABULARY
) -> None:
    """Train on a sample of each domain and save to `folder` in Hugging Face format.

    Deterministic: merges are chosen by count, ties by order.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = [text for texts in domains for text in _sample(texts)]
    tokenizer.train_from_iterator(sample, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)  # type: ignore[no-untyped-call]
    wrapped.save_pretrained(folder)


def _sample(texts: Sequence[str]) -> list[str]:
    """Texts from the whole domain, SAMPLE_BYTES or slightly more in total."""
    stride = max(1, sum(map(len, texts)) // SAMPLE_BYTES)
    return list(texts[::stride])
