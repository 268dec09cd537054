"""What prepare writes, what it depends on, and what it refuses."""

import codecs
import gzip
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

import isoloss_trainer.corpus as corpus_module
import isoloss_trainer.prepare as prepare_module
import isoloss_trainer.units as units_module
from isoloss_contract import layout
from isoloss_contract.records import (
    POD_INDEX_VARIABLE,
    DataManifest,
    DomainSource,
    PrepareTask,
)
from isoloss_contract.store import Store, StoreUnavailable
from isoloss_trainer.corpus import CorpusFile, Document, find_files, read_documents
from isoloss_trainer.evaluation import DomainSequences
from isoloss_trainer.near_duplicates import BANDS, sketches
from isoloss_trainer.prepare import prepare
from isoloss_trainer.shards import PreparedData, unpack_texts, windows_path
from isoloss_trainer.termination import (
    BadConfiguration,
    BadData,
    Interrupted,
    Interruption,
    explain,
)
from isoloss_trainer.tokenization import load_tokenizer
from isoloss_trainer.units import (
    Preparation,
    PreparedUnit,
    Unit,
    find_units,
    is_held_out,
    prepare_unit,
)
from tests.isoloss_trainer import builders
from tests.isoloss_trainer.builders import (
    END,
    Gone,
    StopAfter,
    at_write,
    is_lost,
    make_tokenizer,
    prepare_task,
    quiet,
    uri,
    write_json_lines,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.support.chance import Clock


def documents(count: int) -> list[str]:
    """Short ones: what is shown here does not depend on how long they are."""
    return builders.documents(count, 172_000)


def run(task: PrepareTask, interruption: Interruption | None = None) -> DataManifest:
    prepare(task, Path("/nonexistent"), interruption or Interruption(), quiet())
    path = layout.data_manifest(task.config.key)
    return Store(task.store_uri).read_record(path, DataManifest)


def domain_task(
    corpus: Path, store: Path, pattern: str, field: str = "text", **changes: object
) -> PrepareTask:
    source = DomainSource(name="text", uri=pattern, text_field=field)
    return prepare_task(uri(corpus), uri(store), domains=(source,), **changes)


class Desk:
    """A folder in which files are put, to be prepared as one domain."""

    def __init__(self, folder: Path, corpus: Path) -> None:
        self.folder, self.corpus = folder, corpus

    def task(self, files: str, store: str = "store", **changes: Any) -> PrepareTask:
        """Of the files with this pattern."""
        pattern = f"{uri(self.folder)}/{files}"
        return domain_task(self.corpus, self.folder / store, pattern, **changes)

    def made(self, files: str, store: str = "store", **changes: Any) -> Any:
        """The domain that they come to."""
        (domain,) = run(self.task(files, store, **changes)).domains
        return domain

    def in_lines(self, name: str, texts: list[str]) -> Any:
        """The domain of these documents in a file of this name."""
        write_json_lines(self.folder / name, texts)
        return self.made(name, f"store of {name}")


@pytest.fixture
def desk(tmp_path: Path, corpus: Path) -> Desk:
    return Desk(tmp_path, corpus)


def documents_of(domain: Any) -> int:
    return int(domain.training_documents + domain.validation_documents)


def assert_same(found: Any, wanted: Any) -> None:
    """The same tokens, in training and held out."""
    assert found.training[0].sha256 == wanted.training[0].sha256
    assert found.validation.sha256 == wanted.validation.sha256


def test_counts_match_the_corpus(prepared: Prepared, corpus: Path) -> None:
    data = prepared.data
    tokenizer = load_tokenizer(f"{uri(corpus)}/tokenizer")
    for domain in prepared.manifest.domains:
        texts = [
            json.loads(line)["text"]
            for line in (corpus / f"{domain.name}.jsonl").read_text().splitlines()
        ]
        stream = data.validation_stream(domain.name)
        assert domain.training_documents + domain.validation_documents == len(texts)
        assert domain.training_bytes + domain.validation_bytes == sum(
            len(text.encode()) for text in texts
        )
        assert domain.training_tokens + domain.validation_tokens == sum(
            len(tokens) + 1 for tokens in tokenizer.encode(texts)
        )
        assert domain.validation_tokens == len(stream)
        assert domain.validation_documents == (stream == prepared.manifest.end_token).sum()


def test_prepared_data_are_not_read_again(prepared: Prepared, corpus: Path) -> None:
    task = prepare_task("file:///gone", prepared.uri)
    task = task.model_copy(update={"config": prepare_task(uri(corpus), prepared.uri).config})
    assert prepare(task, corpus, Interruption(), quiet()).startswith("already prepared")


def held_out(store: Path, domain: str) -> set[str]:
    (path,) = store.glob(f"data/*/{domain}/validation.jsonl.gz")
    return set(unpack_texts(path.read_bytes()))


def test_held_out_documents_do_not_depend_on_file_order_or_other_domains(
    corpus: Path, prepared: Prepared, tmp_path: Path
) -> None:
    texts = [json.loads(x)["text"] for x in (corpus / "prose.jsonl").read_text().splitlines()]
    write_json_lines(tmp_path / "in" / "a.jsonl", texts[60:][::-1])
    write_json_lines(tmp_path / "in" / "b.jsonl", texts[:60])
    run(domain_task(corpus, tmp_path / "store", f"{uri(tmp_path)}/in/*.jsonl"))
    assert held_out(tmp_path / "store", "text") == held_out(prepared.folder, "prose")
    ours = PreparedData(prepared.data_uri, tmp_path).validation_stream("prose")
    (path,) = (tmp_path / "store").glob("data/*/text/validation.bin")
    assert np.array_equal(np.fromfile(path, "<u4"), ours)


def test_the_digest_follows_the_content(corpus: Path, prepared: Prepared, tmp_path: Path) -> None:
    again = run(prepare_task(uri(corpus), uri(tmp_path)))
    assert again.digest == prepared.manifest.digest
    texts = [json.loads(x)["text"] for x in (corpus / "prose.jsonl").read_text().splitlines()]
    write_json_lines(tmp_path / "changed" / "prose.jsonl", [*texts[:-1], texts[-1] + "!"])
    write_json_lines(tmp_path / "changed" / "code.jsonl", texts)
    sources = tuple(
        DomainSource(name=n, uri=f"{uri(tmp_path)}/changed/{n}.jsonl", text_field="text")
        for n in ("prose", "code")
    )
    other = run(prepare_task(uri(corpus), uri(tmp_path), domains=sources))
    assert other.digest != again.digest


# ------------------------------------------------------------------------------------ formats


def write_parquet(path: Path, texts: list[str]) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"id": range(len(texts)), "text": texts}), path)


def write_arrow_file(path: Path, texts: list[str]) -> None:
    table = pyarrow.table({"text": texts})
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def write_arrow_stream(path: Path, texts: list[str]) -> None:
    table = pyarrow.table({"text": texts})
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


FORMATS: dict[str, tuple[str, Callable[[Path, list[str]], object]]] = {
    "json lines": ("x.jsonl", lambda p, t: p.write_bytes(lines(t))),
    "json lines with blank lines": (
        "x.jsonl",
        lambda p, t: p.write_bytes(lines(t).replace(b"\n", b"\n\n")),
    ),
    "json lines, gzip": ("x.jsonl.gz", lambda p, t: p.write_bytes(gzip.compress(lines(t)))),
    "json lines, zstandard": (
        "x.jsonl.zst",
        lambda p, t: p.write_bytes(zstandard.compress(lines(t))),
    ),
    "json list": (
        "x.json",
        lambda p, t: p.write_text(json.dumps([{"text": text} for text in t])),
    ),
    "json list named .jsonl": (
        "x.jsonl",
        lambda p, t: p.write_text(json.dumps([{"text": text} for text in t], indent=1)),
    ),
    "a name that begins as others' files do": ("_x.jsonl", lambda p, t: p.write_bytes(lines(t))),
    "json lines named .json": ("x.json", lambda p, t: p.write_bytes(lines(t))),
    "json lines named .ndjson": ("x.ndjson", lambda p, t: p.write_bytes(lines(t))),
    "json list after blank lines": (
        "x.json",
        lambda p, t: p.write_text("\n \n\n\t\n" + json.dumps([{"text": x} for x in t], indent=1)),
    ),
    "json lines named .json after blank lines": (
        "x.json",
        lambda p, t: p.write_bytes(b"\n\n\n\n\n" + lines(t)),
    ),
    "json list, gzip": (
        "x.json.gz",
        lambda p, t: p.write_bytes(gzip.compress(json.dumps([{"text": x} for x in t]).encode())),
    ),
    "parquet": ("x.parquet", write_parquet),
    "arrow file": ("x.arrow", write_arrow_file),
    "arrow stream": ("x.arrow", write_arrow_stream),
    "mixed": (
        "x.jsonl",
        lambda p, t: (
            p.write_bytes(lines(t[:50])),
            write_parquet(p.with_name("y.parquet"), t[50:]),
        ),
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_tokens(
    kind: str, corpus: Path, prepared: Prepared, desk: Desk
) -> None:
    name, write = FORMATS[kind]
    texts = [json.loads(x)["text"] for x in (corpus / "prose.jsonl").read_text().splitlines()]
    write(desk.folder / name, texts)
    (known,) = [d for d in prepared.manifest.domains if d.name == "prose"]
    assert_same(desk.made("_*" if name.startswith("_") else "*[!e]"), known)


def test_a_text_file_is_one_document(desk: Desk) -> None:
    for number, text in enumerate(documents(60)):
        (desk.folder / f"{number:02}.txt").write_text(text)
    assert documents_of(desk.made("*.txt")) == 60


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_json_file_may_be_one_object(desk: Desk, indent: int | None, end: str) -> None:
    """In one line or in several, as people write it."""
    for number, text in enumerate(GOOD):
        content = json.dumps({"meta": {"id": number}, "text": text}, indent=indent).encode()
        content = codecs.BOM_UTF8 + content if number % 2 else content
        path = desk.folder / f"{number:02}.json{end}"
        path.write_bytes(gzip.compress(content) if end else content)
    found, wanted = desk.made(f"*.json{end}"), desk.in_lines("lines.jsonl", GOOD)
    assert (found.bad_documents, wanted.bad_documents) == (0, 0)
    assert found.training[0].sha256 == wanted.training[0].sha256


def test_a_broken_first_line_of_a_json_file_is_one_bad_document(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a file that is larger than what is held at once."""
    (desk.folder / "x.json").write_bytes(b'{"text": "broken\n' + lines(MANY))
    small = desk.made("*.json", "small")
    monkeypatch.setattr(corpus_module, "MAX_DOCUMENT_BYTES", max(map(len, MANY)) * 7)
    for found in (small, desk.made("*.json", "large")):
        assert (found.bad_documents, documents_of(found)) == (1, len(MANY))


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (MemoryError(), MemoryError, "OutOfMemory"),
        (KeyError("a bug"), KeyError, "InternalError"),
        (TimeoutError("no answer"), StoreUnavailable, "StoreUnavailable"),
        (OSError(5, "the volume does not answer"), StoreUnavailable, "StoreUnavailable"),
    ],
)
def test_what_goes_wrong_while_a_file_is_read_is_called_what_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[Exception],
    code: str,
) -> None:
    """Waiting for the store helps against none but the store's own."""
    write_json_lines(tmp_path / "x.jsonl", GOOD)
    source = DomainSource(name="text", uri=f"{uri(tmp_path)}/x.jsonl", text_field="text")
    filesystem, (file,) = find_files(source)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(corpus_module, "_text_of", fail)
    with pytest.raises(kind) as caught:
        list(read_documents(filesystem, file, "text"))
    assert explain(caught.value)[1].code == code


# ---------------------------------------------------------------------------------- refusals

GOOD = documents(60)
ZSTD_FRAME = bytes.fromhex("28b52ffd") + bytes([0, (28 - 10) << 3])
"""The beginning of one with a window of 256 MiB, as `zstd --long=28` writes; a raw block of 5 bytes may follow."""
REFUSED: dict[str, tuple[Mapping[str, bytes] | Callable[[Path], object], str, str]] = {
    "a window that takes too much memory": (
        {"x.jsonl.zst": ZSTD_FRAME + bytes([41, 0, 0]) + b"hello"},
        "UnreadableFile",
        "pack it again with zstd --long=27",
    ),
    "UTF-16 without a mark": (
        lambda f: [
            (f / f"{i}.txt").write_bytes(t.encode("utf-16-le")) for i, t in enumerate(documents(9))
        ],
        "NotUtf8",
        "0.txt: 50% of its characters are NUL",
    ),
    "UTF-32 without a mark in Parquet": (
        lambda f: write_parquet(
            f / "x.parquet", [t.encode("utf-32-le").decode() for t in documents(9)]
        ),
        "NotUtf8",
        "row 1: 75% of its characters are NUL",
    ),
    "compressed, but not called so": (
        {"x.jsonl": gzip.compress(lines(GOOD))},
        "UnreadableFile",
        "x.jsonl: is compressed (gzip), which its name does not say: call it .jsonl.gz",
    ),
    "a folder beside files": (
        lambda p: [
            write_json_lines(p / each, GOOD) for each in ("x.jsonl", "f.jsonl/part-0.jsonl")
        ],
        "NoFiles",
        "f.jsonl, whose files would be left out",
    ),
    "a file beside its compressed form": (
        {"x.jsonl": lines(GOOD), "x.jsonl.gz": gzip.compress(lines(GOOD))},
        "NoFiles",
        "x.jsonl.gz: one is usually the other, compressed",
    ),
    "a file beside its export in another format": (
        lambda p: [
            (p / "x.jsonl").write_bytes(lines(GOOD)),
            write_parquet(p / "x.parquet", GOOD),
        ],
        "NoFiles",
        "x.parquet: one is usually the other, compressed, in another format",
    ),
    "a link to another file": (
        lambda p: [
            (p / "x.jsonl").write_bytes(lines(GOOD)),
            (p / "latest.jsonl").symlink_to(p / "x.jsonl"),
        ],
        "NoFiles",
        "x.jsonl: one is usually the other, compressed, in another format or as a link",
    ),
    "a file under two names": (
        lambda p: [
            (p / "x.jsonl").write_bytes(lines(GOOD)),
            (p / "latest.jsonl").hardlink_to(p / "x.jsonl"),
        ],
        "NoFiles",
        "x.jsonl: one is usually the other, compressed, in another format or as a link",
    ),
    "a file of two names and a link to it": (
        lambda p: [
            (p.parent / "x.jsonl").write_bytes(lines(GOOD)),
            (p / "x.jsonl").hardlink_to(p.parent / "x.jsonl"),
            (p / "latest.jsonl").symlink_to(p.parent / "x.jsonl"),
        ],
        "NoFiles",
        "x.jsonl: one is usually the other, compressed, in another format or as a link",
    ),
    "two columns of one name": (
        lambda p: pyarrow.parquet.write_table(
            pyarrow.table([GOOD, GOOD], ["text", "text"]), p / "x.parquet"
        ),
        "TextFieldMissing",
        "x.parquet: 2 columns are called 'text'",
    ),
    "bytes that are no text": (
        lambda p: pyarrow.parquet.write_table(pyarrow.table({"text": [b"\xff"]}), p / "x.parquet"),
        "NotUtf8",
        "row 1: not UTF-8 at byte 0",
    ),
    "nothing matches": ({}, "NoFiles", "nothing matches"),
    "only a name that is passed over": (
        {"_x.jsonl": lines(GOOD)},
        "NoFiles",
        "_x.jsonl, which is passed over, as all names that begin with _ or a dot: write",
    ),
    "a table as text": ({"x.csv": b"text\n"}, "UnknownFormat", "this is a table as text (CSV)"),
    "a page beside the data": (
        {"README.md": b"# Text", "x.jsonl": lines(GOOD)},
        "UnknownFormat",
        "README.md: expected .parquet, .jsonl, .json, .arrow, .txt, plain or with .gz or .zst; what ends otherwise is "
        "left out by a pattern such as *.jsonl",
    ),
    "no gzip": (
        {"x.jsonl.gz": lines(GOOD)},
        "UnreadableFile",
        "x.jsonl.gz: is not gzip, damaged, or has something else behind it: copy or pack it again",
    ),
    "dates": (
        lambda p: pyarrow.parquet.write_table(
            pyarrow.table({"text": pyarrow.array([1, 2], pyarrow.timestamp("s"))}), p / "x.parquet"
        ),
        "TextFieldMissing",
        "row 1: field 'text' is a value of another kind, not text",
    ),
    "a column is missing": (
        lambda p: pyarrow.parquet.write_table(pyarrow.table({"body": ["x"]}), p / "x.parquet"),
        "TextFieldMissing",
        "no field 'text'; fields: body",
    ),
    "two texts in a list": (
        {"x.json": b'[{"text": "one", "text": "two"}]'},
        "BadJson",
        "x.json: the key 'text' is there twice",
    ),
    "brackets without end": (
        {"x.json": b"[" * 100_000},
        "BadJson",
        "x.json: its brackets are nested too deeply",
    ),
    "braces without end": ({"x.json": b'{"a":' * 100_000}, "BadJson", "x.json"),
    "truncated gzip": (
        {"x.jsonl.gz": gzip.compress(lines(GOOD))[:-200]},
        "UnreadableFile",
        "x.jsonl.gz",
    ),
    "truncated zstandard": (
        {"x.jsonl.zst": zstandard.compress(lines(GOOD))[:-200]},
        "UnreadableFile",
        "x.jsonl.zst",
    ),
    "not zstandard": ({"x.jsonl.zst": b"(\xb5/\xfd garbage"}, "UnreadableFile", "x.jsonl.zst"),
    "gzip of no bytes": (
        {"w.jsonl": lines(GOOD), "x.jsonl.gz": b""},
        "UnreadableFile",
        "x.jsonl.gz: is empty",
    ),
    "zstandard of no bytes": (
        {"w.jsonl": lines(GOOD), "x.jsonl.zst": b""},
        "UnreadableFile",
        "x.jsonl.zst: is empty",
    ),
    "not parquet": ({"x.parquet": b"PAR1 not really"}, "UnreadableFile", "x.parquet"),
    "another loader's kind": (
        {"index.json": b"{}", "shard.00000.mds.zstd": b""},
        "UnknownFormat",
        "this is MDS of MosaicML Streaming, which docs/reference/corpora.md converts",
    ),
    "two documents": ({"x.jsonl": lines(GOOD[:2])}, "DomainTooSmall", "domain text"),
    "short documents": (
        {"x.jsonl": lines([str(i) for i in range(8)])},
        "DomainTooSmall",
        "domain text",
    ),
}
"""Files by their names, or who writes them; the code, and part of what is said."""


@pytest.mark.parametrize("case", REFUSED)
def test_bad_corpora_are_refused_with_file_and_row(case: str, desk: Desk) -> None:
    write, code, words = REFUSED[case]
    folder = desk.folder / "in"
    folder.mkdir()
    if callable(write):
        write(folder)
    else:
        for name, content in write.items():
            (folder / name).write_bytes(content)
    with pytest.raises(BadData) as caught:
        desk.made("in/*")
    assert caught.value.code == code
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no tokenizer.json"),
        (b"{}", "tokenizer.json"),
        (b"not json", "tokenizer.json"),
    ],
    ids=["missing", "empty", "garbage"],
)
def test_a_tokenizer_that_does_not_load_is_refused_by_name(
    content: bytes | None, words: str, corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    if content is not None:
        (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(BadData) as caught:
        run(prepare_task(uri(corpus), uri(tmp_path), tokenizer=uri(folder)))
    assert caught.value.code == "TokenizerNotLoadable"
    assert words in caught.value.message


# --------------------------------------------------------------------------- odd but acceptable


def test_empty_and_huge_documents_are_accepted(desk: Desk) -> None:
    """One of white space alone is as empty as to `isoloss measure`."""
    words = "word and another "
    huge = words * (units_module.BATCH_BYTES // len(words) + 1)
    domain = desk.in_lines("x.jsonl", ["", *GOOD, huge, " \n\t"])
    assert documents_of(domain) == len(GOOD) + 1
    assert domain.training_bytes + domain.validation_bytes >= len(huge)


def test_a_document_cannot_contain_its_own_end(desk: Desk) -> None:
    texts = [f"{text} {END} {number}" for number, text in enumerate(GOOD)]
    write_json_lines(desk.folder / "x.jsonl", texts)
    task = desk.task("x.jsonl")
    manifest = run(task)
    data_uri = f"{task.store_uri}/data/{manifest.prepare_key}"
    stream = PreparedData(data_uri, desk.folder).validation_stream("text")
    (domain,) = manifest.domains
    assert (stream == manifest.end_token).sum() == domain.validation_documents


def unigram_tokenizer(folder: Path) -> None:
    """Special tokens are in the vocabulary, as in those of T5 and XGLM."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", END]
    trainer = trainers.UnigramTrainer(
        vocab_size=384, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(MANY, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def word_tokenizer(folder: Path) -> None:
    words = sorted({word for text in MANY for word in re.findall(r"\s|\S+", text)})
    vocabulary = {word: number for number, word in enumerate(["<unk>", END, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))


def tokenizer_with_an_end_that_is_not_special(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change", [unigram_tokenizer, word_tokenizer, tokenizer_with_an_end_that_is_not_special]
)
def test_a_document_whose_text_a_tokenizer_reads_as_its_end_is_skipped_and_counted(
    change: Callable[[Path], None], desk: Desk
) -> None:
    """Also one that is held out."""
    tokenizer = make_tokenizer(desk.folder / "tokenizer", GOOD)
    change(tokenizer)
    bad = [f"{number} <s> {END} was the price" for number in range(6)]
    assert len({is_held_out(text, 100) for text in bad}) == 2
    write_json_lines(desk.folder / "x.jsonl", [*MANY[:300], *bad, *MANY[300:]])
    write_json_lines(desk.folder / "y.jsonl", MANY)
    found, clean = (desk.made(f"{x}.jsonl", x, tokenizer=uri(tokenizer)) for x in "xy")
    assert (found.bad_documents, clean.bad_documents) == (6, 0)
    assert_same(found, clean)


def test_a_tokenizer_that_reads_text_as_the_end_of_a_document_is_said_to(desk: Desk) -> None:
    tokenizer = make_tokenizer(desk.folder / "tokenizer", GOOD)
    tokenizer_with_an_end_that_is_not_special(tokenizer)
    write_json_lines(desk.folder / "x.jsonl", [*GOOD, END])
    with pytest.raises(BadData, match=r"x\.jsonl: .*'<\|end\|>', which this tokenizer") as caught:
        desk.made("x.jsonl", tokenizer=uri(tokenizer), bad_documents="Refuse")
    assert caught.value.code == "EndTokenInText"


def test_near_duplicates_across_the_split_are_counted(corpus: Path, tmp_path: Path) -> None:
    """In any domain: the model trains on all of them."""
    originals = documents(40)
    twins = [text.replace(" ", " that ", 1) for text in originals]
    for name, texts in {"x": originals, "y": twins, "z": originals + twins}.items():
        write_json_lines(tmp_path / f"{name}.jsonl", texts)

    def counted(*names: str) -> list[tuple[int, int]]:
        sources = [
            DomainSource(name=name, uri=f"{uri(tmp_path)}/{name}.jsonl", text_field="text")
            for name in names
        ]
        given = {"domains": tuple(sources), "validation_documents_per_thousand": 250}
        found = run(prepare_task(uri(corpus), uri(tmp_path / "-".join(names)), **given)).domains
        return [(domain.near_duplicates, domain.validation_documents) for domain in found]

    assert counted("x")[0][0] == 0
    for twice in (counted("z"), counted("x", "y")):
        assert all(twins >= held_out // 2 > 0 for twins, held_out in twice)


@pytest.mark.parametrize(
    ("pattern", "field", "refused"),
    [
        ("x.jsonl", "text", "x.jsonl"),
        ("*.jsonl", "text", "x.jsonl"),
        ("x.jsonl.gz", "text", "x.jsonl.gz"),
        ("y.jsonl", "text", ""),
        ("x.jsonl", "title", ""),
    ],
)
def test_a_file_in_two_domains_is_refused(
    corpus: Path, tmp_path: Path, pattern: str, field: str, refused: str
) -> None:
    """Its documents would count twice. Another field of the same rows is another text."""
    rows = [{"text": text, "title": text[::-1]} for text in documents(40)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for name in ("x.jsonl", "y.jsonl"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(content))
    first = DomainSource(name="first", uri=f"{uri(tmp_path)}/x.jsonl", text_field="text")
    second = DomainSource(name="second", uri=f"{uri(tmp_path)}/{pattern}", text_field=field)
    task = prepare_task(
        uri(corpus),
        uri(tmp_path / "store"),
        domains=(first, second),
        validation_documents_per_thousand=250,
    )
    if not refused:
        assert len(run(task).domains) == 2
        return
    words = rf"first reads \S+/x\.jsonl and domain second \S+/{re.escape(refused)}: .* count twice"
    with pytest.raises(BadData, match=words) as caught:
        run(task)
    assert caught.value.field == "domains.second.uri"


def _collisions(similarity: float, trials: int = 400, size: int = 600) -> float:
    """How often two documents share a key that have `similarity` of their 8-grams in common."""
    random = np.random.default_rng(1)
    shared = round(2 * size * similarity / (1 + similarity))
    found = 0
    for _ in range(trials):
        common, *rest = (
            random.integers(0, 2**32, n, dtype=np.uint32) for n in (shared, *[size - shared] * 2)
        )
        pair = sketches([np.concatenate([common, own]) for own in rest])
        found += bool((pair[0] == pair[1]).any())
    return found / trials


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95])
def test_documents_share_a_sketch_as_often_as_minhash_promises(similarity: float) -> None:
    promised = 1 - (1 - similarity**8) ** BANDS
    assert _collisions(similarity) == pytest.approx(promised, abs=0.08)


@pytest.mark.parametrize("size", [0, 1, 5, 7, 8, 9, 20])
def test_short_documents_are_twins_of_their_copies_alone(size: int) -> None:
    one = np.arange(100, 100 + size, dtype=np.uint32)
    other = one.copy()
    other[-1:] += 1
    longer = np.append(one, np.uint32(7))
    keys = sketches([one, other, longer, one])
    assert (keys[0] == keys[3]).all()
    # Longer ones have 8-grams in common.
    assert size == 0 or size > 8 or not (keys[0] == keys[1]).any()
    assert size >= 8 or not (keys[0] == keys[2]).any()


def test_a_sketch_does_not_depend_on_the_documents_beside_it() -> None:
    random = np.random.default_rng(2)
    documents = [random.integers(0, 500, n).astype(np.uint32) for n in (3, 900, 1, 0, 25_000, 40)]
    together = sketches(documents)
    for number, tokens in enumerate(documents):
        assert (sketches([tokens])[0] == together[number]).all()


# ------------------------------------------------------------------------------ bad documents

MANY = documents(600)
BAD: dict[str, tuple[bytes, str, str]] = {
    "null": (b'{"text": null}', "TextFieldMissing", "field 'text' is null, not text"),
    "a lone surrogate": (b'{"text": "\\ud800"}', "NotUtf8", "lone surrogate at 0"),
    "not UTF-8": (b'{"text": "\xff"}', "NotUtf8", "not UTF-8 at byte 10"),
    "another field": (b'{"body": "x"}', "TextFieldMissing", "no field 'text'; fields: body"),
    "not JSON": (b"{oops", "BadJson", "Expecting property name"),
    "no object": (b"[1]", "BadRow", "not an object"),
    "two texts": (
        b'{"text": "one", "te\\u0078t": "two"}',
        "BadJson",
        "the key 'text' is there twice",
    ),
    "a list": (b'{"text": ["x"]}', "TextFieldMissing", "field 'text' is a list, not text"),
    "digits without end": (
        b'{"text": "x", "n": ' + 5000 * b"1" + b"}",
        "BadJson",
        "a number has too many digits",
    ),
}
"""Rows that cannot be read; the code, and part of what is said."""


def test_few_documents_that_cannot_be_read_are_skipped_and_counted(desk: Desk) -> None:
    bad = b"".join(row + b"\n" for row, _, _ in [*BAD.values()][:6])
    (desk.folder / "x.jsonl").write_bytes(lines(MANY[:300]) + bad + lines(MANY[300:]))
    found, clean = desk.made("x.jsonl"), desk.in_lines("y.jsonl", MANY)
    assert (found.bad_documents, clean.bad_documents) == (6, 0)
    assert_same(found, clean)


def test_null_in_a_column_is_skipped(desk: Desk) -> None:
    table = pyarrow.table({"text": [*MANY, None]})
    pyarrow.parquet.write_table(table, desk.folder / "x.parquet")
    found = desk.made("*.parquet")
    assert (found.bad_documents, documents_of(found)) == (1, 600)


@pytest.mark.parametrize("kind", BAD)
def test_where_nothing_is_skipped_one_document_refuses_the_corpus(desk: Desk, kind: str) -> None:
    row, code, words = BAD[kind]
    (desk.folder / "x.jsonl").write_bytes(lines(MANY) + row)
    with pytest.raises(BadData, match=rf"x\.jsonl: row 601: .*{re.escape(words)}") as caught:
        desk.made("*.jsonl", bad_documents="Refuse")
    assert caught.value.code == code


def test_more_than_one_in_a_hundred_refuses_the_corpus(desk: Desk) -> None:
    (desk.folder / "x.jsonl").write_bytes(lines(MANY) + 7 * b'{"text": null}\n')
    with pytest.raises(BadData, match=r"row 601: .*; 7 of 607 documents of domain text") as caught:
        desk.made("*.jsonl")
    assert caught.value.code == "TextFieldMissing"


def test_a_wrong_field_is_found_before_the_corpus_is_read_to_its_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units_module, "BATCH_BYTES", 100)
    (desk.folder / "x.jsonl").write_bytes(5000 * b'{"body": "x"}\n' + lines(MANY))
    with pytest.raises(BadData, match="1000 of 1000 documents"):
        desk.made("*.jsonl")


MARKED: dict[str, Callable[[list[str]], bytes]] = {
    "x.jsonl": lines,
    "lines.json": lines,
    "list.json": lambda texts: json.dumps([{"text": text} for text in texts]).encode(),
}


@pytest.mark.parametrize("name", MARKED)
def test_a_byte_order_mark_is_no_part_of_the_first_document(desk: Desk, name: str) -> None:
    content = MARKED[name](GOOD)
    (desk.folder / "plain").mkdir()
    (desk.folder / "plain" / name).write_bytes(content)
    (desk.folder / name).write_bytes(codecs.BOM_UTF8 + content)
    marked, plain = desk.made(name), desk.made(f"plain/{name}", "other")
    assert marked.bad_documents == 0
    assert_same(marked, plain)


@pytest.mark.parametrize("pattern", ["in", "in/", "in/*"], ids=["folder", "slash", "of folders"])
def test_a_folder_in_place_of_its_files_is_told_what_to_write(desk: Desk, pattern: str) -> None:
    write_json_lines(desk.folder / "in" / "a" / "x.jsonl", documents(4))
    with pytest.raises(BadData) as caught:
        desk.made(pattern)
    assert caught.value.code == "NoFiles"
    fixed = f"{uri(desk.folder)}/{pattern.rstrip('/')}/*"
    assert f"write {fixed} for the files in them" in caught.value.message


def test_files_that_others_put_beside_data_are_no_data(desk: Desk) -> None:
    write_json_lines(desk.folder / "x.jsonl", GOOD)
    for name in ("_SUCCESS", "_committed_1", ".x.jsonl.crc"):
        (desk.folder / name).write_bytes(b"")
    assert documents_of(desk.made("*")) == len(GOOD)


def test_what_datasets_saves_beside_arrow_is_no_data(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": GOOD}).save_to_disk(tmp_path)
    source = DomainSource(name="text", uri=f"{uri(tmp_path)}/*", text_field="text")
    filesystem, (file,) = find_files(source)
    assert list(read_documents(filesystem, file, "text")) == GOOD
    (tmp_path / "data-00000-of-00001.arrow").unlink()
    _, others = find_files(source)
    assert len(others) == 2


def test_markers_of_folders_are_no_data(tmp_path: Path) -> None:
    """Consoles make an object of 0 bytes whose name ends in a slash, EMR one that is called NAME_$folder$."""
    fsspec.filesystem("memory").store.clear()
    for name, content in {
        "/c/": b"",
        "/c/part/": b"",
        "/c/part_$folder$": b"",
        "/c/empty/": b"",
        "/c/x.jsonl": lines(GOOD),
        "/c/part/y.jsonl": lines(GOOD),
    }.items():
        fsspec.filesystem("memory").store[name] = MemoryFile(None, name, content)
    source = DomainSource(name="text", uri="memory://c/**", text_field="text")
    _, files = find_files(source)
    assert [file.path for file in files] == ["/c/part/y.jsonl", "/c/x.jsonl"]


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary()])
def test_text_that_is_stored_as_bytes_is_read(tmp_path: Path, kind: pyarrow.DataType) -> None:
    """As Spark, DuckDB and ClickHouse write it without the mark of text."""
    texts = pyarrow.array([text.encode() for text in GOOD], kind)
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "x.parquet")
    assert read_all(f"{uri(tmp_path)}/*.parquet") == GOOD


def test_text_of_a_column_that_is_not_utf_8_is_one_bad_document(tmp_path: Path) -> None:
    """A Parquet column of strings may hold any bytes."""
    binary = pyarrow.array([*(text.encode() for text in GOOD), b"\xff"])
    texts = pyarrow.StringArray.from_buffers(len(binary), *binary.buffers()[1:])
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "x.parquet")
    *found, last = read_all(f"{uri(tmp_path)}/*")
    assert found == GOOD
    assert str(last).endswith("x.parquet: row 61: not UTF-8 at byte 0")


def read_all(pattern: str) -> list[Document]:
    source = DomainSource(name="text", uri=pattern, text_field="text")
    filesystem, files = find_files(source)
    return [each for file in files for each in read_documents(filesystem, file, "text")]


def test_links_are_read_but_for_those_to_folders_below_a_search(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "there" / "x.jsonl", GOOD)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.jsonl").symlink_to(tmp_path / "there" / "x.jsonl")
    os.mkfifo(tmp_path / "in" / "pipe.jsonl")
    assert read_all(f"{uri(tmp_path)}/in/**/*.jsonl") == GOOD
    (tmp_path / "in" / "there").symlink_to(tmp_path / "there")
    assert read_all(f"{uri(tmp_path)}/in/there/*") == GOOD
    with pytest.raises(BadData, match=r"in/there, whose files would be left out: .*links"):
        read_all(f"{uri(tmp_path)}/in/**/*.jsonl")


def test_folders_that_others_put_beside_data_are_no_data(tmp_path: Path) -> None:
    """Unless the glob names them; what it is in matters to nobody."""
    folder = tmp_path / ".cache" / "_corpus"
    write_json_lines(folder / "a" / "x.jsonl", GOOD)
    for name in ("_temporary/0/task_1", ".ipynb_checkpoints", "a/_temporary"):
        write_json_lines(folder / name / "x.jsonl", GOOD)
    found = {
        glob: [
            str(Path(file.path).relative_to(folder))
            for file in find_files(
                DomainSource(name="text", uri=f"{uri(folder)}/{glob}", text_field="text")
            )[1]
        ]
        for glob in ("**/*.jsonl", "*/x.jsonl", "a/_temporary/*", "*/_temporary/x.jsonl")
    }
    assert found == {
        "**/*.jsonl": ["a/x.jsonl"],
        "*/x.jsonl": ["a/x.jsonl"],
        "a/_temporary/*": ["a/_temporary/x.jsonl"],
        "*/_temporary/x.jsonl": ["a/_temporary/x.jsonl"],
    }


NESTED: dict[str, Callable[[Path, list[Any]], object]] = {
    "json lines": lambda p, rows: (p / "x.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    ),
    "parquet": lambda p, rows: pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows), p / "x.parquet"
    ),
    "arrow": lambda p, rows: write_arrow(p / "x.arrow", pyarrow.Table.from_pylist(rows)),
}


def write_arrow(path: Path, table: Any) -> None:
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("named", [False, True], ids=["a path", "the field's very name"])
def test_text_may_lie_deeper(desk: Desk, kind: str, named: bool) -> None:
    rows = [{"meta.text": text} if named else {"meta": {"n": 1, "text": text}} for text in GOOD]
    NESTED[kind](desk.folder, rows)
    domain, plain = desk.made("x.*", field="meta.text"), desk.in_lines("plain.jsonl", GOOD)
    assert domain.training[0].sha256 == plain.training[0].sha256


def test_a_path_through_a_list_is_said_to_lead_there(desk: Desk) -> None:
    """As in chats: all fields of the row were listed, the one that is there among them."""
    NESTED["json lines"](desk.folder, [{"chat": {"turns": [{"text": text}]}} for text in GOOD])
    with pytest.raises(BadData, match=r"no field 'chat.turns.text': field 'chat.turns' is a list"):
        desk.made("x.*", field="chat.turns.text")


@pytest.mark.parametrize("kind", NESTED)
def test_a_path_that_leads_nowhere_is_refused(desk: Desk, kind: str) -> None:
    NESTED[kind](desk.folder, [{"meta": {"n": text}} for text in GOOD])
    with pytest.raises(BadData, match=r"row 1: no field 'meta.text'; fields: meta"):
        desk.made("x.*", field="meta.text")


def test_grouping_files_looks_at_each_once() -> None:
    looks = 0

    class Counted(CorpusFile):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "bytes"
            return super().__getattribute__(name)

    files = [Counted(f"{number}", 1000, f"{number}", ".txt", "", "") for number in range(500)]
    source = DomainSource(name="text", uri="file:///x", text_field="text")
    (unit,) = find_units(source, LocalFileSystem(), list(files), "")
    assert len(unit.files) == 500
    assert looks <= 2 * 500


# ------------------------------------------------------------------------------ stop and go on


def in_units(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: int, documents_each: int = 20
) -> None:
    """So many files of so many documents, each of which is a unit."""
    texts = documents(files * documents_each)
    for number in range(files):
        own = texts[number * documents_each :][:documents_each]
        write_json_lines(folder / f"{number:02}.jsonl", own)
    monkeypatch.setattr(units_module, "UNIT_BYTES", 1)


def test_an_interrupted_preparation_continues_and_ends_the_same(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_units(tmp_path, monkeypatch, 4)
    task = domain_task(corpus, tmp_path / "store", f"{uri(tmp_path)}/*.jsonl")
    with pytest.raises(Interrupted):
        run(task, StopAfter(2))
    units = tmp_path / "store" / "data" / task.config.key / "units" / "text"
    done = {path.name: path.stat().st_mtime_ns for path in units.glob("*.json")}
    assert len(done) == 2
    read: list[str] = []
    original = units_module.read_documents
    monkeypatch.setattr(
        units_module,
        "read_documents",
        lambda f, x, t: (read.append(x.path), original(f, x, t))[1],
    )
    manifest = run(task)
    assert len(read) == 2
    straight = run(domain_task(corpus, tmp_path / "other", f"{uri(tmp_path)}/*.jsonl"))
    assert manifest.digest == straight.digest
    assert not units.exists()


def test_units_of_a_tokenizer_that_was_replaced_meanwhile_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = builders.make_corpus(tmp_path)
    monkeypatch.setattr(units_module, "UNIT_BYTES", 1)
    task = prepare_task(uri(corpus), uri(tmp_path / "store"))
    with pytest.raises(Interrupted):
        run(task, StopAfter(1))
    make_tokenizer(tmp_path / "tokenizer", documents(40), vocabulary=270)
    manifest = run(task)
    straight = run(prepare_task(uri(corpus), uri(tmp_path / "other")))
    assert manifest.digest == straight.digest


def _shards(store: Path) -> set[str]:
    return {path.name for path in store.glob("data/*/text/train-*")}


def _named(manifest: DataManifest) -> set[str]:
    shards = [shard.path for domain in manifest.domains for shard in domain.training]
    return {Path(path).name for shard in shards for path in (shard, windows_path(shard))}


def test_a_preparation_killed_at_any_write_ends_the_same_and_leaves_nothing_beside(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a file was replaced by an equal one meanwhile, whose unit has another name."""
    in_units(tmp_path, monkeypatch, 2)
    store, pattern = tmp_path / "store", f"{uri(tmp_path)}/*.jsonl"
    digest = run(domain_task(corpus, tmp_path / "other", pattern)).digest
    task, written = domain_task(corpus, store, pattern), [""]
    for number in itertools.count(1):
        with monkeypatch.context() as killed, suppress(Gone):
            written = at_write(killed, number, is_lost)
            run(task)
        if len(written) < number:
            break
        os.utime(tmp_path / "00.jsonl", (number, number))
        manifest = run(task)
        assert manifest.digest == digest, written
        assert _shards(store) == _named(manifest), written
        assert not list(store.glob("data/*/units")), written
        shutil.rmtree(store)
    assert number > 10


def test_a_manifest_that_another_job_has_written_stays_and_so_do_its_shards(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points may train on them already."""
    source, store = tmp_path / "a.jsonl", tmp_path / "store"
    write_json_lines(source, documents(80))
    task = domain_task(corpus, store, f"{uri(tmp_path)}/*.jsonl")
    first: list[DataManifest] = []

    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        os.utime(source, (1, 1))
        first.append(run(task))

    monkeypatch.setattr(prepare_module, "_await_units", meanwhile)
    output = prepare(task, Path("/nonexistent"), Interruption(), quiet())
    assert output.startswith("already prepared")
    path = layout.data_manifest(task.config.key)
    assert Store(task.store_uri).read_record(path, DataManifest) == first[0]
    assert _shards(store) == _named(first[0])


def test_shards_of_an_earlier_manifest_are_left_to_the_pods_that_read_it(
    corpus: Path, tmp_path: Path
) -> None:
    source, store = tmp_path / "a.jsonl", tmp_path / "store"
    write_json_lines(source, documents(80))
    task = domain_task(corpus, store, f"{uri(tmp_path)}/*.jsonl")
    earlier = run(task)
    path = store / layout.data_manifest(task.config.key)
    path.rename(f"{path}.unreadable-1")
    os.utime(source, (1, 1))
    later = run(task)
    assert _named(earlier) != _named(later)
    assert _shards(store) == _named(earlier) | _named(later)


def test_a_store_that_removes_nothing_does_not_hold_the_corpus_up(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise StoreUnavailable("s3://bucket: AccessDenied")

    monkeypatch.setattr(Store, "remove", refuses)
    assert run(prepare_task(uri(corpus), uri(tmp_path))).domains


def _pods(task: PrepareTask, monkeypatch: pytest.MonkeyPatch, indexes: list[int]) -> None:
    for index in indexes:
        monkeypatch.setenv(POD_INDEX_VARIABLE, str(index))
        prepare(task, Path("/nonexistent"), Interruption(), quiet())


def test_pods_of_one_job_share_the_units_and_make_the_same_corpus(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_units(tmp_path, monkeypatch, 5)
    alone = domain_task(corpus, tmp_path / "alone", f"{uri(tmp_path)}/*.jsonl")
    shared = domain_task(corpus, tmp_path / "store", f"{uri(tmp_path)}/*.jsonl")
    shared = shared.model_copy(update={"pods": 3})
    read: list[str] = []
    original = units_module.read_documents
    monkeypatch.setattr(
        units_module,
        "read_documents",
        lambda f, x, t: (read.append(Path(x.path).name), original(f, x, t))[1],
    )
    _pods(shared, monkeypatch, [2])
    assert read == ["02.jsonl"]
    store = Store(shared.store_uri)
    assert not store.exists(layout.data_manifest(shared.config.key))
    _pods(shared, monkeypatch, [1, 0])
    assert sorted(read) == [f"{number:02}.jsonl" for number in range(5)]
    monkeypatch.delenv(POD_INDEX_VARIABLE)
    manifest = store.read_record(layout.data_manifest(shared.config.key), DataManifest)
    assert manifest == run(alone)


def test_all_units_of_a_lost_pod_are_waited_for_once(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of them, by a clock of the test's."""
    in_units(tmp_path, monkeypatch, 20, 10)
    clock = Clock()
    monkeypatch.setattr(
        prepare_module, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep)
    )
    task = domain_task(corpus, tmp_path / "store", f"{uri(tmp_path)}/*.jsonl")
    manifest = run(task.model_copy(update={"pods": 2}))
    assert 0 <= clock.now - prepare_module.TAKEOVER_SECONDS <= 2 * prepare_module.POLL_SECONDS
    straight = run(domain_task(corpus, tmp_path / "other", f"{uri(tmp_path)}/*.jsonl"))
    assert manifest.digest == straight.digest


def test_a_pod_that_still_works_is_waited_for_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first of its units was prepared for it, it finished another."""
    in_units(tmp_path, monkeypatch, 6, 10)
    clock, taken, original = Clock(), list[float](), prepare_unit

    def taking(run: Preparation, unit: Unit) -> PreparedUnit:
        if clock.now:
            taken.append(clock.now)
        if len(taken) == 1:
            original(run, theirs)
        return original(run, unit)

    task = domain_task(corpus, tmp_path / "store", f"{uri(tmp_path)}/*.jsonl")
    task = task.model_copy(update={"pods": 2})
    digest = load_tokenizer(task.config.tokenizer).digest
    theirs = find_units(task.config.domains[0], *find_files(task.config.domains[0]), digest)[1]
    monkeypatch.setattr(
        prepare_module, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep)
    )
    monkeypatch.setattr(prepare_module, "prepare_unit", taking)
    run(task)
    assert taken[1] - taken[0] >= prepare_module.TAKEOVER_SECONDS


def test_a_pod_number_beyond_the_jobs_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadConfiguration, match=r"is for 1 pod$"):
        _pods(prepare_task(uri(corpus), uri(tmp_path)), monkeypatch, [1])


def test_training_and_validation_sequences_are_packed_alike(prepared: Prepared) -> None:
    """Both are consecutive stretches of closed documents, cut without regard to where these begin."""
    data = prepared.data
    length, end = prepared.manifest.sequence_length, prepared.manifest.end_token
    for domain in prepared.manifest.domains:
        stream = data.validation_stream(domain.name)
        fixed = DomainSequences.of(stream, end, length, 10**9).tokens
        training = data.training(domain.name)
        for windows in (fixed, [training.window(i) for i in range(training.sequences)]):
            assert all(len(window) == length + 1 for window in windows)
            assert all(a[-1] == b[0] for a, b in pairwise(windows))
            ends = np.concatenate([np.flatnonzero(window[:-1] == end) for window in windows])
            assert len(np.unique(ends)) > min(length, len(ends)) // 2


def test_shards_are_cut_at_documents(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units_module, "SHARD_TOKENS", 5000)
    manifest = run(prepare_task(uri(corpus), uri(tmp_path)))
    for domain in manifest.domains:
        assert len(domain.training) > 2
        assert sum(shard.tokens for shard in domain.training) == domain.training_tokens
        for shard in domain.training:
            path = tmp_path / "data" / manifest.prepare_key / shard.path
            tokens = np.fromfile(path, "<u4")
            assert tokens[-1] == manifest.end_token
            assert hashlib.sha256(path.read_bytes()).hexdigest() == shard.sha256
