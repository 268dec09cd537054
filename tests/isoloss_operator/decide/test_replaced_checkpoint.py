"""Other weights under a checkpoint's address are another checkpoint: its loss is measured again."""

from __future__ import annotations

from dataclasses import replace

from isoloss_contract.reading import ABSENT, Unanswered
from isoloss_operator.api import Checkpoint
from isoloss_operator.decide.evaluation import evaluate_config
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.reads import evaluation_path
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.builders import condition, manifest, sweep_spec
from tests.support.predictions import CHECKPOINT, after, answered, evaluation, observed

OTHER = "6" * 64


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
    stampless = evaluate_config(
        parse_sweep_spec(sweep_spec()), manifest(), Checkpoint(uri=CHECKPOINT), ABSENT
    )
    world = observed(checkpoint_stamp=ABSENT, evaluation=evaluation(key=stampless.key))
    (warning,) = (
        each for each in decide_prediction(world).status.warnings if "may not list" in each
    )
    assert warning.endswith("other weights under this address would not be noticed.")
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
    stampless = evaluate_config(
        parse_sweep_spec(sweep_spec()), manifest(), Checkpoint(uri=CHECKPOINT), ABSENT
    )
    for found in (ABSENT, evaluation(key=stampless.key)):
        refused = replace(answered(), checkpoint_stamp=ABSENT, evaluation=found)
        plan = decide_prediction(refused)
        assert plan.create == ()
        assert condition(plan, "Ready")[:2] == ("True", "Predicted")
        status, reason, message = condition(plan, "Accepted")
        assert (status, reason) == ("False", "StorageUnreachable")
        assert f"may no longer list {CHECKPOINT}" in message
        assert "spec.initialLoss" in message


def test_files_that_never_could_be_listed_are_measured_on_a_new_corpus() -> None:
    stampless = evaluate_config(
        parse_sweep_spec(sweep_spec()), manifest(), Checkpoint(uri=CHECKPOINT), ABSENT
    )
    world = observed(checkpoint_stamp=ABSENT, evaluation=evaluation(key=stampless.key))
    world = after(world, decide_prediction(world), evaluation=ABSENT)
    assert [request.kind for request in decide_prediction(world).create] == ["evaluate"]
