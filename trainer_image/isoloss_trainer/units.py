"""Tokenizes one unit of a corpus: some consecutive input files of a domain.

A finished unit leaves a record, so that an interrupted preparation continues after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import fsspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from isoloss_contract import layout
from isoloss_contract.records import DomainSource, HashedShard, PrepareConfig, Record, content_key
from isoloss_contract.store import NotFound, Store
from isoloss_trainer.corpus import BadDocument, CorpusFile, Document, read_documents
from isoloss_trainer.log import Log
from isoloss_trainer.near_duplicates import sketches
from isoloss_trainer.shards import (
    MAX_HELD_OUT_BYTES,
    pack_texts,
    sequence_hashes,
    unpack_texts,
    windows_path,
)
from isoloss_trainer.termination import BadData, Interruption
from isoloss_trainer.tokenization import TextTokenizer

UNIT_BYTES = 256 * 2**20
SHARD_TOKENS = 64 * 2**20
BATCH_BYTES = 4 * 2**20
BEGUN = ".begun"
"""An empty file from before a unit's first shard: whoever finishes the corpus knows whose shards to look for."""
RECORD = ".json"
HELD_OUT = ".held-out.jsonl.gz"
SKETCHES = ".sketches.bin"


BAD_SHARE = 0.01
"""A larger share of documents that cannot be read means that something is wrong with all of them."""
BAD_AT_ONCE = 1000
"""So many say so before a domain is read to its end."""


class BadDocuments(Record):
    """Documents that cannot be read, and why the first of them cannot."""

    count: int = Field(default=0, ge=0)
    code: str = ""
    message: str = ""
    field: str = ""

    @classmethod
    def of(cls, error: BadData) -> BadDocuments:
        """One, with the reason."""
        return cls(count=1, code=error.code, message=error.message, field=error.field)

    def __add__(self, other: BadDocuments) -> BadDocuments:
        first = self if self.count else other
        return first.model_copy(update={"count": self.count + other.count})

    def refuse_above_share(self, domain: DomainSource, documents: int) -> None:
        """Raises BadData if they are too many compared with `documents` that can be read."""
        total = self.count + documents
        if self.count > BAD_SHARE * total:
            message = (
                f"{self.message}; {self.count} of {total} documents of domain {domain.name} cannot be read: up to "
                f"{BAD_SHARE:.0%} are skipped"
            )
            raise BadData(self.code, message, self.field)


class PreparedUnit(Record):
    """What one unit of input files became; removed once the manifest is written."""

    shards: tuple[HashedShard, ...]
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    bytes: int = Field(ge=0)
    empty_documents: int = Field(ge=0)
    held_out: int = Field(ge=0)
    bad: BadDocuments


@dataclass(frozen=True)
class Unit:
    """Consecutive input files of a domain that are tokenized together."""

    domain: DomainSource
    filesystem: fsspec.AbstractFileSystem
    name: str
    files: tuple[CorpusFile, ...]


@dataclass(frozen=True)
class Preparation:
    """What every part of a preparation needs."""

    config: PrepareConfig
    store: Store
    tokenizer: TextTokenizer
    interruption: Interruption
    log: Log
    stamp: str = ""
    """DataManifest.sources_stamp of the files as they were listed."""

    @property
    def folder(self) -> str:
        """The prepared data's folder in the store."""
        return layout.data_folder(self.config.key)

    def unit_file(self, unit: Unit, ending: str) -> str:
        """Path of one of a unit's files."""
        return f"{units_folder(self.config.key)}/{unit.domain.name}/{unit.name}{ending}"


def units_folder(prepare_key: str) -> str:
    """Folder of what the units left; removed once the manifest is written."""
    return f"{layout.data_folder(prepare_key)}/units"


def shard_name(domain: str, unit: str) -> str:
    """Path of a unit's shards in the folder of the data, without their number and ending."""
    return f"{domain}/train-{unit}"


def find_units(
    source: DomainSource,
    filesystem: fsspec.AbstractFileSystem,
    files: list[CorpusFile],
    tokenizer_digest: str,
) -> list[Unit]:
    """Group consecutive files up to UNIT_BYTES; a unit's name depends on its files' identities and on the tokenizer,
    which may be replaced before an interrupted preparation goes on."""
    groups: list[list[CorpusFile]] = [[]]
    size = 0
    for file in files:
        if groups[-1] and size + file.bytes > UNIT_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return [
        Unit(
            domain=source,
            filesystem=filesystem,
            name=f"{number:05d}-{content_key([tokenizer_digest, *(file.identity for file in group)])[:12]}",
            files=tuple(group),
        )
        for number, group in enumerate(groups)
    ]


def prepare_unit(run: Preparation, unit: Unit) -> PreparedUnit:
    """Tokenize the unit's files, or return what an earlier attempt left."""
    record = run.unit_file(unit, RECORD)
    try:
        return run.store.read_record(record, PreparedUnit)
    except NotFound:
        run.store.write(run.unit_file(unit, BEGUN), b"")
        prepared = _UnitWriter(run, unit).write()
        run.store.write_record(record, prepared)
        return prepared


def read_held_out(run: Preparation, unit: Unit) -> list[str]:
    """The texts that a prepared unit held out."""
    path = run.unit_file(unit, HELD_OUT)
    return unpack_texts(run.store.read(path, max_bytes=MAX_HELD_OUT_BYTES))


def read_sketches(run: Preparation, unit: Unit) -> NDArray[np.uint64]:
    """near_duplicates.sketches of a prepared unit's training documents, flat."""
    content = run.store.read(run.unit_file(unit, SKETCHES), max_bytes=MAX_HELD_OUT_BYTES)
    return np.frombuffer(content, dtype="<u8")


def missing_units(run: Preparation, units: Sequence[Unit]) -> list[Unit]:
    """Those of one domain that no attempt and no pod has finished."""
    done = set(run.store.names(f"{units_folder(run.config.key)}/{units[0].domain.name}"))
    return [unit for unit in units if f"{unit.name}{RECORD}" not in done]


class _UnitWriter:
    """Counts and collects what one unit becomes."""

    def __init__(self, run: Preparation, unit: Unit) -> None:
        self._run, self._unit = run, unit
        name = shard_name(unit.domain.name, unit.name)
        self._shards = ShardWriter(run.store, run.folder, name, run.config.sequence_length)
        self._held_out: list[str] = []
        self._sketches: list[NDArray[np.uint64]] = []
        self._documents = self._bytes = self._empty = 0
        self._bad = BadDocuments()

    def write(self) -> PreparedUnit:
        """Tokenize all files; shards, held-out texts and sketches are written on return."""
        run, unit = self._run, self._unit
        for batch in _batches(unit):
            run.interruption.check()
            self._add(batch)
            domain, tokens = unit.domain.name, self._shards.tokens
            run.log.progress("tokenize", self._bytes, 0, domain=domain, tokens=tokens)
        shards = self._shards.close()
        run.store.write(run.unit_file(unit, HELD_OUT), pack_texts(self._held_out))
        sketches = np.concatenate([*self._sketches, np.empty(0, np.uint64)]).astype("<u8")
        run.store.write(run.unit_file(unit, SKETCHES), sketches.tobytes())
        return PreparedUnit(
            shards=shards,
            documents=self._documents,
            tokens=self._shards.tokens,
            bytes=self._bytes,
            empty_documents=self._empty,
            held_out=len(self._held_out),
            bad=self._bad,
        )

    def _skip(self, error: BadDocument) -> None:
        """Raises the error if nothing is skipped."""
        if self._run.config.bad_documents == "Refuse":
            raise error
        self._bad += BadDocuments.of(error)
        if self._bad.count >= BAD_AT_ONCE:
            read = self._documents + self._empty + len(self._held_out)
            self._bad.refuse_above_share(self._unit.domain, read)

    def _add(self, documents: list[tuple[CorpusFile, Document]]) -> None:
        per_thousand = self._run.config.validation_documents_per_thousand
        training = []
        for text, tokens in self._readable(documents):
            if is_held_out(text, per_thousand):
                self._held_out.append(text)
                continue
            training.append(tokens)
            self._shards.add(closed(tokens, self._run.tokenizer.end_token))
            self._bytes += len(text.encode())
        self._sketches.append(sketches(training).ravel())
        self._documents += len(training)

    def _readable(
        self, documents: list[tuple[CorpusFile, Document]]
    ) -> Iterator[tuple[str, NDArray[np.uint32]]]:
        """The texts with their tokens; what cannot be read is skipped, and so is what is empty."""
        texts = []
        for file, text in documents:
            if isinstance(text, BadDocument):
                self._skip(text)
            elif not text.strip():
                self._empty += 1
            else:
                texts.append((file, text))
        # Those that are held out too: only the tokens show whether a document could be told from two.
        encoded = self._run.tokenizer.encode([text for _file, text in texts])
        for (file, text), tokens in zip(texts, encoded, strict=True):
            if (tokens == self._run.tokenizer.end_token).any():
                self._skip(self._ends_early(file))
            else:
                yield text, tokens

    def _ends_early(self, file: CorpusFile) -> BadDocument:
        end = self._run.tokenizer.tokenizer.id_to_token(self._run.tokenizer.end_token)
        return BadDocument(
            "EndTokenInText",
            f"{file.path}: a document's text has {end!r}, which this tokenizer reads as the end of a document",
        )


def _batches(unit: Unit) -> Iterator[list[tuple[CorpusFile, Document]]]:
    """Documents, each with its file, in batches of about BATCH_BYTES characters."""
    batch: list[tuple[CorpusFile, Document]] = []
    size = 0
    for file in unit.files:
        for document in read_documents(unit.filesystem, file, unit.domain.text_field):
            batch.append((file, document))
            size += 1 if isinstance(document, BadDocument) else len(document)
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    yield batch


def document_hash(text: str) -> bytes:
    """SHA-256 of the text: it decides about holding out, and the order of held-out documents."""
    return hashlib.sha256(text.encode()).digest()


def is_held_out(text: str, per_thousand: int) -> bool:
    """Whether a document is kept for validation."""
    return int.from_bytes(document_hash(text)[:8], "big") % 1000 < per_thousand


def closed(tokens: NDArray[np.uint32], end_token: int) -> NDArray[np.uint32]:
    """A document's tokens with the end token behind them."""
    return np.append(tokens, np.uint32(end_token))


class ShardWriter:
    """Collects documents into shards of about SHARD_TOKENS, each written when it is full."""

    def __init__(self, store: Store, folder: str, name: str, length: int) -> None:
        self._store, self._folder, self._name, self._length = store, folder, name, length
        self._pending: list[NDArray[np.uint32]] = []
        self._pending_tokens = 0
        self._written: list[HashedShard] = []
        self.tokens = 0
        """Tokens added so far."""

    def add(self, document: NDArray[np.uint32]) -> None:
        """Add a document; writes the shard when it is full."""
        self._pending.append(document)
        self._pending_tokens += len(document)
        self.tokens += len(document)
        if self._pending_tokens >= SHARD_TOKENS:
            self._flush()

    def close(self) -> tuple[HashedShard, ...]:
        """Write the last shard; returns all of them in order."""
        if self._pending:
            self._flush()
        return tuple(self._written)

    def _flush(self) -> None:
        tokens = np.concatenate(self._pending).astype("<u4")
        path = f"{self._name}-{len(self._written):03d}.bin"
        hashes = sequence_hashes(tokens, self._length)
        self._store.write(f"{self._folder}/{path}", tokens.tobytes())
        self._store.write(f"{self._folder}/{windows_path(path)}", hashes)
        shard = HashedShard(
            path=path,
            tokens=len(tokens),
            sha256=hashlib.sha256(tokens.data).hexdigest(),
            windows_sha256=hashlib.sha256(hashes).hexdigest(),
        )
        self._written.append(shard)
        self._pending, self._pending_tokens = [], 0
