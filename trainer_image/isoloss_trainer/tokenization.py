"""Loads a tokenizer from a Hugging Face directory, with a digest of its behaviour by which equal
tokenizers of two checkpoints are recognised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from isoloss_contract.records import content_key
from isoloss_contract.store import BadRecord, NotFound, Store
from isoloss_trainer.hub import directory
from isoloss_trainer.termination import BadData

MAX_TOKENIZER_BYTES = 256 * 2**20
FILES = ("*token*.json", "generation_config.json", "config.json")
TEXTS_AT_ONCE = 256
"""The library keeps a hundred bytes of every token of a batch."""
_BEHAVIOUR = ("model", "normalizer", "pre_tokenizer", "added_tokens")
"""The parts of tokenizer.json that determine how text becomes tokens."""


@dataclass(frozen=True)
class MeasuredTokens:
    """A document's tokens with the end token behind them, and how much of the text each stands for."""

    tokens: NDArray[np.uint32]
    lengths: NDArray[np.uint32]
    """UTF-8 bytes; the end of the document counts as one. Of the tokens that make up one character,
    the first has all of its bytes."""


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that adds no special tokens; `end_token` marks the end of a document."""

    tokenizer: Tokenizer
    end_token: int
    vocabulary_size: int
    """Largest token id + 1."""
    digest: str
    first_token: int | None = None
    """The token that the tokenizer's own files put before a text, as Gemma's do; None: none."""

    def encode(self, texts: list[str]) -> list[NDArray[np.uint32]]:
        """Tokens of each text, without the end token. Uses all cores."""
        batch = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.uint32) for encoding in batch]

    def encode_closed(self, texts: list[str]) -> list[MeasuredTokens]:
        """Tokens of each text with the end token behind them, and the length of each."""
        parts = (texts[i : i + TEXTS_AT_ONCE] for i in range(0, len(texts), TEXTS_AT_ONCE))
        return [found for part in parts for found in self._encode_closed(part)]

    def _encode_closed(self, texts: list[str]) -> Iterator[MeasuredTokens]:
        batch = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        for text, encoding in zip(texts, batch, strict=True):
            yield MeasuredTokens(
                np.array([*encoding.ids, self.end_token], dtype=np.uint32),
                _lengths(text, [end for _start, end in encoding.offsets]),
            )


def load_tokenizer(uri: str) -> TextTokenizer:
    """Load `uri`/tokenizer.json. Raises BadData(TokenizerNotLoadable or NotOnHub), StoreUnavailable."""
    folder = directory(uri, FILES)
    try:
        content = folder.read("tokenizer.json", max_bytes=MAX_TOKENIZER_BYTES)
    except NotFound as error:
        raise _bad(f"{uri}: no tokenizer.json") from error
    except BadRecord as error:
        raise _bad(str(error)) from error
    try:
        tokenizer = Tokenizer.from_buffer(content)
        description = json.loads(content)
    except Exception as error:
        # The Rust library raises plain Exception for unreadable content.
        raise _bad(f"{uri}/tokenizer.json: {str(error)[:300]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Text that looks like a special token stays text: a document must not contain its own end. Not every tokenizer
    # heeds it: in Unigram and WordLevel vocabularies special tokens are words like others (units.py skips such text).
    tokenizer.encode_special_tokens = True
    end_token = _end_token(folder, tokenizer)
    first_token = _first_token(folder, tokenizer)
    # It could only add special tokens, or take white space out of the offsets.
    tokenizer.post_processor = None
    behaviour = {part: description.get(part) for part in _BEHAVIOUR}
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    digest = content_key({"behaviour": behaviour, "end_token": end_token})
    return TextTokenizer(tokenizer, end_token, size, digest, first_token)


def _end_token(folder: Store, tokenizer: Tokenizer) -> int:
    """The end-of-document token as the directory's own files name it."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read_json(folder, name).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (number := tokenizer.token_to_id(text)) is not None:
            return int(number)
    for name in ("generation_config.json", "config.json"):
        number = _read_json(folder, name).get("eos_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and tokenizer.id_to_token(number) is not None:
            return number
    for text in ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>"):
        if (number := tokenizer.token_to_id(text)) is not None:
            return int(number)
    raise _bad(f"{folder.uri}: no end-of-text token; set eos_token in tokenizer_config.json")


def _first_token(folder: Store, tokenizer: Tokenizer) -> int | None:
    """What the tokenizer puts before a text, or what its configuration says that a library should."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    added = tokenizer.encode("a", add_special_tokens=True).ids
    if len(added) > len(bare) and added[0] != bare[0]:
        return int(added[0])
    config = _read_json(folder, "tokenizer_config.json")
    token = config.get("bos_token") if config.get("add_bos_token") else None
    text = token.get("content") if isinstance(token, dict) else token
    number = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return None if number is None else int(number)


def _lengths(text: str, ends: list[int]) -> NDArray[np.uint32]:
    """MeasuredTokens.lengths of tokens that end at the characters `ends`, and of the end token, which
    also takes what no token stands for at the end of the text."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = 1 + sum((points >= limit).astype(np.int64) for limit in (0x80, 0x800, 0x10000))
    bytes_before = np.concatenate([[0], np.cumsum(widths)])
    # A token may end before the one in front of it: normalizers reorder and drop characters.
    reached = np.maximum.accumulate(np.array([0, *ends, len(text)], dtype=np.int64))
    lengths = np.diff(bytes_before[reached])
    lengths[-1] += 1
    return lengths.astype(np.uint32)


def _read_json(folder: Store, name: str) -> dict[str, Any]:
    try:
        value = json.loads(folder.read(name))
    except (NotFound, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _bad(message: str) -> BadData:
    return BadData("TokenizerNotLoadable", message, "tokenizer")
