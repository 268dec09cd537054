"""Tokenises the corpus once: training shards and held-out documents per domain, manifest last.

Work is cut into units of input files; a finished unit leaves a record, so an interrupted
preparation goes on where it stopped. Held-out documents are chosen by a hash of their own text:
neither the order of files nor any other domain has a say, and equal documents fall on one side.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from isoloss_contract import layout
from isoloss_contract.records import (
    DataManifest,
    DomainData,
    DomainSource,
    PrepareConfig,
    PrepareTask,
    Record,
    Shard,
    content_key,
)
from isoloss_contract.store import NotFound, Store
from isoloss_trainer.corpus import CorpusFile, find_files, read_documents
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.near_duplicates import BANDS, count_twins, sketch
from isoloss_trainer.termination import BadData
from isoloss_trainer.tokenization import TextTokenizer, load_tokenizer

UNIT_BYTES = 256 * 2**20
SHARD_TOKENS = 64 * 2**20
BATCH_BYTES = 4 * 2**20
MAX_HELD_OUT_BYTES = 4 * 2**30


class PreparedUnit(Record):
    """What one unit of input files became; internal to prepare, gone once the manifest is there."""

    shards: tuple[Shard, ...]
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    bytes: int = Field(ge=0)
    empty_documents: int = Field(ge=0)
    held_out: int = Field(ge=0)


@dataclass(frozen=True)
class Unit:
    """Consecutive input files of a domain that are worked in one go."""

    domain: DomainSource
    name: str
    files: tuple[CorpusFile, ...]


@dataclass
class Preparation:
    """What every step of a preparation needs at hand."""

    config: PrepareConfig
    store: Store
    tokenizer: TextTokenizer
    interruption: Interruption
    log: Log
    started: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> str:
        """The prepared data's folder in the store."""
        return layout.data_folder(self.config.key)


def prepare(task: PrepareTask, _scratch: Path, interruption: Interruption, log: Log) -> str:
    """Prepare the corpus unless that is done; returns a sentence for the termination message."""
    store = Store(task.store_uri)
    try:
        manifest = store.read_record(layout.data_manifest(task.config.key), DataManifest)
        return f"already prepared: {_summary(manifest)}"
    except NotFound:
        pass
    tokenizer = load_tokenizer(task.config.tokenizer)
    run = Preparation(task.config, store, tokenizer, interruption, log)
    domains = tuple(_prepare_domain(run, source) for source in task.config.domains)
    manifest = _manifest(run, domains)
    store.write_record(layout.data_manifest(task.config.key), manifest)
    store.remove(f"{run.folder}/units")
    return _summary(manifest)


def _manifest(run: Preparation, domains: tuple[DomainData, ...]) -> DataManifest:
    hashes = [[s.sha256 for s in (*domain.training, domain.validation)] for domain in domains]
    names = [domain.name for domain in domains]
    parts = [run.tokenizer.digest, run.config.sequence_length, names, hashes]
    return DataManifest(
        prepare_key=run.config.key,
        digest=content_key(parts),
        tokenizer_digest=run.tokenizer.digest,
        vocabulary_size=run.tokenizer.vocabulary_size,
        end_token=run.tokenizer.end_token,
        sequence_length=run.config.sequence_length,
        domains=domains,
    )


def _summary(manifest: DataManifest) -> str:
    parts = [
        f"{d.name} {d.training_tokens} tokens in {d.training_documents} documents, "
        f"held out {d.validation_tokens} in {d.validation_documents}"
        for d in manifest.domains
    ]
    return "; ".join(parts)


# -------------------------------------------------------------------------------- one domain


def _prepare_domain(run: Preparation, source: DomainSource) -> DomainData:
    filesystem, files = find_files(source)
    units = _units(source, files)
    total = sum(file.bytes for file in files)
    done, prepared = 0, []
    for unit in units:
        prepared.append(_prepare_unit(run, filesystem, unit))
        done += sum(file.bytes for file in unit.files)
        facts = {"domain": source.name, "tokens": sum(p.tokens for p in prepared)}
        run.log.progress("prepare", done, total, **facts)
    held_out = _held_out(run, units)
    encoded = run.tokenizer.encode(held_out)
    validation, validation_bytes = _write_validation(run, source.name, held_out, encoded)
    sketches = np.array([sketch(tokens) for tokens in encoded], np.uint64).reshape(-1, BANDS)
    twins = _near_duplicates(run, units, sketches)
    domain = DomainData(
        name=source.name,
        training=tuple(shard for part in prepared for shard in part.shards),
        training_documents=sum(part.documents for part in prepared),
        training_tokens=sum(part.tokens for part in prepared),
        training_bytes=sum(part.bytes for part in prepared),
        validation=validation,
        validation_documents=len(held_out),
        validation_tokens=validation.tokens,
        validation_bytes=validation_bytes,
        near_duplicates=twins,
    )
    _require_enough(run.config, domain)
    empty = sum(part.empty_documents for part in prepared)
    facts = domain.model_dump(exclude={"training", "validation"})
    run.log.event("domain", **facts, files=len(files), empty_documents=empty)
    return domain


def _require_enough(config: PrepareConfig, domain: DomainData) -> None:
    """A domain must fill a sequence on each side, and have two held-out documents for an error bar."""
    wanted = config.sequence_length + 1
    usable = sum((shard.tokens - 1) // config.sequence_length for shard in domain.training)
    if usable < 1:
        raise BadData(
            "DomainTooSmall",
            f"domain {domain.name}: {domain.training_tokens} training tokens do not fill one "
            f"sequence of {config.sequence_length}",
            f"domains.{domain.name}",
        )
    if domain.validation_tokens < wanted or domain.validation_documents < 2:
        raise BadData(
            "DomainTooSmall",
            f"domain {domain.name}: {domain.validation_documents} held-out documents with "
            f"{domain.validation_tokens} tokens (of {domain.training_documents} documents kept for "
            f"training) are too few for validation: at least 2 documents and {wanted} tokens are "
            "needed; raise validation documents per thousand or give the domain more documents",
            f"domains.{domain.name}",
        )


def _units(source: DomainSource, files: list[CorpusFile]) -> list[Unit]:
    """Group consecutive files up to UNIT_BYTES; a unit's name follows its files' identities."""
    groups: list[list[CorpusFile]] = [[]]
    for file in files:
        if groups[-1] and sum(f.bytes for f in groups[-1]) + file.bytes > UNIT_BYTES:
            groups.append([])
        groups[-1].append(file)
    return [
        Unit(source, f"{number:05d}-{content_key([f.identity for f in group])[:12]}", tuple(group))
        for number, group in enumerate(groups)
    ]


# ---------------------------------------------------------------------------------- one unit


def _unit_record(run: Preparation, unit: Unit) -> str:
    return f"{run.folder}/units/{unit.domain.name}/{unit.name}.json"


def _unit_held_out(run: Preparation, unit: Unit) -> str:
    return f"{run.folder}/units/{unit.domain.name}/{unit.name}.held-out.jsonl.gz"


def _unit_sketches(run: Preparation, unit: Unit) -> str:
    return f"{run.folder}/units/{unit.domain.name}/{unit.name}.sketches.bin"


def _prepare_unit(
    run: Preparation, filesystem: fsspec.AbstractFileSystem, unit: Unit
) -> PreparedUnit:
    """Tokenise the unit's files, or return what an earlier attempt left."""
    try:
        return run.store.read_record(_unit_record(run, unit), PreparedUnit)
    except NotFound:
        pass
    shards = ShardWriter(run.store, run.folder, f"{unit.domain.name}/train-{unit.name}")
    held_out: list[str] = []
    sketches: list[NDArray[np.uint64]] = []
    documents = size = empty = 0
    for batch in _batches(filesystem, unit):
        run.interruption.check()
        kept = [text for text in batch if text]
        empty += len(batch) - len(kept)
        chosen = [
            _is_held_out(text, run.config.validation_documents_per_thousand) for text in kept
        ]
        training = [text for text, out in zip(kept, chosen, strict=True) if not out]
        held_out.extend(text for text, out in zip(kept, chosen, strict=True) if out)
        for tokens in run.tokenizer.encode(training):
            shards.add(_closed(tokens, run.tokenizer.end_token))
            sketches.append(sketch(tokens))
        documents += len(training)
        size += sum(len(text.encode()) for text in training)
        run.log.progress("tokenise", size, 0, domain=unit.domain.name, tokens=shards.tokens)
    written = shards.close()
    run.store.write(_unit_held_out(run, unit), _pack_texts(held_out))
    packed = np.concatenate([*sketches, np.empty(0, np.uint64)]).astype("<u8").tobytes()
    run.store.write(_unit_sketches(run, unit), packed)
    prepared = PreparedUnit(
        shards=written,
        documents=documents,
        tokens=shards.tokens,
        bytes=size,
        empty_documents=empty,
        held_out=len(held_out),
    )
    run.store.write_record(_unit_record(run, unit), prepared)
    return prepared


def _batches(filesystem: fsspec.AbstractFileSystem, unit: Unit) -> Iterator[list[str]]:
    """Documents in batches of about BATCH_BYTES characters."""
    batch: list[str] = []
    size = 0
    for file in unit.files:
        for text in read_documents(filesystem, file, unit.domain.text_field):
            batch.append(text)
            size += len(text)
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    yield batch


def _document_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _is_held_out(text: str, per_thousand: int) -> bool:
    return int.from_bytes(_document_hash(text)[:8], "big") % 1000 < per_thousand


def _closed(tokens: NDArray[np.uint32], end_token: int) -> NDArray[np.uint32]:
    return np.append(tokens, np.uint32(end_token))


class ShardWriter:
    """Collects documents into shards of about SHARD_TOKENS and writes each when it is full."""

    def __init__(self, store: Store, folder: str, name: str) -> None:
        self._store, self._folder, self._name = store, folder, name
        self._pending: list[NDArray[np.uint32]] = []
        self._pending_tokens = 0
        self._written: list[Shard] = []
        self.tokens = 0
        """Tokens added so far."""

    def add(self, document: NDArray[np.uint32]) -> None:
        """Take in one document; a full shard is written."""
        self._pending.append(document)
        self._pending_tokens += len(document)
        self.tokens += len(document)
        if self._pending_tokens >= SHARD_TOKENS:
            self._flush()

    def close(self) -> tuple[Shard, ...]:
        """Write what is left; the shards in order."""
        if self._pending:
            self._flush()
        return tuple(self._written)

    def _flush(self) -> None:
        content = np.concatenate(self._pending).astype("<u4").tobytes()
        path = f"{self._name}-{len(self._written):03d}.bin"
        self._store.write(f"{self._folder}/{path}", content)
        digest = hashlib.sha256(content).hexdigest()
        self._written.append(Shard(path=path, tokens=len(content) // 4, sha256=digest))
        self._pending, self._pending_tokens = [], 0


# -------------------------------------------------------------------------------- validation


def _pack_texts(texts: list[str]) -> bytes:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    return gzip.compress(lines.encode(), compresslevel=3, mtime=0)


def unpack_texts(content: bytes) -> list[str]:
    """Texts of a file that prepare wrote."""
    return [json.loads(line)["text"] for line in gzip.decompress(content).splitlines()]


def validation_texts(domain: str) -> str:
    """Where the held-out documents' texts lie, relative to the data folder, in evaluation order."""
    return f"{domain}/validation.jsonl.gz"


def _held_out(run: Preparation, units: list[Unit]) -> list[str]:
    """Held-out documents by their hash: a fixed, mixed order that no file order can bias."""
    texts: set[str] = set()
    size = 0
    for unit in units:
        found = unpack_texts(
            run.store.read(_unit_held_out(run, unit), max_bytes=MAX_HELD_OUT_BYTES)
        )
        size += sum(map(len, found))
        if size > MAX_HELD_OUT_BYTES:
            raise BadData(
                "ValidationTooLarge",
                f"domain {unit.domain.name}: more than {MAX_HELD_OUT_BYTES >> 30} GiB would be held "
                "out; lower validation documents per thousand",
                "validation_documents_per_thousand",
            )
        texts.update(found)
    return sorted(texts, key=_document_hash)


def _write_validation(
    run: Preparation, domain: str, texts: list[str], encoded: list[NDArray[np.uint32]]
) -> tuple[Shard, int]:
    """Write the validation tokens and texts of a domain; the shard and the UTF-8 bytes behind it."""
    documents = [_closed(tokens, run.tokenizer.end_token) for tokens in encoded]
    tokens = np.concatenate([*documents, np.empty(0, np.uint32)]).astype("<u4")
    content = tokens.tobytes()
    path = f"{domain}/validation.bin"
    run.store.write(f"{run.folder}/{path}", content)
    run.store.write(f"{run.folder}/{validation_texts(domain)}", _pack_texts(texts))
    shard = Shard(path=path, tokens=len(tokens), sha256=hashlib.sha256(content).hexdigest())
    return shard, sum(len(text.encode()) for text in texts)


def _near_duplicates(run: Preparation, units: list[Unit], held_out: NDArray[np.uint64]) -> int:
    """How many held-out documents have a near-identical twin that is trained on."""
    training = []
    for unit in units:
        content = run.store.read(_unit_sketches(run, unit), max_bytes=MAX_HELD_OUT_BYTES)
        training.append(np.frombuffer(content, dtype="<u8"))
    return count_twins(held_out, training)
