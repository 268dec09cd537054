"""Which corpus a sweep trains on if another was prepared from the same addresses before."""

from dataclasses import replace

from isoloss_contract.ledger import Attempts
from isoloss_contract.reading import ABSENT, Unreadable, timestamp
from isoloss_contract.records import DataManifest, PrepareTask, TrainTask
from isoloss_operator.decide.checks import corpus_of_ledger
from isoloss_operator.decide.observation import LABEL_KEY, ObservedSweep
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.points import prepare_config
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support import builders

SPEC = parse_sweep_spec(builders.sweep_spec())
ASKED = prepare_config(SPEC).key
STAMP = "5" * 32
STAMPED = prepare_config(SPEC, STAMP)
OTHER = builders.manifest(prepare_key=STAMPED.key, sources_stamp=STAMP, digest="c" * 32)
"""Of the files that are there now."""


def moved(**changes: object) -> ObservedSweep:
    """A new sweep whose Job has said that its corpus is under the stamp."""
    fields = {"corpus_key": STAMPED.key, "manifest": OTHER, **changes}
    return builders.observed(**fields)


def begun(corpus: DataManifest = OTHER) -> ObservedSweep:
    world = builders.observed(corpus_key=corpus.prepare_key, manifest=corpus)
    return builders.after(world, decide_sweep(world))


def task_of(plan: SweepPlan) -> PrepareTask:
    (request,) = plan.create
    assert isinstance(request.task, PrepareTask)
    assert request.labels[LABEL_KEY] == ASKED, "found again whichever corpus it comes to"
    return request.task


def test_the_first_job_of_a_sweep_sees_which_corpus_is_of_the_sources_as_they_are() -> None:
    task = task_of(decide_sweep(builders.observed(manifest=ABSENT)))
    assert (task.sweep_uid, task.config.key) == (builders.UID, ASKED)


def test_points_train_on_the_corpus_that_was_prepared_anew_and_the_condition_says_so() -> None:
    plan = decide_sweep(moved())
    uris = {r.task.data_uri for r in plan.create if isinstance(r.task, TrainTask)}
    assert {uri.rpartition("/")[2] for uri in uris} == {STAMPED.key}
    assert {r.task.point.data_digest for r in plan.create if isinstance(r.task, TrainTask)} == {
        OTHER.digest
    }
    status, _, says = builders.condition(plan, "DataReady")
    assert status == "True"
    assert f"It is in data/{STAMPED.key}/: the files of its sources, or the tokenizer" in says
    assert f"data/{ASKED}/" in says
    assert any(says in event.message for event in plan.events)


def test_of_a_corpus_that_is_adopted_as_it_is_nothing_is_said() -> None:
    says = builders.condition(decide_sweep(builders.observed()), "DataReady")[2]
    assert "It is in" not in says


def test_the_ledger_knows_the_corpus_of_a_sweep_that_has_begun() -> None:
    for corpus, config in ((OTHER, STAMPED), (builders.manifest(), prepare_config(SPEC))):
        ledger = begun(corpus).ledger
        assert corpus_of_ledger(SPEC, ledger) == config  # type: ignore[arg-type]
    assert corpus_of_ledger(SPEC, None) is None
    fresh = decide_sweep(builders.observed(manifest=ABSENT)).ledger
    assert corpus_of_ledger(SPEC, fresh) is None


def test_a_sweep_that_has_begun_is_not_moved_though_its_data_are_gone() -> None:
    """Its Job prepares just the corpus that it had."""
    for corpus, config in ((OTHER, STAMPED), (builders.manifest(), prepare_config(SPEC))):
        world = replace(begun(corpus), manifest=ABSENT)
        task = task_of(decide_sweep(world))
        assert (task.sweep_uid, task.config) == ("", config)


def test_another_spec_of_data_is_another_corpus() -> None:
    data = {**builders.sweep_spec()["data"], "sequenceLength": 64}
    asked = parse_sweep_spec(builders.sweep_spec(data=data))
    assert corpus_of_ledger(asked, begun().ledger) is None  # type: ignore[arg-type]


def test_a_manifest_under_the_stamp_that_cannot_be_read_is_quarantined_and_no_other() -> None:
    plan = decide_sweep(moved(manifest=Unreadable("manifest.json: not JSON")))
    (aside,) = plan.quarantined
    assert aside.path == f"data/{STAMPED.key}/manifest.json"
    assert task_of(plan).sweep_uid == builders.UID


def test_a_manifest_of_another_key_than_the_job_said_is_not_believed() -> None:
    plan = decide_sweep(moved(manifest=builders.manifest()))
    assert "it is the manifest of" in builders.condition(plan, "Ready")[2]


def test_the_end_of_the_job_is_recorded_whichever_corpus_it_came_to() -> None:
    plan = decide_sweep(moved(jobs=(builders.complete(ASKED),)))
    assert builders.ledger_of(plan).preparation == Attempts(
        ended=1, last_ended_at=timestamp(builders.NOW)
    )
    assert builders.ledger_of(plan).corpus is not None
    assert builders.ledger_of(plan).corpus.sources_stamp == STAMP
    assert plan.expire or not plan.delete
