"""Compares a checkpoint's tokenizer with the sweep's, and computes loss per byte where they differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoloss_trainer.evaluation import Check, Loss, ratio_loss, run_losses
from isoloss_trainer.held_out import MAX_HELD_OUT_BYTES, unpack_texts, validation_texts
from isoloss_trainer.model import LanguageModel
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.tokenization import TextTokenizer
from isoloss_trainer.world import World

COMPARED_DOCUMENTS = 200


def validation_documents(data: PreparedData, domain: str) -> list[str]:
    """The held-out documents of a domain, in evaluation order."""
    content = data.store.read(validation_texts(domain), max_bytes=MAX_HELD_OUT_BYTES)
    return unpack_texts(content)


def is_same_tokenizer(tokenizer: TextTokenizer, data: PreparedData, domains: list[str]) -> bool:
    """Whether it turns text into the sweep's tokens: by its digest, or else by its tokens for held-out
    documents (the files of one tokenizer differ between library versions)."""
    if tokenizer.digest == data.manifest.tokenizer_digest:
        return True
    return all(_encodes_alike(tokenizer, data, domain) for domain in domains)


def _encodes_alike(tokenizer: TextTokenizer, data: PreparedData, domain: str) -> bool:
    texts = validation_documents(data, domain)[:COMPARED_DOCUMENTS]
    ours = data.validation_stream(domain)
    start = 0
    for tokens in tokenizer.encode(texts):
        if not np.array_equal(tokens, ours[start : start + len(tokens)]):
            return False
        start += len(tokens) + 1
        if start > len(ours) or ours[start - 1] != data.manifest.end_token:
            return False
    return True


def converted_loss(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    data: PreparedData,
    domain: str,
    documents: NDArray[np.int64],
    world: World,
    micro_batch: int,
    check: Check = lambda: None,
) -> Loss:
    """Loss in nats per token *of the sweep's tokenizer*, through nats per byte of a domain.

    Reads the whole of every document that the sweep's sequences touch; `documents` numbers these.
    """
    known_texts = validation_documents(data, domain)
    texts = [known_texts[number] for number in np.unique(documents).tolist()]
    length = data.manifest.sequence_length
    windows, owners = _windows(tokenizer, texts, length)
    losses = run_losses(model.token_losses, windows, world, micro_batch, check)[: len(owners)]
    sums = np.bincount(owners, losses, minlength=len(texts)).astype(np.float64)
    sizes = np.array([len(text.encode()) for text in texts], dtype=np.float64)
    per_byte = ratio_loss(sums, sizes)
    known = data.domain(domain)
    factor = known.validation_bytes / known.validation_tokens
    error = per_byte.standard_error
    return Loss(per_byte.value * factor, error * factor if error is not None else None)


def _windows(
    tokenizer: TextTokenizer, texts: list[str], length: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Sequences [n, length + 1] of the documents in the tokenizer's own tokens, and the document of
    every target; the last sequence is filled up with end tokens that have no owner."""
    end = np.uint32(tokenizer.end_token)
    encoded = [np.append(tokens, end) for tokens in tokenizer.encode(texts)]
    owners = np.repeat(np.arange(len(texts)), [len(tokens) for tokens in encoded])
    # An end token before the first document, so that every token has something to be predicted from.
    stream = np.concatenate([np.array([end], np.uint32), *encoded])
    count = -(-len(owners) // length)
    stream = np.append(stream, np.full(count * length + 1 - len(stream), end, np.uint32))
    windows = np.stack([stream[i * length : (i + 1) * length + 1] for i in range(count)])
    return windows, owners
