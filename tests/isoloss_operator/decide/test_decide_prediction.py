"""What happens next with a prediction: answers from final laws, refusals in words, stale answers marked."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from isoloss.usual import RATIO_EXPONENT
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Newer, Read, Unanswered, Unreadable
from isoloss_contract.records import EvaluateTask, ExitCode
from isoloss_operator.api.statuses import IntervalStatus
from isoloss_operator.decide.observation import (
    ObservedJob,
    ObservedPod,
    ObservedPrediction,
    PublishedAnswer,
)
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.prediction_checks import needs_corpus
from isoloss_operator.decide.reads import evaluation_path, first_reads
from isoloss_operator.reconcile.status_writes import failed_pass, internal_error
from tests.support.builders import (
    NOW,
    STORE,
    condition,
    ledger_of,
    manifest,
    parsed,
    sweep_spec,
    words,
)
from tests.support.ledgers import read_back
from tests.support.predictions import (
    CHECKPOINT,
    CONFIG,
    LAWS_SHA,
    SWEEP_UID,
    after,
    answered,
    ended,
    evaluation,
    fit,
    given_loss,
    job,
    observed,
    parsed_prediction,
    prediction_spec,
    recorded,
    refused,
    sweep,
)
from tests.support.synthetic_runs import fitted_laws, one_batch_size_laws

README = Path(__file__).parents[3] / "operator" / "README.md"


@dataclass(frozen=True)
class Row:
    """One state of a prediction."""

    world: Callable[[], ObservedPrediction]
    ready: tuple[str, str]
    creates: int = 0
    stale: str = "False"
    stalled: bool = False
    has_answer: bool = False
    also: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    says: str = ""


ROWS: dict[str, Row] = {
    "both checkpoint and initialLoss are refused": Row(
        lambda: observed(prediction_spec(initialLoss="3.2")),
        ("False", "InvalidSpec"),
        stalled=True,
        says="set exactly one of checkpoint and initialLoss",
    ),
    "storage that the namespace may not use is refused": Row(
        lambda: observed(storage_refusal="research may use s3://bucket only"),
        ("False", "StorageNotAllowed"),
        stalled=True,
    ),
    "a sweepRef to nothing waits for it": Row(
        lambda: observed(sweep=None, manifest=ABSENT, fit=ABSENT, evaluation=ABSENT),
        ("False", "SweepNotFound"),
        says="no ScalingSweep demo",
    ),
    "an answer is kept, stale, when its sweep is deleted": Row(
        lambda: answered(sweep=None, manifest=ABSENT, fit=ABSENT),
        ("True", "Predicted"),
        stale="True",
        has_answer=True,
        also={"Stale": ("True", "SweepNotFound")},
    ),
    "a sweep with an invalid spec is waited for": Row(
        lambda: observed(sweep=sweep(spec=parsed({"nonsense": 1}))),
        ("False", "SweepInvalid"),
    ),
    "a store that does not answer is waited for": Row(
        lambda: observed(store_error="s3://bucket: timeout"),
        ("False", "StorageUnreachable"),
    ),
    "an answer is kept as it is while the store does not answer": Row(
        lambda: answered(store_error="s3://bucket: timeout"),
        ("True", "Predicted"),
        has_answer=True,
        also={"Accepted": ("False", "StorageUnreachable")},
    ),
    "before the corpus is prepared nothing can be measured": Row(
        lambda: observed(
            manifest=ABSENT, fit=ABSENT, evaluation=ABSENT, sweep=sweep("False", "PreparingData")
        ),
        ("False", "SweepNotReady"),
        says="PreparingData",
    ),
    "an unmeasured checkpoint cannot be measured on a corpus that is gone": Row(
        lambda: observed(manifest=ABSENT, corpus=manifest(), evaluation=ABSENT),
        ("False", "DataRemoved"),
        stalled=True,
        says="put it back, or give spec.initialLoss",
        also={"Evaluated": ("False", "DataRemoved")},
    ),
    "a checkpoint is not measured on another corpus than that of the laws": Row(
        lambda: observed(manifest=manifest(digest="c" * 32), corpus=manifest(), evaluation=ABSENT),
        ("False", "DataRemoved"),
        stalled=True,
    ),
    "an answer is kept, stale, when its checkpoint is replaced and the corpus is gone": Row(
        lambda: answered(
            manifest=ABSENT, corpus=manifest(), checkpoint_stamp="6" * 64, evaluation=ABSENT
        ),
        ("True", "Predicted"),
        stale="True",
        stalled=True,
        has_answer=True,
        also={"Stale": ("True", "DataRemoved")},
    ),
    "while the evaluate Job runs nothing else starts": Row(
        lambda: observed(evaluation=ABSENT, jobs=(job(),)),
        ("False", "Evaluating"),
    ),
    "an evaluate pod without its secret says so": Row(
        lambda: observed(
            evaluation=ABSENT,
            jobs=(job(pod=ObservedPod(waiting_reason="CreateContainerConfigError")),),
        ),
        ("False", "SecretMissing"),
    ),
    "a folder that is not a checkpoint stalls with the trainer's message": Row(
        lambda: observed(
            evaluation=ABSENT,
            jobs=(ended(ExitCode.BAD_DATA, words("NotACheckpoint", "no config.json")),),
        ),
        ("False", "NotACheckpoint"),
        stalled=True,
        says="no config.json",
    ),
    "a folder that is not a checkpoint is tried again after a while": Row(
        lambda: recorded(
            ended(ExitCode.BAD_DATA, words("NotACheckpoint", "no config.json")),
            ago=timedelta(seconds=31),
        ),
        ("False", "NotACheckpoint"),
        creates=1,
        stalled=True,
    ),
    "an interrupted evaluation starts again at once": Row(
        lambda: observed(evaluation=ABSENT, jobs=(ended(ExitCode.INTERRUPTED),)),
        ("False", "WaitingToRetry"),
        creates=1,
    ),
    "an unreadable evaluation is quarantined and made again": Row(
        lambda: observed(evaluation=Unreadable("result.json: loss: nan")),
        ("False", "Evaluating"),
        creates=1,
    ),
    "the result of another evaluation is quarantined": Row(
        lambda: observed(evaluation=evaluation(key="0" * 32)),
        ("False", "Evaluating"),
        creates=1,
    ),
    "an unmeasured checkpoint gets its evaluate Job even before the laws are there": Row(
        lambda: observed(evaluation=ABSENT, fit=ABSENT, sweep=sweep("False", "Training")),
        ("False", "Evaluating"),
        creates=1,
        also={"Reconciling": ("True", "Converging")},
    ),
    "refused laws give no answer, for their own reason": Row(
        lambda: observed(
            fit=fit(refused()), sweep=sweep("False", "NoCommonLossRange", "Train longer.")
        ),
        ("False", "NoCommonLossRange"),
        stalled=True,
        says="Train longer.",
    ),
    "an answer is withdrawn when the new laws are refused": Row(
        lambda: answered(
            fit=fit(refused()), sweep=sweep("False", "NoCommonLossRange", generation=2)
        ),
        ("False", "NoCommonLossRange"),
        stalled=True,
    ),
    "while the sweep trains there is no answer": Row(
        lambda: observed(fit=ABSENT, sweep=sweep("False", "Training", "3 of 8 points are done.")),
        ("False", "SweepNotReady"),
        says="3 of 8 points",
    ),
    "provisional laws give numbers to look at, not an answer": Row(
        lambda: observed(fit=fit(fitted_laws(provisional=True)), sweep=sweep("False", "Training")),
        ("False", "Provisional"),
        has_answer=True,
    ),
    "an answer is kept, stale, while its sweep trains again": Row(
        lambda: answered(fit=ABSENT, sweep=sweep("False", "Training", generation=2)),
        ("True", "Predicted"),
        stale="True",
        has_answer=True,
    ),
    "an answer is kept, stale, until the operator has seen the changed sweep": Row(
        lambda: answered(sweep=sweep(generation=2, observed_generation=1)),
        ("True", "Predicted"),
        stale="True",
        has_answer=True,
        also={"Stale": ("True", "SweepChanged")},
    ),
    "an answer is withdrawn when the prediction's own spec changes": Row(
        lambda: answered(
            generation=2,
            spec=parsed_prediction(prediction_spec(budget={"flops": "2e19"})),
            fit=ABSENT,
            sweep=sweep("False", "Training"),
        ),
        ("False", "SweepNotReady"),
    ),
    "laws that cannot be read are waited for": Row(
        lambda: observed(fit=ABSENT), ("False", "LawsUnreadable")
    ),
    "laws other than those the sweep names are not used": Row(
        lambda: observed(fit=fit(laws_sha256="0" * 64)), ("False", "LawsUnreadable")
    ),
    "an initial loss at or below L0 is refused": Row(
        lambda: observed(given_loss("0.5")),
        ("False", "InitialLossBelowIrreducible"),
        stalled=True,
    ),
    "an extrapolation beyond the limit is refused": Row(
        lambda: observed(prediction_spec(budget={"flops": "1e26"})),
        ("False", "ExtrapolationTooFar"),
        stalled=True,
    ),
    "a ConfigMap of another owner is left alone": Row(
        lambda: observed(config_map_foreign=True),
        ("False", "ConfigMapTaken"),
        stalled=True,
        has_answer=True,
    ),
    "a ConfigMap of a deleted prediction of this name is waited for": Row(
        lambda: observed(config_map_foreign=True, config_map_goes=True),
        ("False", "ConfigMapTaken"),
        has_answer=True,
        says="Kubernetes is about to remove it",
    ),
    "a ConfigMap that the API server refuses is named": Row(
        lambda: observed(publish_error="ConfigMap answer: 422 name must be lowercase"),
        ("False", "ConfigMapRefused"),
        stalled=True,
        has_answer=True,
        says="spec.publish: ConfigMap answer: 422",
    ),
    "a ConfigMap refused for its quota is tried again": Row(
        lambda: observed(publish_error="exceeded quota", publish_error_may_pass=True),
        ("False", "ConfigMapRefused"),
        has_answer=True,
    ),
    "another write that the API server refuses is named": Row(
        lambda: observed(write_error="PATCH jobs/target: 403 forbidden"),
        ("True", "Predicted"),
        has_answer=True,
        also={"Accepted": ("False", "RequestRefused")},
    ),
    "a measured checkpoint and final laws give an answer": Row(
        observed,
        ("True", "Predicted"),
        has_answer=True,
        also={"Evaluated": ("True", "Evaluated"), "Accepted": ("True", "Accepted")},
    ),
    "a measured checkpoint needs the corpus no more": Row(
        lambda: observed(manifest=ABSENT, corpus=manifest()),
        ("True", "Predicted"),
        has_answer=True,
    ),
    "a given initial loss needs no measurement": Row(
        lambda: observed(given_loss("3.2"), evaluation=ABSENT),
        ("True", "Predicted"),
        has_answer=True,
        also={"Evaluated": ("True", "InitialLossGiven")},
    ),
    "a budget in tokens takes the checkpoint's parameters": Row(
        lambda: observed(prediction_spec(budget={"tokens": 2_000_000_000})),
        ("True", "Predicted"),
        has_answer=True,
    ),
    "a new answer replaces a stale one": Row(
        lambda: answered(sweep=sweep(generation=3)),
        ("True", "Predicted"),
        has_answer=True,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_state(name: str) -> None:
    """The row's sentence holds."""
    row = ROWS[name]
    plan = decide_prediction(row.world())
    assert condition(plan, "Ready")[:2] == row.ready
    assert row.says in condition(plan, "Ready")[2]
    assert len(plan.create) == row.creates
    assert condition(plan, "Stale")[0] == row.stale
    assert condition(plan, "Stalled")[0] == str(row.stalled)
    assert (plan.status.learning_rate is not None) == row.has_answer
    for kind, expected in row.also.items():
        assert condition(plan, kind)[:2] == expected


def happens(row: Row) -> str:
    """The last column of the README's table."""
    parts = ["starts the evaluate Job"] if row.creates else []
    if row.has_answer:
        parts.append("shows a stale answer" if row.stale == "True" else "shows the answer")
    parts += ["Stalled"] if row.stalled else []
    return "; ".join(parts) or "waits"


def test_the_state_table_in_the_readme_names_the_same_rows() -> None:
    """Row for row, in the order of the checks: sentence, Ready's reason and what happens."""
    table = README.read_text().split("<!-- prediction states -->")[1]
    found = re.findall(r"^\| (.+?) \| `(\w+)` \| (.+?) \|$", table, flags=re.MULTILINE)
    assert found == [(name, row.ready[1], happens(row)) for name, row in ROWS.items()]


@pytest.mark.parametrize("name", ROWS)
def test_what_is_published_has_numbers_exactly_when_ready(name: str) -> None:
    """A pipeline that reads the ConfigMap cannot continue with a withdrawn or provisional number."""
    plan = decide_prediction(ROWS[name].world())
    if plan.publish is None:
        assert ROWS[name].ready[1] in ("InvalidSpec", "ConfigMapTaken")
        return
    is_ready = ROWS[name].ready[0] == "True"
    assert plan.publish.data["ready"] == str(is_ready).lower()
    assert ("learningRate" in plan.publish.data) == is_ready
    assert ("batchSize" in plan.publish.data) == is_ready
    if is_ready:
        assert plan.publish.data["stale"] == ROWS[name].stale.lower()


@pytest.mark.parametrize(
    ("changes", "is_anothers", "gone"),
    [
        ({}, False, ["former"]),
        ({}, True, ["former"]),
        ({"publish": {"configMapName": "former"}}, False, ["dense-8b-hyperparams"]),
        ({"publish": None}, False, ["dense-8b-hyperparams", "former"]),
        ({"publish": None, "sweepRef": {"name": "no such sweep"}}, False, []),
    ],
)
def test_what_was_published_under_a_former_name_is_withdrawn(
    changes: dict[str, Any], is_anothers: bool, gone: list[str]
) -> None:
    """Nobody would update it any more, also where the wanted name is another's; an invalid spec takes nothing away."""
    uids = {"former": "u1", "dense-8b-hyperparams": "u2"}
    published = {name: PublishedAnswer(uid) for name, uid in uids.items()}
    if is_anothers:
        del published["dense-8b-hyperparams"]
    spec = prediction_spec(**changes)
    plan = decide_prediction(observed(spec, published=published, config_map_foreign=is_anothers))
    assert not (is_anothers and plan.publish)
    assert [(each.name, each.uid) for each in plan.withdraw] == [
        (name, uids[name]) for name in gone
    ]


def test_what_a_former_name_says_goes_at_once_if_it_is_no_answer_any_more() -> None:
    """It is kept for a new name that may be refused, and a step of a pipeline that reads it takes its numbers."""
    said = decide_prediction(observed()).publish
    assert said is not None
    published = {
        "same": PublishedAnswer("u1", said.data),
        "other": PublishedAnswer("u2", {**said.data, "learningRate": "1"}),
        "none": PublishedAnswer("u3", {"ready": "false"}),
    }
    plan = decide_prediction(observed(published=published))
    assert {each.name: each.at_once for each in plan.withdraw} == {
        "same": False,
        "other": True,
        "none": False,
    }
    unanswered = decide_prediction(observed(published=published, evaluation=ABSENT))
    assert {each.name for each in unanswered.withdraw if each.at_once} == {"same", "other"}


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ({"config_map_foreign": True}, "ConfigMapTaken"),
        ({"publish_error": "exceeded quota"}, "ConfigMapRefused"),
    ],
)
def test_an_answer_that_cannot_be_published_stands_as_any_other(
    problem: dict[str, Any], reason: str
) -> None:
    """A stale one says why: a pipeline that waits for Ready would find another's ConfigMap, or none. Its numbers stay while its sweep trains again or its checkpoint is gone, and its page is drawn."""
    stale = decide_prediction(replace(answered(**problem), sweep=sweep("False", "Training")))
    assert condition(stale, "Ready")[:2] == ("True", "Predicted")
    assert condition(stale, "Accepted")[:2] == ("False", reason)
    world = observed(**problem)
    plan = decide_prediction(world)
    assert plan.page is not None
    world = after(world, plan)
    trains = decide_prediction(replace(world, fit=ABSENT, sweep=sweep("False", "Training")))
    gone = replace(world, checkpoint_stamp=Unreadable("no files"), evaluation=ABSENT)
    unmeasured = decide_prediction(gone)
    assert unmeasured.create == ()
    for again, stale in ((trains, "SweepNotReady"), (unmeasured, "UpToDateWithSweep")):
        assert again.status.learning_rate == plan.status.learning_rate
        assert condition(again, "Ready")[:2] == ("False", reason)
        assert condition(again, "Stale")[1] == stale
    named = replace(world, config_map_foreign=False, publish_error="", sweep=None)
    assert condition(decide_prediction(named), "Ready")[:2] == ("True", "Predicted")


def test_an_answer_stands_after_a_pass_that_failed_under_an_edit_that_asks_nothing_else() -> None:
    """The failure says nothing about the answer: it must not go when its sweep trains again."""
    world = answered()
    failed = failed_pass(world.status, 2, NOW, internal_error(KeyError("bug")))
    suspended = parsed_prediction(prediction_spec(suspend=True))
    trains = sweep("False", "Training")
    edited = replace(world, status=failed, generation=2, spec=suspended, fit=ABSENT, sweep=trains)
    plan = decide_prediction(edited)
    assert condition(plan, "Ready")[:2] == ("True", "Predicted")
    assert condition(plan, "Stale")[:2] == ("True", "SweepNotReady")
    assert plan.status.learning_rate is not None


def test_the_rate_of_a_checkpoints_pretraining_moves_the_answer_or_is_refused() -> None:
    usual = decide_prediction(observed(prediction_spec())).status
    (paper,) = [each for each in usual.variants if each.name == "paper"]
    of_laws = float(paper.learning_rate)
    asked = {
        ratio: observed(prediction_spec(pretrainingLearningRate=f"{ratio * of_laws:.6e}"))
        for ratio in (0.5, 3.0)
    }
    slower = decide_prediction(asked[0.5]).status.learning_rate
    factor = float(slower.value) / float(usual.learning_rate.value)
    assert factor == pytest.approx(0.5**RATIO_EXPONENT, rel=0.02)
    ready = condition(decide_prediction(asked[3.0]), "Ready")
    assert ready[0] == "False"
    assert ready[1] == "ExtrapolationTooFar"


def test_an_answer_names_everything_it_rests_on() -> None:
    """Intervals, variants, second opinions, extrapolation and digests."""
    status = decide_prediction(observed(prediction_spec(pretrainingTokens=10**9))).status
    rate, batch = status.learning_rate, status.batch_size
    assert rate is not None
    assert batch is not None
    assert float(rate.low or 0) <= float(rate.value or 0) <= float(rate.high or 0)
    assert int(batch.value or 0) % 8 == 0
    assert int(status.batch_size_tokens) == int(batch.value or 0) * 2048
    assert status.initial_loss is not None
    assert (status.initial_loss.value, status.initial_loss.low) == ("3.2000", "3.1987")
    assert status.domain_losses == {"general": "3.3000", "math": "2.8000"}
    assert status.planned_flops == "1e19"
    assert [v.name for v in status.variants] == ["A", "B", "paper"]
    assert {"step-law", "deepseek"} <= {v.name for v in status.second_opinions}
    assert status.extrapolation is not None
    assert float(status.extrapolation.compute_factor) > 0
    assert (status.sweep_generation, status.sweep_uid) == (1, SWEEP_UID)
    assert (status.laws_sha256, status.ledger_sha256) == (LAWS_SHA, "a" * 64)
    assert status.evaluation_uri == f"{STORE}/evaluations/{CONFIG.key}/result.json"


def test_a_converted_loss_is_warned_of() -> None:
    """Losses per token of two tokenizers are not comparable as they are."""
    status = decide_prediction(observed(evaluation=evaluation(same_tokenizer=False))).status
    assert "converted to the sweep's" in status.warnings[0]


def test_the_evaluate_request_measures_on_the_sweeps_own_sequences() -> None:
    """Corpus, mixture, sequence length, secret and templates are the sweep's; its own come last."""
    own = {"spec": {"priority": 1}}
    checkpoint = {"uri": CHECKPOINT, "podTemplate": own, "secretName": "models-s3"}
    spec = prediction_spec(checkpoint=checkpoint)
    shared = {"spec": {"nodeSelector": {"gpu": "h200"}}}
    reference = sweep(spec=parsed(sweep_spec(podTemplate=shared)))
    request = decide_prediction(observed(spec, evaluation=ABSENT, sweep=reference)).create[0]
    assert isinstance(request.task, EvaluateTask)
    assert request.task.config == CONFIG
    assert request.pod_templates == (shared, own)
    assert request.secret_names == ("sweep-s3", "models-s3")
    assert request.name.startswith("dense-8b-evaluate-")
    again = decide_prediction(
        observed(spec, evaluation=ABSENT, sweep=reference, jobs=(ended(143, name=request.name),))
    ).create[0]
    assert again.name == f"{request.name}-a2"


def test_a_suspended_prediction_measures_nothing_and_keeps_its_answer() -> None:
    """Its running Job is stopped; an answer that exists stays."""
    spec = prediction_spec(suspend=True)
    waiting = decide_prediction(observed(spec, evaluation=ABSENT))
    assert (waiting.create, condition(waiting, "Evaluated")[1]) == ((), "Suspended")
    assert condition(waiting, "Reconciling")[0] == "False"
    for plan in (waiting, decide_prediction(observed(spec))):
        # The health check of Argo CD relies on it.
        assert condition(plan, "Suspended")[:2] == ("True", "Suspended")
    assert condition(decide_prediction(observed()), "Suspended")[:2] == ("False", "NotSuspended")
    assert condition(decide_prediction(observed(spec)), "Ready")[:2] == ("True", "Predicted")
    running = decide_prediction(observed(spec, evaluation=ABSENT, jobs=(job(),)))
    assert [each.name for each in running.delete] == ["dense-8b-evaluate-1"]
    attempts = ledger_of(running).evaluation
    assert (attempts.ended, attempts.interruptions, attempts.charged) == (1, 1, {})
    ledger = read_back(ledger_of(running))
    resumed = decide_prediction(observed(evaluation=ABSENT, ledger=ledger))
    assert [request.attempt for request in resumed.create] == [2]


NOT_TO_BE_ANSWERED: dict[str, dict[str, Any]] = {
    "its sweep was deleted": {"sweep": None, "manifest": ABSENT, "fit": ABSENT},
    "its sweep trains again": {"sweep": sweep("False", "Training", generation=2)},
    "the store is away": {"store_error": "s3://bucket: timeout"},
}


@pytest.mark.parametrize("changes", NOT_TO_BE_ANSWERED.values(), ids=NOT_TO_BE_ANSWERED)
@pytest.mark.parametrize(
    "edit",
    [
        {"suspend": True},
        {"publish": {"configMapName": "another"}},
        {"validation": {"sweepRef": {"name": "near"}}},
        {"checkpoint": {"uri": CHECKPOINT, "secretName": "models", "podTemplate": {"spec": {}}}},
    ],
)
def test_an_edit_that_asks_the_same_keeps_the_answer(
    changes: dict[str, Any], edit: dict[str, Any]
) -> None:
    """Also once it is taken back: with a deleted sweep the answer could not be given again."""
    world = answered(**changes)
    before = decide_prediction(world)
    for generation, raw in ((2, prediction_spec(**edit)), (3, prediction_spec())):
        asked = parsed_prediction(raw)
        plan = decide_prediction(after(world, before, generation=generation, spec=asked))
        for kind in ("Evaluated", "Ready", "Stale"):
            assert condition(plan, kind) == condition(before, kind)
        assert plan.status.learning_rate == before.status.learning_rate
        assert plan.status.initial_loss == before.status.initial_loss
        assert plan.publish is not None
        assert "learningRate" in plan.publish.data
        before = plan


@pytest.mark.parametrize("changes", NOT_TO_BE_ANSWERED.values(), ids=NOT_TO_BE_ANSWERED)
def test_the_loss_of_a_former_checkpoint_is_not_said_of_another(changes: dict[str, Any]) -> None:
    """Nor its answer, in the first pass over the edit and in later ones."""
    other = parsed_prediction(prediction_spec(checkpoint={"uri": "s3://models/dense-70b"}))
    world = answered(**changes, generation=2, spec=other, evaluation=ABSENT)
    for _ in range(2):
        plan = decide_prediction(world)
        assert condition(plan, "Evaluated")[0] != "True"
        assert condition(plan, "Ready")[0] == "False"
        assert plan.status.initial_loss is None
        world = after(world, plan)


def test_the_composition_that_the_spec_asks_for_answers_and_the_other_is_a_variant() -> None:
    measured = decide_prediction(observed()).status
    paper = decide_prediction(observed(prediction_spec(composition="Paper"))).status
    variants = {v.name: v.learning_rate for v in (*measured.variants, *paper.variants)}
    assert float(measured.learning_rate.value) < float(paper.learning_rate.value)
    assert variants["paper"] == paper.learning_rate.value
    assert variants["measured"] == measured.learning_rate.value


def test_a_batch_size_that_is_given_is_answered_with_the_learning_rate_there() -> None:
    """To the letter, also in sequences of another length than the sweep's."""
    plain = decide_prediction(observed()).status
    for length in (None, 256):
        given = prediction_spec(
            batchSize=100, batchSizeMultipleOf=None, targetSequenceLength=length
        )
        status = decide_prediction(observed(given)).status
        assert status.batch_size == IntervalStatus(value="100", low="100", high="100")
        assert status.learning_rate.value != plain.learning_rate.value
        assert float(status.batch_size_cost.value) >= 0.0
        (ready,) = [c for c in status.conditions if c.type == "Ready"]
        assert "at a batch size of 100 sequences" in ready.message
    assert plain.batch_size_cost is None


def test_an_answer_keeps_to_the_extrapolation_that_its_spec_allows() -> None:
    asked = {"budget": {"flops": "1e20"}}
    for limit, reason in ((None, "Predicted"), ("1.5", "ExtrapolationTooFar")):
        plan = decide_prediction(observed(prediction_spec(**asked, maxExtrapolation=limit)))
        assert condition(plan, "Ready")[1] == reason


def test_a_far_multiple_keeps_range_and_warnings_for_another_sequence_length() -> None:
    """The sweep has 128 tokens per sequence: of 256, half as many are a multiple of half as many."""
    asked = {"batchSizeTolerance": "0.02"}
    own = decide_prediction(observed(prediction_spec(batchSizeMultipleOf=512, **asked))).status
    raw = prediction_spec(batchSizeMultipleOf=256, targetSequenceLength=256, **asked)
    other = decide_prediction(observed(raw)).status
    within = own.affordable_batch_sizes
    assert within.tolerance == "0.02"
    assert float(within.smallest) < float(own.batch_size.value)
    assert other.affordable_batch_sizes is not None
    largest = [float(s.affordable_batch_sizes.largest) for s in (own, other)]
    assert largest[1] == pytest.approx(largest[0] / 2, rel=0.01)
    assert other.batch_size.value == "256"
    assert "differs from the sweep's, 128" in other.warnings[0]
    assert "The nearest multiple of 256 is 256 sequences" in other.warnings[1]
    for told in own.warnings[1:]:
        assert told in other.warnings


def test_a_sweep_of_one_batch_size_answers_for_it_and_says_so_where_none_is_given() -> None:
    laws = fit(one_batch_size_laws())
    given = prediction_spec(batchSize=128, batchSizeMultipleOf=None)
    status = decide_prediction(observed(given, fit=laws)).status
    assert status.batch_size == IntervalStatus(value="128", low="128", high="128")
    assert status.learning_rate is not None
    plan = decide_prediction(observed(fit=laws))
    (ready,) = [c for c in plan.status.conditions if c.type == "Ready"]
    assert (ready.status, ready.reason) == ("False", "LawRefused")
    assert "Every run has a batch size of 128 sequences" in ready.message


def test_a_quota_that_refuses_the_evaluate_job_is_waited_for() -> None:
    """A bad pod template is not: only a person can change it."""
    for may_pass, stalled in ((True, "False"), (False, "True")):
        world = observed(evaluation=ABSENT, create_error="no", refusal_may_pass=may_pass)
        plan = decide_prediction(world)
        assert condition(plan, "Ready")[1] == "JobRefused"
        assert condition(plan, "Stalled")[0] == stalled


def crashed(count: int, **changes: Any) -> tuple[ObservedJob, ...]:
    """So many failed attempts."""
    return tuple(
        ended(1, name=f"j{n}", uid=f"u{n}", attempt=n, **changes) for n in range(1, count + 1)
    )


@pytest.mark.parametrize(("seconds", "ended_attempts"), [(59, 0), (60, 1)])
def test_an_evaluation_that_is_not_there_yet_is_waited_for(
    seconds: float, ended_attempts: int
) -> None:
    succeeded = job(
        complete=True, pod=None, unfinished_pods=0, ended=NOW - timedelta(seconds=seconds)
    )
    plan = decide_prediction(observed(evaluation=ABSENT, jobs=(succeeded,)))
    recorded_attempts = plan.ledger.evaluation.ended if plan.ledger is not None else 0
    assert recorded_attempts == ended_attempts
    is_awaited = "its result is not in the store yet" in condition(plan, "Ready")[2]
    assert is_awaited == (not ended_attempts)


@pytest.mark.parametrize(("seconds", "charged"), [(1, {}), (-1, {"ResultMissing": 1})])
def test_an_evaluation_whose_result_was_seen_and_deleted_is_made_again_free_of_charge(
    seconds: float, charged: dict[str, int]
) -> None:
    """Its Job is kept. One that ended after the result was seen is another attempt, and made none."""
    succeeded = job(
        complete=True, pod=None, unfinished_pods=0, ended=NOW - timedelta(seconds=seconds)
    )
    world = answered(evaluation=ABSENT, jobs=(succeeded,), now=NOW + timedelta(minutes=2))
    plan = decide_prediction(world)
    assert plan.ledger is not None
    assert plan.ledger.evaluation.charged == charged
    assert [request.attempt for request in plan.create] == [2]


GIVEN_UP = crashed(4, generation=1)
REFUSED = ended(
    ExitCode.BAD_CONFIGURATION, words("UnknownField", "max_position_embeddings", "checkpoint")
)
OTHER_POD = {"spec": {"containers": [{"name": "trainer", "image": "fixed:2"}]}}
CORRECTED = sweep(generation=2, spec=parsed(sweep_spec(podTemplate=OTHER_POD)))
SUSPENDED = sweep(generation=2, spec=parsed(sweep_spec(suspend=True)))


@pytest.mark.parametrize(
    ("jobs", "reason", "changes", "attempts"),
    [
        (GIVEN_UP, "EvaluationFailed", {"generation": 2}, [5]),
        (GIVEN_UP, "EvaluationFailed", {"checkpoint_stamp": "b" * 64}, [1]),
        (GIVEN_UP, "EvaluationFailed", {"sweep": CORRECTED}, [5]),
        ((REFUSED,), "BadConfiguration", {"checkpoint_stamp": "b" * 64}, [1]),
        ((REFUSED,), "BadConfiguration", {"sweep": CORRECTED}, [2]),
        ((REFUSED,), "BadConfiguration", {"sweep": SUSPENDED}, []),
    ],
    ids=[
        *("the spec changes", "other weights", "another pod"),
        *("other weights are not refused", "another pod's template", "nothing is corrected"),
    ],
)
def test_an_evaluation_that_is_given_up_stalls_until_something_may_help(
    jobs: tuple[ObservedJob, ...], reason: str, changes: dict[str, Any], attempts: list[int]
) -> None:
    """After the sweep's retriesPerPoint, three unless set; charges are of checkpoint, spec and pod."""
    world = recorded(*jobs)
    plan = decide_prediction(world)
    assert (plan.create, condition(plan, "Evaluated")[:2]) == ((), ("False", reason))
    assert condition(plan, "Stalled")[0] == "True"
    later = {"jobs": (), "now": NOW + timedelta(hours=1), **changes}
    helped = decide_prediction(replace(world, **later))
    assert [request.attempt for request in helped.create] == attempts
    assert (condition(helped, "Ready")[1] == reason) is not bool(attempts)


def test_failed_evaluate_jobs_expire_once_the_ledger_has_their_end() -> None:
    """Not before: until then they alone know of it. What they said stays in the condition without them."""
    first = ended(1, "out of luck")
    unrecorded = decide_prediction(observed(evaluation=ABSENT, jobs=(first,)))
    assert unrecorded.expire == ()
    world = recorded(first)
    assert [expiry.name for expiry in decide_prediction(world).expire] == [first.name]
    # Kubernetes ends no Job while another container than the trainer runs, such as a mesh's proxy.
    goes_on = replace(first, outlived=True, unfinished_pods=1)
    assert unrecorded.delete == ()
    assert [each.name for each in decide_prediction(recorded(goes_on)).delete] == [first.name]
    gone = decide_prediction(replace(world, jobs=(), now=NOW + timedelta(hours=1)))
    assert [request.attempt for request in gone.create] == [2], "its number is not given twice"
    assert "out of luck" in condition(decide_prediction(replace(world, jobs=())), "Ready")[2]


def test_a_checkpoint_that_is_measured_at_once_needs_no_ledger() -> None:
    for world in (
        observed(evaluation=ABSENT),
        observed(evaluation=ABSENT, jobs=(job(),)),
        observed(jobs=(job(complete=True, unfinished_pods=0),)),
    ):
        assert decide_prediction(world).ledger is None


@pytest.mark.parametrize(
    ("ledger", "reason"),
    [
        (Unanswered("timeout"), "StorageUnreachable"),
        (Newer("ledger_version 99"), "LedgerNewer"),
    ],
)
def test_without_its_ledger_nothing_is_measured_and_an_answer_stands(
    ledger: Read[Ledger], reason: str
) -> None:
    """What failed for good would be tried again."""
    plan = decide_prediction(observed(evaluation=ABSENT, ledger=ledger))
    assert (plan.create, condition(plan, "Ready")[1]) == ((), reason)
    assert condition(decide_prediction(observed(ledger=ledger)), "Ready")[:2] == (
        "True",
        "Predicted",
    )


def test_a_damaged_ledger_is_quarantined_when_the_next_is_written() -> None:
    damaged = Unreadable("truncated")
    plan = decide_prediction(observed(evaluation=ABSENT, jobs=(ended(1),), ledger=damaged))
    assert plan.ledger is not None
    assert [request.path for request in plan.quarantined] == [
        layout.ledger_in(layout.prediction_folder("dense-8b", "uid-p"))
    ]


def test_where_to_read() -> None:
    """Manifest and laws under the sweep's store; the evaluation once the manifest is known."""
    reads = first_reads(observed().sweep)
    assert reads is not None
    assert layout.laws_in(reads.folder) == f"sweeps/demo-{SWEEP_UID}/laws.json"
    assert evaluation_path(observed()) == f"evaluations/{CONFIG.key}/result.json"
    assert evaluation_path(observed(manifest=ABSENT)) is None
    assert evaluation_path(observed(given_loss("3.2"))) is None
    assert first_reads(observed(sweep=None).sweep) is None


@pytest.mark.parametrize(
    ("changes", "creates"),
    [
        ({"jobs": (job(key="0" * 32),)}, 0),
        ({"jobs": (job(key="0" * 32),), "spec": parsed_prediction(given_loss("3.2"))}, 0),
        (
            {
                "jobs": (job(),),
                "evaluation": ABSENT,
                "sweep": sweep(spec=parsed(sweep_spec(storage={"uri": "s3://elsewhere/lm"}))),
            },
            1,
        ),
    ],
    ids=["a former checkpoint", "the loss is given", "the store of a former sweep"],
)
def test_evaluations_that_are_not_asked_for_any_more_are_deleted_and_not_waited_for(
    changes: dict[str, Any], creates: int
) -> None:
    """The same corpus may be in both stores: the result would be missed, and the attempt charged."""
    plan = decide_prediction(observed(**changes))
    assert [each.name for each in plan.delete] == [job().name]
    assert [request.attempt for request in plan.create] == [1] * creates


def test_the_page_of_an_answer_is_drawn_at_once_and_once_for_each_change() -> None:
    """Another one follows a minute later at the earliest, and is then not forgotten."""
    world = observed()
    plan = decide_prediction(world)
    page = plan.page
    assert page is not None
    assert page.report_path == "predictions/dense-8b-uid-p/report.html"
    assert plan.status.report_uri == ""
    drawn = after(world, plan, page_shows=page.inputs, page_drawn=True, page_seconds=5.0)
    settled = decide_prediction(drawn)
    assert settled.page is None
    assert settled.status.report_uri == f"{STORE}/{page.report_path}"
    asked = parsed_prediction(prediction_spec(budget={"flops": "2e19"}))
    changed = decide_prediction(replace(drawn, spec=asked, generation=2))
    assert (changed.page, changed.requeue_after) == (None, 55.0)
    due = decide_prediction(replace(drawn, spec=asked, generation=2, page_seconds=60.0))
    assert due.page is not None
    assert due.page.inputs != page.inputs
    restarted = decide_prediction(after(drawn, settled, page_drawn=False))
    assert restarted.page is None
    assert restarted.status.report_uri == settled.status.report_uri


def test_without_an_answer_there_is_no_page() -> None:
    for world in (observed(evaluation=ABSENT), observed(fit=fit(refused()))):
        assert decide_prediction(world).page is None


def test_a_second_pass_repeats_the_answer_to_the_letter_and_sends_no_event() -> None:
    """Bootstrap draws are seeded: a status that changed by itself would be written for ever."""
    world = observed()
    plan = decide_prediction(world)
    again = decide_prediction(after(world, plan, now=NOW + timedelta(hours=1)))
    assert again.status == plan.status
    assert again.events == ()
    assert [e.reason for e in plan.events] == ["Accepted", "Evaluated", "Predicted"]


@pytest.mark.parametrize("stands", [False, True])
def test_a_sweep_that_runs_is_told_of_once_however_its_provisional_laws_come_and_go(
    stands: bool,
) -> None:
    """The condition follows them; an event for each turn would drown what matters."""
    running = sweep("False", "Training", "2 of 8 points are done.")
    nothing, some = fit(refused()), fit(fitted_laws(provisional=True))
    world = answered(sweep=running) if stands else observed(sweep=running)
    told, reasons = [], []
    for laws in (nothing, some, nothing, some):
        plan = decide_prediction(replace(world, fit=laws))
        told += [event.reason for event in plan.events]
        reasons.append(condition(plan, "Stale" if stands else "Ready")[1])
        world = after(world, plan)
    assert reasons == ["SweepNotReady", "Provisional"] * 2
    assert sum(reason in ("SweepNotReady", "Provisional") for reason in told) == 1
    ended = replace(world, fit=fit(), sweep=sweep())
    assert "Predicted" in [e.reason for e in decide_prediction(ended).events] or stands


def test_the_sweeps_ledger_is_asked_for_the_corpus_once_nothing_else_knows_it() -> None:
    """Its sweep is finished, and what is prepared is gone or another: while it trains, its preparation goes on."""
    finished = replace(sweep(), status={**sweep().status, "dataDigest": manifest().digest})
    assert not needs_corpus(observed(sweep=finished))
    assert needs_corpus(observed(sweep=finished, manifest=ABSENT))
    assert needs_corpus(observed(sweep=finished, manifest=Unreadable("truncated")))
    assert needs_corpus(observed(sweep=finished, manifest=manifest(digest="c" * 32)))
    assert not needs_corpus(observed(sweep=finished, manifest=Unanswered("timeout")))
    assert not needs_corpus(observed(sweep=sweep("False", "PreparingData"), manifest=ABSENT))
    assert not needs_corpus(observed(sweep=None, manifest=ABSENT))


def test_sequences_longer_than_the_best_batch_has_tokens_for_are_answered_or_refused() -> None:
    """By whole multiples, at least one."""
    found = {}
    for length in (256, 4096, 65536):
        plan = decide_prediction(observed(prediction_spec(targetSequenceLength=length)))
        batch_size = plan.status.batch_size
        found[length] = (condition(plan, "Ready")[1], batch_size and int(batch_size.value))
    assert found == {
        256: ("Predicted", 48),
        4096: ("Predicted", 8),
        65536: ("ExtrapolationTooFar", None),
    }
