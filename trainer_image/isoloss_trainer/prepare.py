"""Tokenises the corpus once: training shards and held-out documents per domain, manifest last.

Work is split into units of input files, so that an interrupted preparation continues after the last
finished one, and several pods share the work. Held-out documents are chosen by a hash of their own
text: neither the order of files nor any other domain matters, and equal documents are all held out
or all trained on.

A corpus that is there is adopted by a sweep only if it was prepared from the files as they are now. Else they are
prepared under a key with their stamp, and those who train on the former corpus keep it.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoloss_contract import layout, records
from isoloss_contract.store import BadRecord, NotFound, Store, WriteConflict
from isoloss_trainer import shards, tokenization
from isoloss_trainer.corpus import CorpusFile, find_files, refuse_twice
from isoloss_trainer.log import Log
from isoloss_trainer.near_duplicates import count_twins, sketches
from isoloss_trainer.termination import BadConfiguration, BadData, Interruption
from isoloss_trainer.units import (
    BadDocuments,
    Preparation,
    Unit,
    document_hash,
    find_units,
    missing_units,
    prepare_unit,
    read_held_out,
    read_sketches,
    shard_name,
    units_folder,
)

POLL_SECONDS = 5.0
TAKEOVER_SECONDS = 1800.0
"""Far more than a unit takes."""


def prepare(
    task: records.PrepareTask, _scratch: Path, interruption: Interruption, log: Log
) -> str:
    """Prepare the corpus unless that is done; returns a sentence for the termination message.

    Of several pods each prepares its own units; the first one waits for the others, writes what is
    held out, and the manifest.
    """
    store, pod = Store(task.store_uri, shards.PATIENT), _pod_index(task)
    if not task.sweep_uid and store.exists(layout.data_manifest(task.config.key)):
        return _already_prepared(store, task.config.key, log)
    tokenizer = tokenization.load_tokenizer(task.config.tokenizer)
    found = [find_files(source) for source in task.config.domains]
    refuse_twice(
        [(source, *each) for source, each in zip(task.config.domains, found, strict=True)]
    )
    stamp = sources_stamp(tokenizer.digest, [files for _, files in found])
    config = _corpus_of_sources(task, store, stamp, log)
    run = Preparation(config, store, tokenizer, interruption, log, stamp)
    if store.exists(layout.data_manifest(config.key)):
        # First, so that the sweep sees what is wrong with a manifest that nobody can read.
        _tell_sweep(task, run, pod)
        return _already_prepared(store, config.key, log)
    domains = [
        find_units(source, filesystem, files, tokenizer.digest)
        for source, (filesystem, files) in zip(config.domains, found, strict=True)
    ]
    mine = [unit for units in domains for unit in units][pod :: task.pods]
    for done, unit in enumerate(mine):
        log.progress("prepare", done, len(mine), domain=unit.domain.name, unit=unit.name)
        prepare_unit(run, unit)
    if pod > 0:
        return f"units of input files prepared: {len(mine)}; the first pod puts them together"
    _await_units(run, domains)
    manifest = _manifest(run, _finish_domains(run, domains))
    try:
        path = layout.data_manifest(config.key)
        store.write_if(path, manifest.model_dump_json(indent=1).encode(), None)
    except WriteConflict:
        # Another Job was faster, and points may train on its shards: those stay. It may have listed other files.
        return prepare(task, _scratch, interruption, log)
    _tell_sweep(task, run, pod)
    remove_leftovers(store, config.key, manifest, log)
    return _summary(manifest)


def sources_stamp(tokenizer_digest: str, domains: Sequence[Sequence[CorpusFile]]) -> str:
    """DataManifest.sources_stamp of these files."""
    files = [[file.identity for file in each] for each in domains]
    return records.content_key([tokenizer_digest, files])


def _corpus_of_sources(
    task: records.PrepareTask, store: Store, stamp: str, log: Log
) -> records.PrepareConfig:
    """The preparation that is to be of the files with this stamp. Raises BadData if it cannot be."""
    config = task.config
    if not task.sweep_uid:
        if config.sources_stamp not in ("", stamp):
            raise BadData(
                "DataChanged",
                "the files of the corpus, or the tokenizer, are not those that the sweep began with, and its prepared data "
                f"({layout.data_folder(config.key)}/) are gone: put either back, or create another ScalingSweep",
                "domains",
            )
        return config
    try:
        manifest = store.read_record(layout.data_manifest(config.key), records.DataManifest)
    except NotFound:
        return config
    except BadRecord as error:
        reason = str(error)
    else:
        if (manifest.prepare_key, manifest.sources_stamp) == (config.key, stamp):
            return config
        reason = "it is of other files or of another tokenizer"
        if not manifest.sources_stamp:
            reason = "its manifest does not name its files"
    stamped = config.model_copy(update={"sources_stamp": stamp})
    facts = {"former": layout.data_folder(config.key), "corpus": layout.data_folder(stamped.key)}
    log.event("sources-changed", **facts, reason=reason)
    return stamped


def _tell_sweep(task: records.PrepareTask, run: Preparation, pod: int) -> None:
    """Leave word of its corpus for the sweep that asked."""
    if not task.sweep_uid or pod > 0:
        return
    pointer = records.SweepCorpus(prepare_key=run.config.key, sources_stamp=run.stamp)
    path = layout.corpus_of(task.config.key, task.sweep_uid)
    run.store.write(path, pointer.model_dump_json().encode())


def _already_prepared(store: Store, key: str, log: Log) -> str:
    """By an earlier attempt, which may have ended before it removed its leftovers, or by another Job."""
    manifest = store.read_record(layout.data_manifest(key), records.DataManifest)
    remove_leftovers(store, key, manifest, log)
    return f"already prepared: {_summary(manifest)}"


def _pod_index(task: records.PrepareTask) -> int:
    """This pod's number. A task for several pods that is run by hand is prepared by the first alone,
    once it has waited for the others in vain."""
    index = int(os.environ.get(records.POD_INDEX_VARIABLE) or 0)
    if index >= task.pods:
        message = f"{records.POD_INDEX_VARIABLE} is {index}, but the task is for {task.pods} pod{'' if task.pods == 1 else 's'}"
        raise BadConfiguration("BadPodIndex", message, "data.parallelism")
    return index


def _await_units(run: Preparation, domains: list[list[Unit]]) -> None:
    """Wait for the other pods' units. One that nobody finishes is prepared here: its pod may be lost,
    or may have listed the files before one of them was replaced."""
    before, since = -1, time.monotonic()
    while missing := [unit for units in domains for unit in missing_units(run, units)]:
        run.interruption.check()
        if len(missing) != before:
            before, since = len(missing), time.monotonic()
        if time.monotonic() - since > TAKEOVER_SECONDS:
            unit = missing[-1]
            run.log.event("unit-taken-over", domain=unit.domain.name, unit=unit.name)
            prepare_unit(run, unit)
            before -= 1  # by this pod: no sign that another is still at work
            continue
        total = sum(map(len, domains))
        run.log.progress("await-other-pods", total - len(missing), total)
        time.sleep(POLL_SECONDS)


def _manifest(run: Preparation, domains: tuple[records.DomainData, ...]) -> records.DataManifest:
    hashes = [[s.sha256 for s in (*domain.training, domain.validation)] for domain in domains]
    names = [domain.name for domain in domains]
    parts = [run.tokenizer.digest, run.config.sequence_length, names, hashes]
    return records.DataManifest(
        prepare_key=run.config.key,
        digest=records.content_key(parts),
        tokenizer_digest=run.tokenizer.digest,
        vocabulary_size=run.tokenizer.vocabulary_size,
        end_token=run.tokenizer.end_token,
        sequence_length=run.config.sequence_length,
        sources_stamp=run.stamp,
        domains=domains,
    )


def _summary(manifest: records.DataManifest) -> str:
    parts = [
        f"{d.name}: {d.training_tokens} tokens in {d.training_documents} documents, "
        f"{d.validation_tokens} held out in {d.validation_documents}"
        + (f", unreadable documents skipped: {d.bad_documents}" if d.bad_documents else "")
        for d in manifest.domains
    ]
    return "; ".join(parts)


def _finish_domains(run: Preparation, domains: list[list[Unit]]) -> tuple[records.DomainData, ...]:
    """Put all units together. A model trains on all domains: near-duplicates may be in any of them."""
    finished = [_finish_domain(run, units) for units in domains]
    training = (read_sketches(run, unit) for units in domains for unit in units)
    twins = count_twins([held_out for _, held_out in finished], training)
    return tuple(
        domain.model_copy(update={"near_duplicates": count})
        for (domain, _), count in zip(finished, twins, strict=True)
    )


def _finish_domain(
    run: Preparation, units: list[Unit]
) -> tuple[records.DomainData, NDArray[np.uint64]]:
    """Put the units of a domain together, and write its validation files; its near-duplicates are not counted yet. The
    sketches of what it holds out go with it."""
    source, prepared = units[0].domain, [prepare_unit(run, unit) for unit in units]
    bad = sum((part.bad for part in prepared), BadDocuments())
    empty = sum(part.empty_documents for part in prepared)
    documents = sum(part.documents for part in prepared)
    bad.refuse_above_share(source, documents + empty + sum(part.held_out for part in prepared))
    where = f"{run.config.tokenizer}, domain {source.name}"
    encoded, shown = write_held_out(
        run.store, run.folder, source.name, run.tokenizer, _held_out(run, units), where
    )
    domain = shown.model_copy(
        update={
            "training": tuple(shard for part in prepared for shard in part.shards),
            "training_documents": documents,
            "training_tokens": sum(part.tokens for part in prepared),
            "training_bytes": sum(part.bytes for part in prepared),
            "bad_documents": bad.count,
        }
    )
    _require_enough(run.config, domain)
    facts = domain.model_dump(
        exclude={"training", "validation", "validation_lengths", "near_duplicates"}
    )
    files = sum(len(unit.files) for unit in units)
    run.log.event("domain", **facts, files=files, empty_documents=empty)
    return domain, sketches([part.tokens[:-1] for part in encoded])


def write_held_out(
    store: Store,
    folder: str,
    name: str,
    tokenizer: tokenization.TextTokenizer,
    held_out: list[str],
    where: str,
) -> tuple[list[tokenization.MeasuredTokens], records.DomainData]:
    """Write the validation files of a domain below `folder`; their tokens, and the domain without training text.

    Raises BadData(TokenizerLosesText), which says `where`.
    """
    encoded = tokenizer.encode_closed(held_out)
    tokenization.check_keeps_text(encoded, where, "tokenizer")
    store.write(f"{folder}/{shards.validation_texts(name)}", shards.pack_texts(held_out))

    def array(path: str, parts: list[NDArray[np.uint32]]) -> records.Shard:
        """A number per validation token."""
        content = np.concatenate([*parts, np.empty(0, np.uint32)]).astype("<u4").tobytes()
        store.write(f"{folder}/{path}", content)
        digest = hashlib.sha256(content).hexdigest()
        return records.Shard(path=path, tokens=len(content) // 4, sha256=digest)

    validation = array(f"{name}/validation.bin", [part.tokens for part in encoded])
    data = records.DomainData(
        name=name,
        training=(),
        training_documents=0,
        training_tokens=0,
        training_bytes=0,
        validation=validation,
        validation_documents=len(held_out),
        validation_tokens=validation.tokens,
        validation_bytes=sum(len(text.encode()) for text in held_out),
        validation_lengths=array(
            f"{name}/validation-lengths.bin", [part.lengths for part in encoded]
        ),
    )
    return encoded, data


def _held_out(run: Preparation, units: list[Unit]) -> list[str]:
    """Held-out documents by their hash: a fixed, mixed order that does not depend on file order."""
    texts: set[str] = set()
    size = 0
    for unit in units:
        found = read_held_out(run, unit)
        size += sum(map(len, found))
        if size > shards.MAX_HELD_OUT_BYTES:
            raise BadData(
                "ValidationTooLarge",
                f"domain {unit.domain.name}: more than {shards.MAX_HELD_OUT_BYTES >> 30} GiB would be held "
                "out; lower validation documents per thousand",
                "validation_documents_per_thousand",
            )
        texts.update(found)
    return sorted(texts, key=document_hash)


def _require_enough(config: records.PrepareConfig, domain: records.DomainData) -> None:
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
            f"domain {domain.name}: too little text is held out for validation (documents: "
            f"{domain.validation_documents}, tokens: {domain.validation_tokens}; documents kept for training: "
            f"{domain.training_documents}): at least 2 documents and {needed} tokens are needed; "
            "raise validation documents per thousand or give the domain more documents",
            f"domains.{domain.name}",
        )


# ------------------------------------------------------------------------------- what is left beside it


def remove_leftovers(store: Store, key: str, manifest: records.DataManifest, log: Log) -> None:
    """Remove the units, and their shards that the manifest does not name: those of files that were replaced before
    the corpus with this prepare key was complete. What cannot be removed stays, with an event that says why.

    Only what is listed in the units folder is looked at: an earlier manifest, of which pods may still read, was written
    before anything there began.
    """
    with log.survived("leftovers-kept", corpus=key):
        for domain in manifest.domains:
            for path in _unnamed_shards(store, key, domain):
                store.remove(path)
        store.remove(units_folder(key))


def _unnamed_shards(store: Store, key: str, domain: records.DomainData) -> Iterator[str]:
    folder = layout.data_folder(key)
    named = {
        path for shard in domain.training for path in (shard.path, shards.windows_path(shard.path))
    }
    units = {name.partition(".")[0] for name in store.names(f"{units_folder(key)}/{domain.name}")}
    begun = tuple(f"{shard_name(domain.name, unit)}-" for unit in units)
    for name in store.names(f"{folder}/{domain.name}") if begun else ():
        path = f"{domain.name}/{name}"
        if path.startswith(begun) and path not in named:
            yield f"{folder}/{path}"
