"""A corpus that was prepared before is adopted by another sweep if its sources are as they were, and by no other."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import isoloss_trainer.prepare as prepare_module
import isoloss_trainer.units as units_module
from isoloss_contract import layout
from isoloss_contract.records import (
    POD_INDEX_VARIABLE,
    DataManifest,
    DomainSource,
    PrepareTask,
    SweepCorpus,
)
from isoloss_contract.store import Store
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import BadData, Interruption
from tests.isoloss_trainer import builders

TEXTS = builders.documents(120, 172_000)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two files and a tokenizer."""
    folder = tmp_path / "sources"
    builders.write_json_lines(folder / "a.jsonl", TEXTS[:60])
    builders.write_json_lines(folder / "b.jsonl", TEXTS[60:100])
    builders.make_tokenizer(folder / "tokenizer", TEXTS)
    return folder


def task_of(sources: Path, sweep: str) -> PrepareTask:
    """The task of a sweep that has no corpus yet; empty: of one that has."""
    source = DomainSource(name="text", uri=f"{builders.uri(sources)}/*.jsonl", text_field="text")
    task = builders.prepare_task(
        builders.uri(sources), builders.uri(sources.parent / "store"), domains=(source,)
    )
    return task.model_copy(update={"sweep_uid": sweep})


def run(task: PrepareTask) -> str:
    return prepare(task, Path("/nonexistent"), Interruption(), builders.quiet())


def corpus_of(task: PrepareTask) -> DataManifest:
    """What the sweep of the task is told."""
    store = Store(task.store_uri)
    reported = store.read_record(layout.corpus_of(task.config.key, task.sweep_uid), SweepCorpus)
    manifest = store.read_record(layout.data_manifest(reported.prepare_key), DataManifest)
    assert manifest.sources_stamp == reported.sources_stamp
    assert manifest.prepare_key == reported.prepare_key
    return manifest


def prepared_for(sources: Path, sweep: str) -> DataManifest:
    task = task_of(sources, sweep)
    run(task)
    return corpus_of(task)


def rewritten(path: Path, texts: list[str]) -> None:
    """A file that is replaced within the same second."""
    before = path.stat()
    builders.write_json_lines(path, texts)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))


def test_the_same_sources_are_adopted_as_they_are(sources: Path) -> None:
    first = prepared_for(sources, "first")
    task = task_of(sources, "second")
    assert run(task).startswith("already prepared")
    assert corpus_of(task) == first
    assert first.prepare_key == task.config.key, "the first corpus has the key of its URIs"


def _change_normalizer(sources: Path) -> None:
    """With the vocabulary that it had."""
    path = sources / "tokenizer" / "tokenizer.json"
    found = json.loads(path.read_text())
    found["normalizer"] = {"type": "NFC"}
    path.write_text(json.dumps(found))


def _add_file(sources: Path) -> None:
    builders.write_json_lines(sources / "c.jsonl", TEXTS[100:])


def _remove_file(sources: Path) -> None:
    (sources / "b.jsonl").unlink()


def _other_time(sources: Path) -> None:
    """And as many bytes of another content."""
    rewritten(sources / "b.jsonl", TEXTS[60:100][::-1])
    os.utime(sources / "b.jsonl", (1, 1))


CHANGES: dict[str, Callable[[Path], object]] = {
    "another tokenizer": lambda folder: builders.make_tokenizer(folder / "tokenizer", TEXTS[:20]),
    "another normalizer": _change_normalizer,
    "a file more": _add_file,
    "a file less": _remove_file,
    "another name": lambda folder: (folder / "b.jsonl").rename(folder / "c.jsonl"),
    "another size": lambda folder: rewritten(folder / "b.jsonl", TEXTS[60:110]),
    "another time": _other_time,
    "the same size and time": lambda folder: rewritten(folder / "b.jsonl", TEXTS[60:100][::-1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_sources_at_the_same_address_are_prepared_under_another_key(
    sources: Path, change: str
) -> None:
    former = prepared_for(sources, "first")
    CHANGES[change](sources)
    found = prepared_for(sources, "second")
    assert found.prepare_key != former.prepare_key
    assert found.sources_stamp != former.sources_stamp
    store = Store(task_of(sources, "x").store_uri)
    assert store.read_record(layout.data_manifest(former.prepare_key), DataManifest) == former
    task = task_of(sources, "third")
    assert run(task).startswith("already prepared")
    assert corpus_of(task) == found, "what was prepared under the stamp is adopted, too"


def test_sources_that_come_back_are_the_former_corpus(sources: Path) -> None:
    former = prepared_for(sources, "first")
    kept = (sources / "b.jsonl").rename(sources.parent / "kept")
    prepared_for(sources, "second")
    kept.rename(sources / "b.jsonl")
    assert prepared_for(sources, "third") == former


def test_files_that_were_only_written_again_give_the_same_corpus_and_so_the_same_points(
    sources: Path,
) -> None:
    """Under another key; points are named by the digest."""
    former = prepared_for(sources, "first")
    for path in sources.glob("*.jsonl"):
        os.utime(path, (1, 1))
    found = prepared_for(sources, "second")
    assert found.prepare_key != former.prepare_key
    assert found.digest == former.digest


@pytest.mark.parametrize("damage", ["not JSON", "of another key", "without a stamp", "empty"])
def test_a_manifest_that_says_nothing_of_its_sources_is_not_adopted(
    sources: Path, damage: str
) -> None:
    former = prepared_for(sources, "first")
    contents = {
        "not JSON": b"{",
        "empty": b"",
        "of another key": former.model_copy(update={"prepare_key": "a" * 32})
        .model_dump_json()
        .encode(),
        "without a stamp": former.model_dump_json(exclude={"sources_stamp"}).encode(),
    }
    store = Store(task_of(sources, "x").store_uri)
    store.write(layout.data_manifest(former.prepare_key), contents[damage])
    found = prepared_for(sources, "second")
    assert found.prepare_key != former.prepare_key
    assert found.digest == former.digest


def test_a_sweep_hears_of_its_corpus_though_the_manifest_under_the_stamp_cannot_be_read(
    sources: Path,
) -> None:
    """It then has that set aside."""
    former = prepared_for(sources, "first")
    _add_file(sources)
    found = prepared_for(sources, "second")
    task, store = task_of(sources, "third"), Store(task_of(sources, "x").store_uri)
    store.write(layout.data_manifest(found.prepare_key), b"{")
    with pytest.raises(Exception, match=r"manifest\.json"):
        run(task)
    reported = store.read_record(layout.corpus_of(former.prepare_key, "third"), SweepCorpus)
    assert reported.prepare_key == found.prepare_key


def test_of_two_sweeps_at_once_the_slower_adopts_the_corpus_of_the_same_sources(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = task_of(sources, "first"), task_of(sources, "second")

    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        run(second)

    monkeypatch.setattr(prepare_module, "_await_units", meanwhile)
    assert run(first).startswith("already prepared")
    assert corpus_of(first) == corpus_of(second)


def test_of_two_sweeps_at_once_each_gets_the_corpus_of_the_files_that_it_saw(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are replaced between them, and the slower one had listed the former ones: it looks again."""
    first, second = task_of(sources, "first"), task_of(sources, "second")
    kept = (sources / "b.jsonl").read_bytes()
    age = (sources / "b.jsonl").stat().st_mtime_ns

    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        (sources / "b.jsonl").unlink()
        run(second)
        (sources / "b.jsonl").write_bytes(kept)
        os.utime(sources / "b.jsonl", ns=(age, age))

    monkeypatch.setattr(prepare_module, "_await_units", meanwhile)
    run(first)
    assert corpus_of(first).prepare_key != corpus_of(second).prepare_key
    assert corpus_of(first).domains[0].training_documents > (
        corpus_of(second).domains[0].training_documents
    )


def test_the_first_of_several_pods_tells_the_sweep(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units_module, "UNIT_BYTES", 1)
    prepared_for(sources, "first")
    _add_file(sources)
    task = task_of(sources, "second").model_copy(update={"pods": 2})
    reported = Store(task.store_uri).location(layout.corpus_of(task.config.key, "second"))
    monkeypatch.setenv(POD_INDEX_VARIABLE, "1")
    run(task)
    assert not Path(reported.removeprefix("file://")).exists()
    monkeypatch.setenv(POD_INDEX_VARIABLE, "0")
    run(task)
    assert corpus_of(task).domains[0].training_documents > 0


def test_a_sweep_that_has_begun_gets_its_corpus_again_whatever_its_sources_are_now(
    sources: Path,
) -> None:
    """That of another digest is the operator's to refuse."""
    former = prepared_for(sources, "first")
    _add_file(sources)
    assert run(task_of(sources, "")).startswith("already prepared")
    store = Store(task_of(sources, "x").store_uri)
    store.remove(layout.data_folder(former.prepare_key))
    run(task_of(sources, ""))
    again = store.read_record(layout.data_manifest(former.prepare_key), DataManifest)
    assert again.digest != former.digest


def test_a_corpus_under_a_stamp_is_prepared_again_from_no_other_sources(sources: Path) -> None:
    """A sweep that began with it finds its data gone."""
    former = prepared_for(sources, "first")
    _add_file(sources)
    found = prepared_for(sources, "second")
    begun = task_of(sources, "")
    config = begun.config.model_copy(update={"sources_stamp": found.sources_stamp})
    begun = begun.model_copy(update={"config": config})
    store = Store(begun.store_uri)
    store.remove(layout.data_folder(found.prepare_key))
    run(begun)
    again = store.read_record(layout.data_manifest(found.prepare_key), DataManifest)
    assert (again.digest, again.sources_stamp) == (found.digest, found.sources_stamp)
    store.remove(layout.data_folder(found.prepare_key))
    _remove_file(sources)
    with pytest.raises(BadData, match="not those that the sweep began with"):
        run(begun)
    assert former.prepare_key in store.names(layout.DATA)
