"""Compares a checkpoint's tokenizer with the sweep's, and has it read the text of the sweep's sequences
in its own tokens if they differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoloss_trainer.evaluation import DomainSequences, DomainText, Sequences
from isoloss_trainer.foreign_model import FIELD, OF_A_TOKENIZER
from isoloss_trainer.shards import (
    MAX_HELD_OUT_BYTES,
    PreparedData,
    unpack_texts,
    validation_texts,
)
from isoloss_trainer.termination import BadData
from isoloss_trainer.tokenization import (
    HOW_TO_CHECK,
    TextTokenizer,
    check_keeps_text,
    load_tokenizer,
)

COMPARED_DOCUMENTS = 200
LONGEST_SHARE = 2
"""A sequence whose text takes more than this many times its own tokens is read in parts."""
WIDTHS = 8
"""Sequences are padded to one of this many widths."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def validation_documents(data: PreparedData, domain: str) -> list[str]:
    """The held-out documents of a domain, in evaluation order."""
    content = data.store.read(validation_texts(domain), max_bytes=MAX_HELD_OUT_BYTES)
    return unpack_texts(content)


def own_tokenizer(folder: Path, uri: str) -> TextTokenizer | None:
    """The checkpoint's own; None if it has none and reads the sweep's tokens. Raises BadData(TokenizerNotLoadable)."""
    if (folder / "tokenizer.json").exists():
        return load_tokenizer(f"file://{folder.resolve()}")
    # The sweep's tokens would mean something else to it, and the loss nothing.
    if other := sorted({path.name for form in OF_A_TOKENIZER for path in folder.glob(form)}):
        message = (
            f"{uri}: has {other[0]}, but no tokenizer.json, the one form that is read: make it with "
            f"AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER) and {HOW_TO_CHECK}, or remove "
            f"{', '.join(other)[:200]} if the checkpoint reads the sweep's tokens"
        )
        raise BadData("TokenizerNotLoadable", message, FIELD)
    return None


def check_same_tokenizer(folder: Path, uri: str, data: PreparedData, domains: list[str]) -> None:
    """Raises BadData(TokenizerDiffers) if the checkpoint in `folder` reads other tokens than those of the corpus."""
    tokenizer = own_tokenizer(folder, uri)
    if tokenizer is not None and not is_same_tokenizer(tokenizer, data, domains):
        message = f"{uri}: its tokenizer differs from the corpus': its weights mean other tokens"
        raise BadData("TokenizerDiffers", message, FIELD)


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


Part = tuple[NDArray[np.uint32], Floats, Integers]
"""The token that the first target follows, and the targets; of each the share of its bytes that counts, and its document."""


def foreign_text(
    tokenizer: TextTokenizer, data: PreparedData, domain: str, ours: DomainSequences, longest: int
) -> DomainText:
    """The text of a domain's validation sequences in the tokens of another tokenizer.

    Each of the sweep's sequences becomes one, so that every token has the context that the proxies'
    tokens have; text that takes many more tokens, or more than the checkpoint takes at once, `longest`, is cut into several.
    Raises BadData if the corpus lacks the bytes of its tokens, or the tokenizer loses text.
    """
    texts = validation_documents(data, domain)
    ends = np.cumsum(data.validation_lengths(domain), dtype=np.int64)
    text_ends = np.cumsum([len(text.encode()) + 1 for text in texts], dtype=np.int64)
    if len(ends) == 0 or len(texts) == 0 or ends[-1] != text_ends[-1]:
        where = data.store.location(validation_texts(domain))
        raise BadData("ShardCorrupt", f"{where}: its texts are not those of the tokens")
    length = data.manifest.sequence_length
    # By where the texts end, not by end tokens: these may be in a text, too.
    last_tokens = np.searchsorted(ends, text_ends)
    targets = (ours.starts[:, None] + np.arange(1, length + 1)).ravel()
    numbers, sizes = np.unique(np.searchsorted(last_tokens, targets), return_counts=True)
    theirs = _ForeignText.of(tokenizer, texts, numbers)
    most = min(longest, LONGEST_SHARE * length)
    parts = [
        part
        for start in ours.starts.tolist()
        for part in theirs.between(int(ends[start]), int(ends[start + length]), most)
    ]
    lengths = np.array([len(shares) for _, shares, _ in parts])
    step = -(-lengths.max() // WIDTHS)
    widths = np.minimum(-(-lengths // step) * step, lengths.max())
    groups = (
        _padded([parts[number] for number in np.flatnonzero(widths == width)], width)
        for width in np.unique(widths).tolist()
    )
    return DomainText(tuple(groups), sizes.astype(np.float64))


def _padded(parts: list[Part], width: int) -> Sequences:
    """Of that width, with targets behind each part of which nothing counts."""
    tokens = np.zeros((len(parts), width + 1), np.uint32)
    shares, documents = np.zeros((len(parts), width)), np.zeros((len(parts), width), np.int64)
    for row, (own, share, document) in enumerate(parts):
        tokens[row, : len(own)] = own
        shares[row, : len(share)] = share
        documents[row, : len(document)] = document
    return Sequences(tokens, documents.ravel(), shares.ravel())


@dataclass(frozen=True)
class _ForeignText:
    """Some documents in the foreign tokenizer's tokens, one after the other."""

    tokens: NDArray[np.uint32]
    starts: Integers
    """Where each token begins in all validation text, in bytes and ends of documents."""
    ends: Integers
    documents: Integers
    """For each token, the index of its document among the chosen ones."""
    end_token: int

    @classmethod
    def of(cls, tokenizer: TextTokenizer, texts: list[str], numbers: Integers) -> _ForeignText:
        """The documents `numbers` of `texts`."""
        sizes = np.array([len(text.encode()) + 1 for text in texts], dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(sizes)])
        encoded = tokenizer.encode_closed([texts[number] for number in numbers.tolist()])
        check_keeps_text(encoded, "the checkpoint's tokenizer", FIELD)
        lengths = [part.lengths.astype(np.int64) for part in encoded]
        ends = np.concatenate(
            [
                before[number] + np.cumsum(sizes)
                for number, sizes in zip(numbers.tolist(), lengths, strict=True)
            ]
        )
        return cls(
            tokens=np.concatenate([part.tokens for part in encoded]),
            starts=ends - np.concatenate(lengths),
            ends=ends,
            documents=np.repeat(np.arange(len(encoded)), [len(sizes) for sizes in lengths]),
            end_token=tokenizer.end_token,
        )

    def between(self, start: int, end: int, most: int) -> list[Part]:
        """The tokens of the text from `start` to `end`, at most `most` at a time; the share of each is that inside."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.ends, end, side="right"))
        last += int(last < len(self.ends) and self.starts[last] < end)
        found = []
        for number in np.array_split(np.arange(first, last), max(1, -(-(last - first) // most))):
            inside = slice(int(number[0]), int(number[-1]) + 1)
            starts, ends = self.starts[inside], self.ends[inside]
            covered = np.minimum(ends, end) - np.maximum(starts, start)
            # Tokens without bytes complete the character of the one before them.
            shares = np.where(ends > starts, covered / np.maximum(ends - starts, 1), 1.0)
            tokens = np.append(self._before(inside.start), self.tokens[inside])
            found.append((tokens.astype(np.uint32), shares, self.documents[inside]))
        return found

    def _before(self, number: int) -> int:
        """What token `number` is predicted from: the token before it, at first in a document the end
        of another, whichever that is."""
        if number == 0 or self.documents[number - 1] != self.documents[number]:
            return self.end_token
        return int(self.tokens[number - 1])
