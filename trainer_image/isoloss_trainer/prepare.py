"""Tokenises the corpus once: training shards and held-out documents per domain, manifest last.

Work is split into units of input files, so that an interrupted preparation continues after the last
finished one. Held-out documents are chosen by a hash of their own text: neither the order of files
nor any other domain matters, and equal documents are all held out or all trained on.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoloss_contract import layout
from isoloss_contract.records import (
    DataManifest,
    DomainData,
    DomainSource,
    PrepareConfig,
    PrepareTask,
    Shard,
    content_key,
)
from isoloss_contract.store import NotFound, Store
from isoloss_trainer.corpus import CorpusFile, find_files
from isoloss_trainer.held_out import (
    MAX_HELD_OUT_BYTES,
    document_hash,
    pack_texts,
    validation_texts,
)
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.near_duplicates import BANDS, count_twins, sketch
from isoloss_trainer.termination import BadData
from isoloss_trainer.tokenization import load_tokenizer
from isoloss_trainer.units import (
    Preparation,
    PreparedUnit,
    Unit,
    closed,
    find_units,
    prepare_unit,
    read_held_out,
    read_sketches,
)


def prepare(task: PrepareTask, _scratch: Path, interruption: Interruption, log: Log) -> str:
    """Prepare the corpus unless that is done; returns a sentence for the termination message."""
    store = Store(task.store_uri)
    path = layout.data_manifest(task.config.key)
    try:
        return f"already prepared: {_summary(store.read_record(path, DataManifest))}"
    except NotFound:
        pass
    tokenizer = load_tokenizer(task.config.tokenizer)
    run = Preparation(task.config, store, tokenizer, interruption, log)
    domains = tuple(_prepare_domain(run, source) for source in task.config.domains)
    manifest = _manifest(run, domains)
    store.write_record(path, manifest)
    store.remove(run.units_folder)
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
        f"{d.name}: {d.training_tokens} tokens in {d.training_documents} documents, "
        f"{d.validation_tokens} held out in {d.validation_documents}"
        for d in manifest.domains
    ]
    return "; ".join(parts)


def _prepare_domain(run: Preparation, source: DomainSource) -> DomainData:
    filesystem, files = find_files(source)
    units = find_units(source, files)
    prepared = []
    for unit in units:
        prepared.append(prepare_unit(run, filesystem, unit))
        _log_progress(run, source, files, units[: len(prepared)], prepared)
    domain = _domain_data(run, source, units, prepared)
    _require_enough(run.config, domain)
    facts = domain.model_dump(exclude={"training", "validation"})
    empty = sum(part.empty_documents for part in prepared)
    run.log.event("domain", **facts, files=len(files), empty_documents=empty)
    return domain


def _log_progress(
    run: Preparation,
    source: DomainSource,
    files: list[CorpusFile],
    done: list[Unit],
    prepared: list[PreparedUnit],
) -> None:
    run.log.progress(
        "prepare",
        sum(file.bytes for unit in done for file in unit.files),
        sum(file.bytes for file in files),
        domain=source.name,
        tokens=sum(part.tokens for part in prepared),
    )


def _domain_data(
    run: Preparation, source: DomainSource, units: list[Unit], prepared: list[PreparedUnit]
) -> DomainData:
    """Write the domain's validation files and describe the whole domain."""
    held_out = _held_out(run, units)
    encoded = run.tokenizer.encode(held_out)
    validation = _write_validation(run, source.name, held_out, encoded)
    return DomainData(
        name=source.name,
        training=tuple(shard for part in prepared for shard in part.shards),
        training_documents=sum(part.documents for part in prepared),
        training_tokens=sum(part.tokens for part in prepared),
        training_bytes=sum(part.bytes for part in prepared),
        validation=validation,
        validation_documents=len(held_out),
        validation_tokens=validation.tokens,
        validation_bytes=sum(len(text.encode()) for text in held_out),
        near_duplicates=_near_duplicates(run, units, encoded),
    )


def _held_out(run: Preparation, units: list[Unit]) -> list[str]:
    """Held-out documents by their hash: a fixed, mixed order that does not depend on file order."""
    texts: set[str] = set()
    size = 0
    for unit in units:
        found = read_held_out(run, unit)
        size += sum(map(len, found))
        if size > MAX_HELD_OUT_BYTES:
            raise BadData(
                "ValidationTooLarge",
                f"domain {unit.domain.name}: more than {MAX_HELD_OUT_BYTES >> 30} GiB would be held "
                "out; lower validation documents per thousand",
                "validation_documents_per_thousand",
            )
        texts.update(found)
    return sorted(texts, key=document_hash)


def _write_validation(
    run: Preparation, domain: str, texts: list[str], encoded: list[NDArray[np.uint32]]
) -> Shard:
    """Write the validation tokens and texts of a domain."""
    documents = [closed(tokens, run.tokenizer.end_token) for tokens in encoded]
    tokens = np.concatenate([*documents, np.empty(0, np.uint32)]).astype("<u4")
    content = tokens.tobytes()
    path = f"{domain}/validation.bin"
    run.store.write(f"{run.folder}/{path}", content)
    run.store.write(f"{run.folder}/{validation_texts(domain)}", pack_texts(texts))
    return Shard(path=path, tokens=len(tokens), sha256=hashlib.sha256(content).hexdigest())


def _near_duplicates(
    run: Preparation, units: list[Unit], encoded: list[NDArray[np.uint32]]
) -> int:
    """Number of held-out documents with a near-identical one among the training documents."""
    held_out = np.array([sketch(tokens) for tokens in encoded], np.uint64).reshape(-1, BANDS)
    return count_twins(held_out, [read_sketches(run, unit) for unit in units])


def _require_enough(config: PrepareConfig, domain: DomainData) -> None:
    """A domain must fill a sequence on each side, and have two held-out documents for an error bar."""
    usable = sum((shard.tokens - 1) // config.sequence_length for shard in domain.training)
    if usable < 1:
        raise BadData(
            "DomainTooSmall",
            f"domain {domain.name}: {domain.training_tokens} training tokens do not fill one "
            f"sequence of {config.sequence_length}",
            f"domains.{domain.name}",
        )
    needed = config.sequence_length + 1
    if domain.validation_tokens < needed or domain.validation_documents < 2:
        raise BadData(
            "DomainTooSmall",
            f"domain {domain.name}: {domain.validation_documents} held-out documents with "
            f"{domain.validation_tokens} tokens (of {domain.training_documents} documents kept for "
            f"training) are too few for validation: at least 2 documents and {needed} tokens are "
            "needed; raise validation documents per thousand or give the domain more documents",
            f"domains.{domain.name}",
        )
