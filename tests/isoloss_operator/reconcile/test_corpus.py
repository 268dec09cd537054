"""Which corpus a pass reads for a sweep and for its predictions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Read, Unanswered, Unreadable
from isoloss_contract.records import SweepCorpus
from isoloss_contract.store import Store
from isoloss_operator.decide.observation import ObservedReference
from isoloss_operator.decide.reads import first_reads
from isoloss_operator.planning.points import prepare_config, without_shards
from isoloss_operator.planning.specs import parse_sweep_spec
from isoloss_operator.reconcile.references import (
    corpora_of,
    corpus_of_sweep,
    manifest_of,
    with_corpus,
)
from isoloss_operator.store.storage import Storage
from tests.support.builders import UID, manifest, observed, stated, sweep_spec
from tests.support.predictions import observed as predicted

STAMP = "5" * 32


class Scene:
    """A store in a folder, and a sweep in it."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"file://{folder}"
        self.raw = sweep_spec(storage={"uri": self.uri})
        self.spec = parse_sweep_spec(self.raw)
        self.asked = prepare_config(self.spec).key
        self.stamped = prepare_config(self.spec, STAMP).key
        self.store = Store(self.uri)
        self.services: Any = SimpleNamespace(storage=Storage())

    def tell(self, content: SweepCorpus | bytes) -> None:
        """What the Job of the sweep leaves."""
        written = content if isinstance(content, bytes) else content.model_dump_json().encode()
        self.store.write(layout.corpus_of(self.asked, UID), written)

    def corpus(self, ledger: Ledger | None = None) -> Read[str]:
        reads = first_reads(self.reference())
        assert reads is not None
        return corpus_of_sweep(self.services, reads, self.spec, ledger)

    def reference(self, **status: Any) -> ObservedReference:
        return ObservedReference("demo", UID, 1, self.spec, status)

    def manifest(self, **status: Any) -> Read[Any]:
        """As a prediction reads it."""
        reference = self.reference(**status)
        reads = first_reads(reference)
        assert reads is not None
        return manifest_of(self.services, reads, reference)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def begun(scene: Scene, key: str, stamp: str) -> Ledger:
    corpus = manifest(scene.raw, prepare_key=key, sources_stamp=stamp)
    return Ledger(
        sweep="demo", namespace="research", uid=UID, prepare_key=scene.asked, corpus=corpus
    )


def test_a_new_sweep_has_none_before_its_job_has_said_which(scene: Scene) -> None:
    """Though one of these addresses is there: of which files, nobody has looked."""
    found = manifest(scene.raw)
    scene.store.write(layout.data_manifest(scene.asked), found.model_dump_json().encode())
    assert scene.corpus() == ABSENT


@pytest.mark.parametrize("is_stamped", [False, True])
def test_what_the_job_said_is_followed(scene: Scene, *, is_stamped: bool) -> None:
    key = scene.stamped if is_stamped else scene.asked
    scene.tell(SweepCorpus(prepare_key=key, sources_stamp=STAMP))
    assert scene.corpus() == key


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"prepare_key": 3}',
        SweepCorpus(prepare_key="a" * 32, sources_stamp=STAMP),
        SweepCorpus(prepare_key="a" * 32),
    ],
    ids=["not JSON", "a list", "a number", "of another spec", "of another spec, without a stamp"],
)
def test_what_no_job_of_this_sweep_can_have_said_is_not(
    scene: Scene, content: SweepCorpus | bytes
) -> None:
    """The Job runs again and writes over it."""
    scene.tell(content)
    assert scene.corpus() == ABSENT


@pytest.mark.parametrize("is_stamped", [False, True])
def test_a_sweep_that_has_begun_keeps_its_corpus(scene: Scene, *, is_stamped: bool) -> None:
    key, other = scene.asked, scene.stamped
    if is_stamped:
        key, other = other, key
    scene.tell(SweepCorpus(prepare_key=other, sources_stamp=STAMP))
    assert scene.corpus(begun(scene, key, STAMP)) == key


def test_a_store_that_does_not_say_is_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "sweep_corpus", lambda *_: Unanswered("s3://bucket: timeout"))
    assert scene.corpus() == Unanswered("s3://bucket: timeout")
    assert scene.manifest() == Unanswered("s3://bucket: timeout")


def test_a_prediction_reads_the_corpus_of_its_sweep(scene: Scene) -> None:
    for key, digest in ((scene.asked, "d" * 32), (scene.stamped, "c" * 32)):
        found = manifest(scene.raw, prepare_key=key, digest=digest)
        scene.store.write(layout.data_manifest(key), found.model_dump_json().encode())
    assert scene.manifest() == ABSENT, "nothing is measured on a corpus that may be of other files"
    assert scene.manifest(dataDigest="d" * 32).digest == "d" * 32, "of an earlier version"
    scene.tell(SweepCorpus(prepare_key=scene.stamped, sources_stamp=STAMP))
    assert scene.manifest().digest == "c" * 32


def test_a_prediction_finds_the_corpus_of_a_finished_sweep_though_its_former_place_is_gone(
    scene: Scene,
) -> None:
    """What the Job said goes with the folder of the former corpus: the present one was said to be gone, too."""
    present = manifest(scene.raw, prepare_key=scene.stamped, sources_stamp=STAMP)
    scene.store.write(layout.data_manifest(scene.stamped), present.model_dump_json().encode())
    reads = first_reads(scene.reference())
    assert reads is not None
    ready = stated("Ready", "True", "FitAccepted")
    status = {"dataDigest": present.digest, "conditions": [ready]}
    scene.services.ledgers = SimpleNamespace(corpus=lambda *_: without_shards(present))
    reference = scene.reference(**status)
    found, recorded = corpora_of(scene.services, reads, predicted(sweep=reference))
    assert recorded == without_shards(present)
    assert found == present
    scene.store.remove(layout.data_manifest(scene.stamped))
    scene.services.storage = Storage()
    found, recorded = corpora_of(scene.services, reads, predicted(sweep=reference))
    assert (found, recorded) == (ABSENT, without_shards(present))


@pytest.mark.parametrize(
    ("status", "ledger", "is_found"),
    [
        ({"dataDigest": "d" * 32}, Unreadable("truncated"), True),
        ({"dataDigest": "d" * 32}, ABSENT, True),
        ({"dataDigest": "c" * 32}, ABSENT, False),
        ({}, ABSENT, False),
        ({"dataDigest": "d" * 32}, Ledger(sweep="demo", namespace="research", uid=UID), False),
    ],
    ids=["damaged", "gone", "another corpus", "a new sweep", "an edit of the data"],
)
def test_a_sweep_of_an_earlier_version_finds_its_corpus_again_without_its_ledger(
    scene: Scene, status: dict[str, str], ledger: Read[Ledger], *, is_found: bool
) -> None:
    """No Job has said which it is: its running Jobs were stopped, and all was tokenized again."""
    stored = manifest(scene.raw, digest="d" * 32)
    scene.store.write(layout.data_manifest(scene.asked), stored.model_dump_json().encode())
    reads = first_reads(scene.reference())
    assert reads is not None
    world = observed(scene.raw, manifest=ABSENT, status=status, ledger=ledger)
    seen = with_corpus(scene.services, reads, world)
    if is_found:
        assert (seen.corpus_key, seen.manifest) == (scene.asked, stored)
    else:
        assert (seen.corpus_key, seen.manifest) == ("", ABSENT)
