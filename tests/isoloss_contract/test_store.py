"""The store's promises on a real file system; tests/e2e and tests/isoloss_operator use a real S3 server."""

import json
import sys
from pathlib import Path

import pytest

from isoloss_contract import records
from isoloss_contract.store import (
    BadRecord,
    BadStoreUri,
    NewerRecord,
    NotFound,
    Store,
    StoreNotInstalled,
    backend,
    check_uri,
    parse_record,
    parse_record_lines,
)
from tests.isoloss_contract.conftest import OpenStore
from tests.support.results import LEAST_RESULT


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


def test_a_record_comes_back_as_it_was_written(store: Store) -> None:
    claimant = records.Claimant(sweep_uid="u", attempt=2)
    store.write_record("a/b.json", claimant)
    assert store.read_record("a/b.json", records.Claimant) == claimant


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"sweep_uid": "u", "attempt": "2"}', "attempt"),
        (b'{"sweep_uid": "u", "attempt": 2, "extra": 1}', "extra"),
        (b'{"sweep_uid": "u"', "EOF"),
        (b"", "EOF"),
        (b'{"sweep_uid": "u"}', "attempt: missing"),
    ],
    ids=["a number as text", "an unknown field", "truncated", "empty", "a missing field"],
)
def test_a_bad_record_is_refused_naming_file_and_field(
    store: Store, content: bytes, message: str
) -> None:
    store.write("r.json", content)
    with pytest.raises(BadRecord, match=rf"r\.json.*{message}"):
        store.read_record("r.json", records.Claimant)


def test_what_a_newer_trainer_reports_besides_is_passed_over() -> None:
    """So the images of trainer and operator can be upgraded one after the other."""
    counts = {**LEAST_RESULT["parameters"], "later": 2}
    result = {**LEAST_RESULT, "parameters": counts, "gradient_noise": 0.5}
    parsed = parse_record(json.dumps(result).encode(), records.PointResult, "result.json")
    assert (parsed.tokens, parsed.parameters.active) == (8, 2)
    row = b'{"step": 1, "tokens": 8, "loss": 1.5, "later": [], "domains": {"a": {"loss": "1", "x": 0}}}'
    with pytest.raises(BadRecord, match=r"domains\.a\.loss"):
        parse_record_lines(row, records.TrajectoryRow, "t.jsonl")  # a wrong type still is one
    (read,) = parse_record_lines(row.replace(b'"1"', b"1.0"), records.TrajectoryRow, "t.jsonl")
    assert read.loss == 1.5


@pytest.mark.parametrize("field", ["loss", "averaged_loss"])
@pytest.mark.parametrize("bad", ["-0.1", "NaN", "Infinity", '"2.5"'])
def test_a_loss_that_can_be_none_is_refused(field: str, bad: str) -> None:
    """No cross-entropy is negative or not finite."""
    text = json.dumps({**LEAST_RESULT, field: 2.5})
    assert parse_record(text.encode(), records.PointResult, "result.json")
    with pytest.raises(BadRecord, match=f"{field}|not JSON"):
        parse_record(
            text.replace(f'"{field}": 2.5', f'"{field}": {bad}').encode(),
            records.PointResult,
            "result.json",
        )


def test_what_a_task_says_besides_is_refused() -> None:
    """A trainer that passed over a field would train something else."""
    with pytest.raises(BadRecord, match="later"):
        parse_record(b'{"later": 1}', records.OptimizerConfig, "task")


@pytest.mark.parametrize("content", ['{"contract_version": 2}', '{"contract_version": 2, "x": 1}'])
def test_a_record_of_a_newer_contract_is_named_as_such(store: Store, content: str) -> None:
    store.write("r.json", content.encode())
    with pytest.raises(
        NewerRecord, match=r"r\.json: written by a newer isoloss .contract version 2"
    ):
        store.read_record("r.json", records.PointResult)


@pytest.mark.parametrize("version", ['"2"', "null", "0"])
def test_a_version_that_is_none_is_damage(store: Store, version: str) -> None:
    store.write("r.json", f'{{"contract_version": {version}}}'.encode())
    with pytest.raises(BadRecord, match="contract_version"):
        store.read_record("r.json", records.PointResult)


def test_a_bad_line_is_named_by_its_number() -> None:
    lines = b'{"sweep_uid": "u", "attempt": 1}\n{"sweep_uid": "u"}\n'
    with pytest.raises(BadRecord, match=r"t\.jsonl:2: attempt"):
        parse_record_lines(lines, records.Claimant, "t.jsonl")


def test_read_many_answers_every_path_with_a_record_or_an_error(store: Store) -> None:
    store.write_record("good", records.Claimant(sweep_uid="u", attempt=1))
    answers = store.read_many(["good", "absent"], records.Claimant)
    assert answers["good"] == records.Claimant(sweep_uid="u", attempt=1)
    assert isinstance(answers["absent"], NotFound)


def test_a_json_object_is_read_as_it_is(store: Store) -> None:
    store.write("config.json", b'{"model_type": "llama", "rope": [1e6, null]}')
    assert store.read_json_object("config.json") == {"model_type": "llama", "rope": [1e6, None]}


def test_numbers_that_json_has_no_word_for_are_read_as_transformers_writes_them(
    store: Store,
) -> None:
    """Python writes and reads them. Keys and ledgers take the other form."""
    content = b'{"limits": [0.0, Infinity], "scale": {"low": -Infinity, "x": NaN, "y": 1e999}}'
    store.write("config.json", content)
    found = store.read_json_object("config.json")
    infinity = {"__float__": "Infinity"}
    assert found == {
        "limits": [0.0, infinity],
        "scale": {"low": {"__float__": "-Infinity"}, "x": {"__float__": "NaN"}, "y": infinity},
    }
    assert records.content_key(found)
    store.write("config.json", json.dumps(found).encode())
    assert store.read_json_object("config.json") == found


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"3", "not a JSON object"),
        (b'{"a": 1} {}', "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "not JSON"),
        (b'{"a": "' + b"x" * 2**20 + b'"}', "larger than 1048576 bytes"),
    ],
    ids=["empty", "list", "number", "two objects", "invalid UTF-8", "deep", "large"],
)
def test_what_is_no_json_object_is_a_bad_record(store: Store, content: bytes, says: str) -> None:
    store.write("config.json", content)
    with pytest.raises(BadRecord, match=says):
        store.read_json_object("config.json")
    with pytest.raises(NotFound):
        store.read_json_object("absent.json")


@pytest.mark.parametrize("uri", ["http://x/y", "s3://", "s3:///x", "file:///a/../b", "dense"])
def test_an_unusable_uri_is_refused(uri: str) -> None:
    with pytest.raises(BadStoreUri):
        check_uri(uri)


def test_equal_content_has_equal_keys_whatever_the_order_of_fields() -> None:
    assert records.content_key({"a": 1, "b": [2.5]}) == records.content_key({"b": [2.5], "a": 1})
    assert records.content_key({"a": 1}) != records.content_key({"a": 2})


def test_a_prepare_key_depends_on_every_field_that_matters() -> None:
    base = {
        "tokenizer": "s3://b/t",
        "sequence_length": 128,
        "domains": (records.DomainSource(name="a", uri="s3://b/x", text_field="text"),),
        "validation_documents_per_thousand": 5,
    }
    other = {
        **base,
        "domains": (records.DomainSource(name="a", uri="s3://b/x", text_field="body"),),
    }
    assert records.PrepareConfig(**base).key != records.PrepareConfig(**other).key


@pytest.mark.parametrize("package", ["s3fs", "tenacity"])
def test_without_the_extra_the_store_names_it_and_the_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "isoloss_contract.store.s3", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreNotInstalled, match=r"s3://bucket/a: .*pip install '\.\[store\]'"):
        Store("s3://bucket/a")


def test_a_corpus_with_twins_across_the_split_copies_or_bad_documents_says_so() -> None:
    shard = {"path": "a", "tokens": 9, "sha256": "0" * 64}
    domain = {
        "name": "prose",
        "training": [],
        "training_documents": 900,
        "training_tokens": 9,
        "training_bytes": 9,
        "validation": shard,
        "validation_documents": 100,
        "validation_tokens": 9,
        "validation_bytes": 9,
        "validation_lengths": shard,
    }

    def remarks(per_thousand: int = 100, **changes: int) -> list[str]:
        manifest = {
            "prepare_key": "0" * 32,
            "digest": "0" * 32,
            "tokenizer_digest": "0" * 32,
            "vocabulary_size": 2,
            "end_token": 0,
            "sequence_length": 8,
            "domains": [{**domain, **changes}],
        }
        return records.DataManifest.model_validate_json(json.dumps(manifest)).remarks(per_thousand)

    assert remarks(near_duplicates=3) == []
    (twins,) = remarks(near_duplicates=4)
    assert "Of the held-out documents of prose 4% have a near-identical one" in twins
    assert remarks(training_documents=1300) == []
    (copies,) = remarks(training_documents=1800)
    assert "About 50% of the documents of prose are copies of others" in copies
    assert remarks(per_thousand=5, training_documents=1800, validation_documents=4) == []
    (bad,) = remarks(bad_documents=7)
    assert bad == "Skipped 7 documents of prose that cannot be read."


def test_a_folder_with_too_many_names_is_refused(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    monkeypatch.setattr(backend, "MAX_NAMES", 3)
    for number in range(3):
        store.write(f"points/{number}", b"")
    assert len(store.names("points")) == 3
    store.write("points/3", b"")
    with pytest.raises(BadRecord, match="points: more than 3 names"):
        store.names("points")
