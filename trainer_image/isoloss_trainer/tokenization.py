"""Loads a tokenizer from a Hugging Face directory, with a digest of its behaviour by which equal
tokenizers of two checkpoints are recognised."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from isoloss_contract.records import content_key
from isoloss_contract.store import BadRecord, NotFound, Store
from isoloss_trainer.hub import hub_snapshot, is_hub_name
from isoloss_trainer.termination import BadData

MAX_TOKENIZER_BYTES = 256 * 2**20
FILES = ("*token*.json", "generation_config.json", "config.json")
_BEHAVIOUR = ("model", "normalizer", "pre_tokenizer", "added_tokens")
"""The parts of tokenizer.json that determine how text becomes tokens."""


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that adds no special tokens; `end_token` marks the end of a document."""

    tokenizer: Tokenizer
    end_token: int
    vocabulary_size: int
    """Largest token id + 1."""
    digest: str

    def encode(self, texts: list[str]) -> list[NDArray[np.uint32]]:
        """Tokens of each text, without the end token. Uses all cores."""
        batch = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.uint32) for encoding in batch]


def load_tokenizer(uri: str) -> TextTokenizer:
    """Load `uri`/tokenizer.json. Raises BadData(TokenizerNotLoadable or NotOnHub), StoreUnavailable."""
    folder = f"file://{hub_snapshot(uri, FILES)}" if is_hub_name(uri) else uri
    directory = Store(folder, follow_links=True)  # a snapshot of the hub consists of links
    try:
        content = directory.read("tokenizer.json", max_bytes=MAX_TOKENIZER_BYTES)
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
    # Text that looks like a special token stays text: a document must not contain its own end.
    tokenizer.encode_special_tokens = True
    end_token = _end_token(directory, tokenizer)
    behaviour = {part: description.get(part) for part in _BEHAVIOUR}
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    digest = content_key({"behaviour": behaviour, "end_token": end_token})
    return TextTokenizer(tokenizer, end_token, size, digest)


def _end_token(directory: Store, tokenizer: Tokenizer) -> int:
    """The end-of-document token as the directory's own files name it."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read_json(directory, name).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (number := tokenizer.token_to_id(text)) is not None:
            return int(number)
    for name in ("generation_config.json", "config.json"):
        number = _read_json(directory, name).get("eos_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and tokenizer.id_to_token(number) is not None:
            return number
    for text in ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>"):
        if (number := tokenizer.token_to_id(text)) is not None:
            return int(number)
    raise _bad(f"{directory.uri}: no end-of-text token; set eos_token in tokenizer_config.json")


def _read_json(directory: Store, name: str) -> dict[str, Any]:
    try:
        value = json.loads(directory.read(name))
    except (NotFound, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _bad(message: str) -> BadData:
    return BadData("TokenizerNotLoadable", message, "tokenizer")
