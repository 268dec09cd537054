"""Other weights under a checkpoint's address are another checkpoint: its loss is measured again."""

from dataclasses import replace
from datetime import timedelta

from isoloss_contract.reading import ABSENT, Unanswered, Unreadable
from isoloss_contract.records import ExitCode
from isoloss_operator.api import Checkpoint
from isoloss_operator.decide.observation import LABEL_KEY
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.reads import evaluation_path
from isoloss_operator.decide.single_task import evaluate_config
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.builders import NOW, condition, manifest, sweep_spec, words
from tests.support.ledgers import read_back
from tests.support.predictions import CHECKPOINT, after, answered, ended, evaluation, observed

OTHER = "6" * 64
STAMPLESS = evaluate_config(
    parse_sweep_spec(sweep_spec()), manifest(), Checkpoint(uri=CHECKPOINT), ABSENT
)
"""Of a checkpoint whose files may not be listed."""


def test_another_stamp_names_another_evaluation_and_the_answer_is_stale_until_it_is_made() -> None:
    before = answered()
    replaced = replace(before, checkpoint_stamp=OTHER, evaluation=ABSENT)
    assert evaluation_path(replaced) != evaluation_path(before)
    plan = decide_prediction(replaced)
    assert [request.kind for request in plan.create] == ["evaluate"]
    assert condition(plan, "Ready")[:2] == ("True", "Predicted")
    assert condition(plan, "Stale")[:2] == ("True", "Evaluating")
    assert plan.status.initial_loss is not None


def test_files_that_may_not_be_listed_leave_the_address_as_the_key() -> None:
    unlisted = observed(checkpoint_stamp=ABSENT, evaluation=ABSENT)
    assert evaluation_path(unlisted) not in (None, evaluation_path(observed()))
    assert [request.kind for request in decide_prediction(unlisted).create] == ["evaluate"]


def test_an_answer_says_that_a_replaced_checkpoint_would_not_be_noticed() -> None:
    world = observed(checkpoint_stamp=ABSENT, evaluation=evaluation(key=STAMPLESS.key))
    (warning,) = (
        each for each in decide_prediction(world).status.warnings if "may not list" in each
    )
    assert warning.endswith("it cannot notice that the weights there were replaced.")
    listed = decide_prediction(observed()).status.warnings
    assert not any("may not list" in each for each in listed)


def test_while_the_files_cannot_be_looked_at_nothing_is_measured_and_the_answer_stands() -> None:
    away = replace(answered(), checkpoint_stamp=Unanswered("s3://models: no answer"))
    assert evaluation_path(away) is None
    plan = decide_prediction(away)
    assert plan.create == ()
    assert condition(plan, "Ready")[:2] == ("True", "Predicted")
    assert condition(plan, "Accepted")[:2] == ("False", "StorageUnreachable")


def test_files_that_may_not_be_listed_any_more_are_not_measured_again() -> None:
    """Neither if nothing was ever measured under their address, nor if that was, before they could be listed."""
    for found in (ABSENT, evaluation(key=STAMPLESS.key)):
        refused = replace(answered(), checkpoint_stamp=ABSENT, evaluation=found)
        plan = decide_prediction(refused)
        assert plan.create == ()
        assert condition(plan, "Ready")[:2] == ("True", "Predicted")
        status, reason, message = condition(plan, "Accepted")
        assert (status, reason) == ("False", "StorageUnreachable")
        assert f"may no longer list {CHECKPOINT}" in message
        assert "spec.initialLoss" in message


def test_an_answer_stands_as_it_is_when_its_checkpoint_is_gone() -> None:
    """Until there are other laws: then it is stale."""
    gone = replace(answered(), checkpoint_stamp=Unreadable(f"{CHECKPOINT}: no config.json"))
    gone = replace(gone, evaluation=ABSENT)
    plan = decide_prediction(gone)
    assert plan.create == ()
    assert condition(plan, "Ready")[:2] == ("True", "Predicted")
    assert condition(plan, "Stale")[:2] == ("False", "UpToDateWithSweep")
    assert condition(plan, "Evaluated")[:2] == ("True", "Evaluated")
    assert (plan.status.learning_rate, plan.publish) == (
        decide_prediction(answered()).status.learning_rate,
        decide_prediction(answered()).publish,
    )
    status, reason, message = condition(plan, "Accepted")
    assert (status, reason) == ("False", "NotACheckpoint")
    assert CHECKPOINT in message
    other = decide_prediction(after(gone, plan, fit=ABSENT))
    assert (other.create, condition(other, "Stale")[:2]) == ((), ("True", "NotACheckpoint"))
    unanswered = replace(observed(evaluation=ABSENT), checkpoint_stamp=gone.checkpoint_stamp)
    assert len(decide_prediction(unanswered).create) == 1


def test_an_unusable_checkpoint_in_the_place_of_an_answered_one_is_not_measured_for_ever() -> None:
    world = replace(answered(), checkpoint_stamp=OTHER, evaluation=ABSENT)
    started = 0
    for passed in range(0, 24 * 3600, 60):
        now = NOW + timedelta(seconds=passed)
        plan = decide_prediction(replace(world, now=now))
        if plan.ledger is not None:
            world = replace(world, ledger=read_back(plan.ledger))
        started += len(plan.create)
        said = words("NotACheckpoint", "no weights")
        jobs = tuple(
            ended(ExitCode.BAD_DATA, said, key=each.labels[LABEL_KEY], attempt=each.attempt)
            for each in plan.create
        )
        world = after(world, plan, jobs=jobs)
    assert started == 4
    assert condition(plan, "Ready")[:2] == ("True", "Predicted")
    assert condition(plan, "Stalled")[:2] == ("True", "EvaluationFailed")
    status, _, message = condition(plan, "Stale")
    assert (status, f"a former initial loss of {CHECKPOINT}: no weights" in message) == (
        "True",
        True,
    )


def test_files_that_never_could_be_listed_are_measured_on_a_new_corpus() -> None:
    world = observed(checkpoint_stamp=ABSENT, evaluation=evaluation(key=STAMPLESS.key))
    world = after(world, decide_prediction(world), evaluation=ABSENT)
    assert [request.kind for request in decide_prediction(world).create] == ["evaluate"]
