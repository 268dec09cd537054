"""Loads a tokenizer from a Hugging Face directory, with a digest of its behaviour by which equal
tokenizers of two checkpoints are recognised."""

import functools
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from isoloss_contract import json_text
from isoloss_contract.records import content_key
from isoloss_contract.store import BadRecord, NotFound, Patience, Store
from isoloss_trainer.hub import directory
from isoloss_trainer.shards import PATIENT
from isoloss_trainer.termination import BadData

MAX_TOKENIZER_BYTES = 256 * 2**20
FILES = ("*token*.json", "generation_config.json", "config.json")
OF_THE_MODEL = ("generation_config.json", "config.json")
TEXTS_AT_ONCE = 256
"""The library keeps a hundred bytes of every token of a batch."""
LOST_SHARE = 0.01
"""A tokenizer that loses a larger share of a text's bytes is not the text's: what it drops would cost nothing and count
as read."""
FEWEST_ENTRIES = 0.5
"""As a share of `vocab_size`: models have a few per cent more embeddings than their tokenizer has entries."""
_BEHAVIOUR = ("model", "normalizer", "pre_tokenizer", "added_tokens")
"""The parts of tokenizer.json that determine how text becomes tokens."""


@dataclass(frozen=True)
class MeasuredTokens:
    """A document's tokens with the end token behind them, and how much of the text each stands for."""

    tokens: NDArray[np.uint32]
    lengths: NDArray[np.uint32]
    """UTF-8 bytes; the end of the document counts as one. Of the tokens that make up one character,
    the first has all of its bytes."""
    bytes: int
    """UTF-8 bytes of the text."""
    lost_bytes: int
    """How many of them lie in no token's offsets or in unknown tokens, or are of characters that the normalizer makes
    others of."""
    lost_text: str
    """The first that is lost; empty if nothing is."""


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that adds no special tokens; `end_token` marks the end of a document."""

    tokenizer: Tokenizer
    end_token: int
    vocabulary_size: int
    """Largest token id + 1."""
    digest: str
    first_tokens: tuple[int, ...] = ()
    """What the tokenizer's own files put before a text: Gemma's one token, GLM's two."""
    unknown_token: int | None = None
    """What stands for all text that the vocabulary has no token for; None: such text has no token."""
    stripping: Mapping[int, str] = field(default_factory=dict)
    """Added tokens that take the white space around them, of any length, and their text."""
    loses: "Losing" = field(default_factory=lambda: Losing(None))

    def encode(self, texts: list[str]) -> list[NDArray[np.uint32]]:
        """Tokens of each text, without the end token. Uses all cores."""
        with _every_text_has_tokens():
            batch = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.uint32) for encoding in batch]

    def encode_closed(self, texts: list[str]) -> list[MeasuredTokens]:
        """Tokens of each text with the end token behind them, and the length of each."""
        parts = (texts[i : i + TEXTS_AT_ONCE] for i in range(0, len(texts), TEXTS_AT_ONCE))
        return [found for part in parts for found in self._encode_closed(part)]

    def _encode_closed(self, texts: list[str]) -> Iterator[MeasuredTokens]:
        with _every_text_has_tokens():
            batch = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        for text, encoding in zip(texts, batch, strict=True):
            widths = _byte_widths(text)
            known = [
                _own_text(text, offsets, self.stripping[token])
                if token in self.stripping
                else offsets
                for token, offsets in zip(encoding.ids, encoding.offsets, strict=True)
                if token != self.unknown_token
            ]
            is_lost = _is_lost(text, known)
            is_changed = self.loses.changed(text)
            if is_changed is not None and widths[is_changed].sum() > widths[is_lost].sum():
                is_lost = is_changed
            lost = np.flatnonzero(is_lost)
            yield MeasuredTokens(
                tokens=np.array([*encoding.ids, self.end_token], dtype=np.uint32),
                lengths=_lengths(widths, [end for _start, end in encoding.offsets]),
                bytes=int(widths.sum()),
                lost_bytes=int(widths[is_lost].sum()),
                lost_text=text[lost[0] : lost[0] + LOST_CHARACTERS] if len(lost) else "",
            )


@contextmanager
def _every_text_has_tokens() -> Iterator[None]:
    """Raises BadData(TokenizerLosesText) where the tokenizer has no token for a character, and none for unknown text."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:  # all that the Rust library raises
            raise
        raise BadData(
            "TokenizerLosesText",
            f"the tokenizer has no token for some of the text, and none for unknown text ({str(error)[:200]}). Use a tokenizer "
            f"made for this text; {HOW_TO_CHECK}",
            "tokenizer",
        ) from error


def _own_text(text: str, offsets: tuple[int, int], content: str) -> tuple[int, int]:
    """Where an added token itself is, of the characters that it takes."""
    start = text.find(content, *offsets)
    return offsets if start < 0 else (start, start + len(content))


def check_keeps_text(measured: Sequence[MeasuredTokens], tokenizer: str, field: str) -> None:
    """Raises BadData(TokenizerLosesText), which names the `tokenizer`, if more than LOST_SHARE of the bytes of these texts
    lie in none of its tokens or in unknown ones."""
    size = sum(each.bytes for each in measured)
    lost = sum(each.lost_bytes for each in measured)
    if lost <= LOST_SHARE * size:
        return
    first = next(each.lost_text for each in measured if each.lost_text)
    raise BadData(
        "TokenizerLosesText",
        f"{tokenizer}: {lost / size:.1%} of the bytes of the held-out text are in none of its tokens, in unknown ones, or made "
        f"equal to others (as by lowercasing), the first at {first!r}: a loss would count them as free. Use a tokenizer made for this text; "
        f"{HOW_TO_CHECK}",
        field,
    )


HOW_TO_CHECK = (
    "check one by len(tokenizer), which is close to vocab_size, and by tokenizer.decode(tokenizer.encode(TEXT)), which gives "
    "the text back"
)
LOST_CHARACTERS = 20
"""Of the first text that is lost, as a message shows it."""


def load_tokenizer(uri: str, patience: Patience = PATIENT) -> TextTokenizer:
    """Load `uri`/tokenizer.json. Raises BadData(TokenizerNotLoadable or NotOnHub), StoreUnavailable."""
    folder = directory(uri, FILES, patience)
    try:
        content = folder.read("tokenizer.json", max_bytes=MAX_TOKENIZER_BYTES)
    except NotFound as error:
        raise _bad(
            f"{uri}: no tokenizer.json: save_pretrained of a fast tokenizer writes it, or name another folder as tokenizer"
        ) from error
    except BadRecord as error:
        raise _bad(str(error)) from error
    try:
        tokenizer = Tokenizer.from_buffer(content)
        description = json_text.read_json(content)
    except Exception as error:
        # The Rust library raises plain Exception for unreadable content.
        raise _bad(f"{uri}/tokenizer.json: {str(error)[:300]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):  # other tokens each time, for training
        tokenizer.model.dropout = None
        description["model"]["dropout"] = None
    # Text that looks like a special token stays text: a document must not contain its own end. Not every tokenizer
    # heeds it: in Unigram and WordLevel vocabularies special tokens are words like others (units.py skips such text).
    tokenizer.encode_special_tokens = True
    unknown_token = _unknown_token(description, tokenizer)
    end_token = _end_token(folder, tokenizer, unknown_token)
    first_tokens = _first_tokens(folder, tokenizer)
    # It could only add special tokens, or take white space out of the offsets.
    tokenizer.post_processor = None
    behaviour = {part: description.get(part) for part in _BEHAVIOUR}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    _check_size(folder, len(vocabulary))
    _check_added(folder, tokenizer)
    _check_prefix(folder, description)
    digest = content_key({"behaviour": behaviour, "end_token": end_token})
    return TextTokenizer(
        tokenizer=tokenizer,
        end_token=end_token,
        vocabulary_size=max(vocabulary.values()) + 1,
        digest=digest,
        first_tokens=first_tokens,
        unknown_token=unknown_token,
        stripping={
            number: token.content
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.lstrip or token.rstrip
        },
        loses=Losing(tokenizer.normalizer if _keeps_characters(description) else None),
    )


def _keeps_characters(description: dict[str, Any]) -> bool:
    """Whether the normalizer makes characters of characters: one that writes bytes as characters loses nothing."""
    return '"ByteLevel"' not in json.dumps(description.get("normalizer"))


def _check_size(folder: Store, entries: int) -> None:
    """Compare the tokenizer with the model of its folder, if there is one. Raises BadData(TokenizerNotLoadable)."""
    config = read_json(folder, "config.json")
    text = config.get("text_config")
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    if isinstance(size, int) and entries < FEWEST_ENTRIES * size:
        raise _bad(
            f"{folder.uri}: tokenizer.json has {entries} entries, but vocab_size in config.json is {size}: it is not the "
            f"model's tokenizer. Write it again; {HOW_TO_CHECK}"
        )


def _check_added(folder: Store, tokenizer: Tokenizer) -> None:
    """Raises BadData(TokenizerNotLoadable) for words that other files add to tokenizer.json, or describe in another way, as
    transformers reads them; those of added_tokens.json, of older exports, where tokenizer_config.json lists none."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = {each.content: each for each in tokenizer.get_added_tokens_decoder().values()}
    described = read_json(folder, file := "tokenizer_config.json")
    listed = described.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        special = json.dumps([described, read_json(folder, "special_tokens_map.json")])
        words = [*read_json(folder, file := "added_tokens.json")]
        listed = {
            word: {"content": word, "special": json.dumps(word) in special} for word in words
        }
    for token in listed.values():
        if not isinstance(token, dict) or token.get("special"):
            continue
        word = token.get("content")
        differs = [
            name
            for name in ("lstrip", "rstrip", "single_word")
            if word in added and token.get(name, theirs := getattr(added[word], name)) != theirs
        ]
        if differs or word not in vocabulary:
            how = f"in another way ({differs[0]})" if differs else "as one token"
            raise _bad(
                f"{folder.uri}: {file} adds {word!r}, which tokenizer.json does not have so: transformers would read it {how}. "
                "Write both again: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )


def _check_prefix(folder: Store, description: dict[str, Any]) -> None:
    """Raises BadData(TokenizerNotLoadable) if the files differ in whether a text begins with a space: transformers 4 takes the
    configuration's word for it, and so do some classes of 5."""
    config = read_json(folder, "tokenizer_config.json")
    said, parts = config.get("add_prefix_space"), list(_parts(description))
    found = [each.get("add_prefix_space") for each in parts if each.get("type") == "ByteLevel"]
    if not found and "Llama" in str(config.get("tokenizer_class")):
        # Its class makes the text's beginning by the configuration alone.
        found = [any(map(_puts_space_before, parts))]
    for each in found:
        if isinstance(said, bool) and each is not said:
            raise _bad(
                f"{folder.uri}: add_prefix_space is {json.dumps(said)} in tokenizer_config.json and {json.dumps(each)} in "
                "tokenizer.json: the first word of each text would be other tokens. Correct the one that is wrong"
            )


def _parts(description: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The normalizers and pre-tokenizers, those of a sequence alone."""
    for kind in ("normalizer", "pre_tokenizer"):
        each = description.get(kind) or {}
        yield from (each, *each.get("normalizers", ()), *each.get("pretokenizers", ()))


def _puts_space_before(part: dict[str, Any]) -> bool:
    scheme = part.get("prepend_scheme", "first" if part.get("add_prefix_space") else "never")
    return part.get("type") == "Prepend" or (part.get("type") == "Metaspace" and scheme != "never")


def _unknown_token(description: dict[str, Any], tokenizer: Tokenizer) -> int | None:
    """Unigram models name it by number, others by its text."""
    model = description.get("model") or {}
    if isinstance(number := model.get("unk_id"), int):
        return number
    text = model.get("unk_token")
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _end_token(folder: Store, tokenizer: Tokenizer, unknown: int | None) -> int:
    """The end-of-document token as the directory's own files name it, else one with a usual name, or the only special token
    there is beside the `unknown` one. Raises BadData(TokenizerNotLoadable)."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(folder, name).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (number := tokenizer.token_to_id(text)) is not None:
            return int(number)
    for name in OF_THE_MODEL:
        number = read_json(folder, name).get("eos_token_id")
        number = number[0] if isinstance(number, list) and number else number
        # A number of a configuration's own default may be any piece of text.
        if isinstance(number, int) and number in tokenizer.get_added_tokens_decoder():
            return number
    for text in ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>"):
        if (number := tokenizer.token_to_id(text)) is not None:
            return int(number)
    special = [
        number
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and number != unknown
    ]
    if len(special) == 1:
        return int(special[0])
    raise _bad(f"{folder.uri}: no end-of-text token; set eos_token in tokenizer_config.json")


def _first_tokens(folder: Store, tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the tokenizer puts before a text, or what its configuration says that a library should."""
    for piece in range(tokenizer.get_vocab_size()):
        word = tokenizer.decode([piece])
        try:
            bare = tokenizer.encode(word, add_special_tokens=False).ids
        except Exception as error:
            if type(error) is not Exception:  # what the Rust library raises if it has no token
                raise
            continue
        if not bare:
            continue
        added = tokenizer.encode(word, add_special_tokens=True).ids
        places = range(1, len(added) - len(bare) + 1)
        count = next((n for n in places if added[n : n + len(bare)] == bare), 0)
        if count and added[0] != bare[0]:
            return tuple(map(int, added[:count]))
        break
    config = read_json(folder, "tokenizer_config.json")
    token = config.get("bos_token") if config.get("add_bos_token") else None
    text = token.get("content") if isinstance(token, dict) else token
    number = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return () if number is None else (int(number),)


def _code_points(text: str) -> NDArray[np.uint32]:
    """Of each character. An array of characters would take NUL for none."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _byte_widths(text: str) -> NDArray[np.int64]:
    """UTF-8 bytes of each character."""
    points = _code_points(text)
    wider = sum((points >= limit).astype(np.int64) for limit in (0x80, 0x800, 0x10000))
    return np.asarray(1 + wider, dtype=np.int64)


def _is_lost(text: str, offsets: list[tuple[int, int]]) -> NDArray[np.bool_]:
    """For each character of a text, whether it lies in none of `offsets`."""
    depth = np.zeros(len(text) + 1, dtype=np.int64)
    if offsets:
        starts, ends = np.array(offsets, dtype=np.int64).T
        np.add.at(depth, starts, 1)
        np.add.at(depth, ends, -1)
    is_outside: NDArray[np.bool_] = np.cumsum(depth)[:-1] == 0
    if not is_outside.any():
        return is_outside
    # A normalizer that composes characters gives the whole the place of the first.
    kinds, numbers = np.unique(_code_points(text), return_inverse=True)
    joins = np.array([_joins(chr(kind)) for kind in kinds])[numbers]
    places = np.arange(len(text))
    before = np.maximum.accumulate(np.where(joins, 0, places))
    return np.asarray(is_outside & (is_outside[before] | ~joins))


class Losing:
    """What the normalizer of a tokenizer makes equal, so that no token tells it apart: capitals and small letters, letters
    with and without accents, one space and several. Forms of one character, which NFKC unites, and kinds of white space
    may become equal."""

    def __init__(self, normalizer: Any) -> None:
        self._normalizer = normalizer
        self._forms: dict[str, str] = {}
        self._joins_spaces = normalizer is not None and self._form("  ") == self._form(" ")

    def changed(self, text: str) -> NDArray[np.bool_] | None:
        """For each character, whether it becomes what a more frequent one of this text becomes, or nothing; None: there
        is no normalizer."""
        if self._normalizer is None:
            return None
        groups: dict[str, Counter[str]] = defaultdict(Counter)
        for character, count in Counter(text).items():
            groups[self._form(character)][_canonical(character)] += count
        kept = {group.most_common(1)[0][0] for form, group in groups.items() if form}
        marked = np.array([_canonical(each) not in kept for each in text], dtype=np.bool_)
        for found in re.finditer("  +", text) if self._joins_spaces else ():
            marked[found.start() + 1 : found.end()] = True
        return marked

    def _form(self, part: str) -> str:
        """What becomes of a part of a text, between characters that nothing joins."""
        if part not in self._forms:
            whole = self._normalizer.normalize_str(f"|{part}|")
            inside = whole.partition("|")[2].rpartition("|")[0] if whole.count("|") > 1 else part
            self._forms[part] = _canonical(inside)
        return self._forms[part]


@functools.cache
def _canonical(text: str) -> str:
    """Without forms of one character that NFKC unites, and with a space for white space of any kind."""
    return re.sub(r"\s", " ", unicodedata.normalize("NFKC", text.replace("▁", " ")))


def _joins(character: str) -> bool:
    """Whether it may become one with the character before it: marks, and vowels and endings of Hangul."""
    return unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff"


def _lengths(widths: NDArray[np.int64], ends: list[int]) -> NDArray[np.uint32]:
    """MeasuredTokens.lengths of tokens that end at the characters `ends`, and of the end token, which
    also takes what no token stands for at the end of the text."""
    bytes_before = np.concatenate([[0], np.cumsum(widths)])
    # A token may end before the one in front of it: normalizers reorder and drop characters.
    reached = np.maximum.accumulate(np.array([0, *ends, len(widths)], dtype=np.int64))
    lengths = np.diff(bytes_before[reached])
    lengths[-1] += 1
    return lengths.astype(np.uint32)


def read_json(folder: Store, name: str) -> dict[str, Any]:
    """An object in a file of `folder`; empty if the file is absent or holds another value, and if one of the model's, which
    others refuse, is not JSON. Raises BadData for one of the tokenizer's that is not, and for a key twice; StoreUnavailable."""
    try:
        value = json_text.read_json(folder.read(name))
    except NotFound:
        return {}
    except json_text.RepeatedKey as error:
        raise _bad(f"{folder.location(name)}: {error}") from error
    except (ValueError, RecursionError) as error:
        if name in OF_THE_MODEL:
            return {}
        why = json_text.why_unread(error)
        raise _bad(f"{folder.location(name)}: no JSON, or not all of it: {why}") from error
    return value if isinstance(value, dict) else {}


def _bad(message: str) -> BadData:
    return BadData("TokenizerNotLoadable", message, "tokenizer")
