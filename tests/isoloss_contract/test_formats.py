"""What is in the store outlives the version that wrote it: formats, keys and digests do not change by accident."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from isoloss.laws.document import LAWS_SCHEMA, LawsDocument
from isoloss_contract import layout
from isoloss_contract.ledger import Intent, IntentAction, Ledger, PointRecord, PointState
from isoloss_contract.ledger_files import SCHEMAS, VERSION, LedgerHead, decoded
from isoloss_contract.records import EvaluateConfig, PointConfig, PrepareConfig
from isoloss_contract.records.base import KEYED_SCHEMAS, content_key
from isoloss_contract.store import BadRecord, Store, parse_record
from isoloss_contract.trajectories import MAX_ROWS, read_finished
from isoloss_operator.store.fit_files import FIT_SCHEMA, FitRecord

FILES = Path(__file__).parent / "formats"
"""As the first version with these formats wrote them; they are never written again."""
KEYED = {
    "point": (PointConfig, "083c0594c7b727cdbf1e73928f0b0955"),
    "preparation": (PrepareConfig, "ca27a80afa0384dccf636a18d885ba29"),
    "evaluation": (EvaluateConfig, "1c85e4ea020bd6196801c2d1c1e2c6f4"),
}
PRUNED = (
    b'"flops_per_token":6000000.0,"intent":{"action":"Prune","tokens":300000000,"reason":"AboveLeader","bound":0.03}}\n'
    b'{"key":"00000000000000000000000000000002"'
)
LEDGER_DIGEST = "878537c80293af5249f277b593a429a211bc1ece4124d057389b1c7029c0066c"


@pytest.mark.parametrize("name", KEYED)
def test_a_configuration_of_an_earlier_version_is_read_and_keeps_its_key(name: str) -> None:
    """With another key every result in every store would be trained again."""
    model, key = KEYED[name]
    content = (FILES / f"{name}.json").read_bytes()
    assert parse_record(content, model, name).key == key


def test_a_ledger_of_an_earlier_version_is_read_and_keeps_its_digest() -> None:
    content = (FILES / "ledger-5.jsonl.gz").read_bytes()
    ledger, head = decoded(content, "ledger-5.jsonl.gz")
    assert (head.ledger_version, head.epoch) == (5, 7)
    assert [record.state for record in ledger.points] == [PointState.SUCCEEDED, PointState.PENDING]
    assert ledger.points[1].attempts.charged == {"Crashed": 2}
    assert len(ledger.former) == 1
    assert ledger.spent.flops == 3.5e15
    assert ledger.digest == LEDGER_DIGEST


def test_what_a_search_of_version_6_pruned_stays_where_it_is_and_its_repeats_go() -> None:
    content = gzip.decompress((FILES / "ledger-6.jsonl.gz").read_bytes())
    replaced = (
        (
            b'"state":"Succeeded","trained_for":1000000000',
            b'"state":"Succeeded","trained_for":300000000',
        ),
        (b'"flops_per_token":6000000.0}\n{"key":"00000000000000000000000000000002"', PRUNED),
        (b'"reason":"BudgetExhausted"}', b'"reason":"BudgetExhausted","bound":1e18}'),
        (
            b'"additions":[',
            b'"additions":[{"proxy":"small","batch_size":8,"learning_rate":0.001,"reason":"Replicate","seed":1},',
        ),
    )
    for old, new in replaced:
        assert old in content
        content = content.replace(old, new)
    ledger, _ = decoded(gzip.compress(content), "x")
    assert ledger.points[0].intent == Intent(IntentAction.RUN, 300_000_000, "AboveLeader")
    assert ledger.points[1].intent == Intent(IntentAction.PAUSE, 500_000_000, "BudgetExhausted")
    assert [added.reason for added in ledger.additions] == ["BeyondEdge"]


@pytest.mark.parametrize("version", [7, VERSION])
def test_a_ledger_with_a_corpus_is_read_and_keeps_its_digest(version: int) -> None:
    ledger, head = decoded((FILES / f"ledger-{version}.jsonl.gz").read_bytes(), "x")
    assert head.ledger_version == version
    assert ledger.corpus is not None
    assert ledger.corpus.sources_stamp == "5" * 32
    assert ledger.digest == "369411a4409cbdd265070c3a0703ccc0767cbf42433bcb10915056b3762b5417"


class NewerPoint(PointConfig):
    """With one more optional field."""

    mood: str = "bright"


class NewerPreparation(PrepareConfig):
    """With one more optional field."""

    mood: str = "bright"


class NewerEvaluation(EvaluateConfig):
    """With one more optional field."""

    mood: str = "bright"


class NewerLedger(Ledger):
    """With one more optional field."""

    mood: str = "bright"


@pytest.mark.parametrize(
    ("name", "newer"),
    [("point", NewerPoint), ("preparation", NewerPreparation), ("evaluation", NewerEvaluation)],
)
def test_another_optional_field_changes_no_key(name: str, newer: Any) -> None:
    content = (FILES / f"{name}.json").read_bytes()
    assert parse_record(content, newer, name).key == KEYED[name][1]
    other = parse_record(content, newer, name).model_copy(update={"mood": "grim"})
    assert other.key != KEYED[name][1]


def test_another_optional_field_changes_no_digest_of_a_ledger() -> None:
    ledger, _ = decoded((FILES / "ledger-5.jsonl.gz").read_bytes(), "x")
    fields = {name: getattr(ledger, name) for name in Ledger.model_fields}
    assert NewerLedger(**fields).digest == LEDGER_DIGEST
    assert NewerLedger(**fields, mood="grim").digest != LEDGER_DIGEST


def schema(model: Any) -> Any:
    """What a reader of a format refuses and takes, without what is there for people."""

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(each) for each in part]
        if not isinstance(part, dict):
            return part
        left_out = ("description", "title") if isinstance(part.get("description", ""), str) else ()
        return {name: plain(each) for name, each in part.items() if name not in left_out}

    return plain(TypeAdapter(model).json_schema())


def test_the_schema_of_the_ledger_does_not_change_without_its_version() -> None:
    """If this fails, add a version to ledger_files.SCHEMAS, and a file of it to formats/."""
    assert content_key([schema(LedgerHead), schema(PointRecord)]) == SCHEMAS[VERSION]


@pytest.mark.parametrize(
    ("model", "known"), [(LawsDocument, LAWS_SCHEMA), (FitRecord, FIT_SCHEMA)]
)
def test_the_schema_of_laws_and_fits_does_not_change_without_its_version(
    model: Any, known: str
) -> None:
    """If this fails, raise LAWS_VERSION or FIT_VERSION together with the hash beside it."""
    assert content_key(schema(model)) == known


@pytest.mark.parametrize("model", [PointConfig, PrepareConfig, EvaluateConfig])
def test_the_schema_of_what_has_a_key_does_not_change_unnoticed(model: Any) -> None:
    """If this fails, see records.base.KEYED_SCHEMAS: most changes need another CONTRACT_VERSION."""
    assert content_key(schema(model)) == KEYED_SCHEMAS[model.__name__]


KEY = "0" * 32


def test_a_trajectory_of_more_rows_than_any_run_has_is_refused_before_it_is_parsed(
    tmp_path: Path,
) -> None:
    content = b"\n" * (MAX_ROWS + 1)
    digest = hashlib.sha256(content).hexdigest()
    store = Store(f"file://{tmp_path}")
    store.write(layout.finished_trajectory(KEY, digest), content)
    with pytest.raises(BadRecord, match=rf"{digest}\.jsonl: 10001 rows, more than 10000"):
        read_finished(store, KEY, digest)
