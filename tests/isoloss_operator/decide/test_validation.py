"""An answer is judged by the points of another sweep that continue its checkpoint."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from isoloss_contract.ledger import Ledger, PointState
from isoloss_contract.reading import ABSENT, Read, Unanswered, Unreadable
from isoloss_operator.api import HyperparamPredictionStatus
from isoloss_operator.decide.observation import (
    ObservedPrediction,
    ObservedReference,
    ObservedValidation,
)
from isoloss_operator.decide.plans import PredictionPlan
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.validation import courses_to_read
from tests.support import builders, predictions
from tests.support.builders import condition, ledger_of, parsed
from tests.support.prediction_simulator import COUNTS, PROBES, TOKENS, probes_at, probes_spec

ASKED = predictions.prediction_spec(
    sweepRef={"name": "dense"},
    budget={"tokens": TOKENS},
    batchSizeMultipleOf=1,
    validation={"sweepRef": {"name": PROBES}},
)


def prediction(**changes: Any) -> ObservedPrediction:
    """A prediction about the toy checkpoint, whose sweep is named dense."""
    measured = predictions.evaluation(parameters=COUNTS)
    fields = {"evaluation": measured, "sweep": replace(predictions.sweep(), name="dense")}
    return predictions.observed(ASKED, **{"name": "demo", **fields, **changes})


@cache
def answer() -> HyperparamPredictionStatus:
    """Its answer."""
    status = decide_prediction(prediction()).status
    assert status.learning_rate is not None
    return status


def trained(at: float = 1.0, *, done: bool = True, **changes: Any) -> ObservedValidation:
    """What is stored of the sweep around it: the least loss is `at` times the answer's learning rate;
    `changes` are those of the sweep since."""
    rate, batch = answer().learning_rate, answer().batch_size
    found = probes_at(rate.value, batch.value, at, predictions.STAMP, done=done)
    fields = {"spec": parsed(found.raw), "status": found.status, **changes}
    reference = ObservedReference(PROBES, builders.UID, 1, **fields)
    return ObservedValidation(reference, ledger=found.ledger)


def judged(found: ObservedValidation, **changes: Any) -> PredictionPlan:
    """What a pass says of the answer."""
    return decide_prediction(prediction(validation=found, **changes))


def said(plan: PredictionPlan) -> tuple[str, str]:
    """Status and reason of Validated."""
    return condition(plan, "Validated")[:2]


# ---------------------------------------------------------------------------------------- verdicts


def test_an_answer_at_the_minimum_holds_and_is_refined() -> None:
    plan = judged(trained())
    assert said(plan) == ("True", "AnswerHolds")
    assert plan.status.refined is not None
    found = plan.status.validation
    assert found is not None
    assert len(found.places) == 5
    assert {place.state for place in found.places} == {"Succeeded"}
    best = float(answer().learning_rate.value)
    assert float(found.places[0].learning_rate) == pytest.approx(best, rel=0.1)


def test_an_answer_far_from_the_minimum_does_not_hold_and_stays_published() -> None:
    plan = judged(trained(at=4.0))
    assert said(plan) == ("False", "BetterAnswerNearby")
    assert plan.status.validation is not None
    assert plan.status.validation.direction == "a higher learning rate"
    assert condition(plan, "Ready")[0] == "True"
    assert plan.status.learning_rate == answer().learning_rate


def test_an_answer_at_which_training_diverged_is_none() -> None:
    found = trained()
    first, *others = ledger_of(found).points
    lost = replace(first, state=PointState.DIVERGED, loss=None, averaged_loss=None)
    plan = judged(replace(found, ledger=ledger_of(found).replace(points=(lost, *others))))
    assert said(plan) == ("False", "AnswerDiverged")
    assert condition(plan, "Validated")[2].startswith(
        "Training at the answer diverged, so it cannot be the answer. Take a lower learning rate."
    )


def test_a_larger_tolerance_is_another_question() -> None:
    """Of the verdict alone: the answer stands."""
    world = prediction(validation=trained(at=2.0))
    strict = decide_prediction(world)
    wide = {**ASKED, "validation": {"sweepRef": {"name": PROBES}, "tolerance": "9"}}
    told = decide_prediction(
        replace(predictions.after(world, strict), spec=predictions.parsed_prediction(wide))
    )
    assert said(told) == ("True", "AnswerHolds")
    assert told.status.question_digest == strict.status.question_digest


# ------------------------------------------------------------------------------- what is waited for


def test_ready_never_waits_for_the_verdict() -> None:
    """Nor is a resource without one stalled: the sweep may be applied later."""
    for found in (ObservedValidation(), replace(trained(status={}), ledger=ABSENT)):
        plan = judged(found)
        assert condition(plan, "Ready")[:2] == ("True", "Predicted")
        assert condition(plan, "Reconciling")[0] == "False"
        assert said(plan)[0] == "Unknown"


def test_the_sweep_says_what_its_points_wait_for() -> None:
    waits = judged(trained(done=False))
    assert said(waits) == ("Unknown", "SweepNotReady")
    assert "ScalingSweep probes is not ready (Training)" in condition(waits, "Validated")[2]
    assert waits.status.validation is not None
    assert {place.state for place in waits.status.validation.places} == {"Pending"}


def test_a_sweep_that_cannot_go_on_ends_the_wait() -> None:
    why = ("TooManyFailedPoints", "3 failed.")
    conditions = [
        builders.stated("Ready", "False", *why),
        builders.stated("Stalled", "True", *why),
    ]
    plan = judged(trained(status={"conditions": conditions}))
    assert said(plan) == ("Unknown", "TooManyFailedPoints")
    assert condition(plan, "Validated")[2] == "ScalingSweep probes cannot go on: 3 failed."


def test_points_around_a_former_answer_do_not_judge_the_present_one() -> None:
    found = trained()
    ledger = ledger_of(found)
    (near,) = ledger.neighbourhoods
    moved = tuple((2 * rate, batch) for rate, batch in near.places)
    before = ledger.replace(neighbourhoods=(replace(near, places=moved),))
    assert said(judged(replace(found, ledger=before))) == ("Unknown", "AnswerAwaited")


def test_without_an_answer_nothing_is_judged() -> None:
    plan = judged(trained(), fit=predictions.fit(predictions.refused()))
    assert said(plan) == ("Unknown", "AnswerAwaited")
    assert plan.status.validation is None


@pytest.mark.parametrize("away", [Unanswered("s3://bucket: timeout")])
def test_a_verdict_stands_while_the_store_does_not_answer(away: Read[Ledger]) -> None:
    found = trained()
    world = prediction(validation=found)
    world = predictions.after(world, decide_prediction(world))
    plan = decide_prediction(replace(world, validation=replace(found, ledger=away)))
    assert said(plan) == ("True", "AnswerHolds")
    assert plan.status.validation == world.previous_status.validation
    assert said(judged(replace(found, ledger=away))) == ("Unknown", "StorageUnreachable")


def test_without_the_question_there_is_no_verdict() -> None:
    world = prediction(validation=trained())
    world = predictions.after(world, decide_prediction(world))
    plain = {name: value for name, value in ASKED.items() if name != "validation"}
    plan = decide_prediction(replace(world, spec=predictions.parsed_prediction(plain)))
    assert "Validated" not in {each.type for each in plan.status.conditions}
    assert (plan.status.validation, plan.status.refined) == (None, None)


def test_an_invalid_spec_keeps_the_condition_which_waits_for_an_answer() -> None:
    """Nobody knows whether it still asks for a verdict. Corrected, it has the one it had."""
    world = prediction(validation=trained())
    before = decide_prediction(world)
    wrong = predictions.parsed_prediction({**ASKED, "budget": {"flops": "none"}})
    held = decide_prediction(replace(predictions.after(world, before), spec=wrong))
    assert condition(held, "Ready")[1] == "InvalidSpec"
    assert said(held) == ("Unknown", "AnswerAwaited")
    assert said(decide_prediction(predictions.after(world, held))) == said(before)
    never_asked = replace(prediction(), spec=wrong)
    assert "Validated" not in {c.type for c in decide_prediction(never_asked).status.conditions}


# ------------------------------------------------------------------------------ which points count


def of_a_changed_sweep(**changes: Any) -> ObservedValidation:
    """As trained, with another spec."""
    return trained(spec=parsed(probes_spec(**changes)))


def test_what_is_not_the_question_is_told_apart() -> None:
    data, (size,) = probes_spec()["data"], probes_spec()["proxies"]
    domains = [{**each, "weight": 1} for each in data["domains"]]
    other = [{**size, "checkpoint": {"uri": "s3://models/other"}}]
    for found, reason in (
        (of_a_changed_sweep(fit={"weights": "Raw"}), "LossDiffers"),
        (of_a_changed_sweep(data={**data, "domains": domains}), "LossDiffers"),
        (of_a_changed_sweep(optimizer={"beta2": "0.9"}), "OptimizerDiffers"),
        (of_a_changed_sweep(proxies=other), "CheckpointDiffers"),
        (trained(spec=parsed({})), "SweepInvalid"),
        (ObservedValidation(), "SweepNotFound"),
        (replace(trained(), storage_refusal="not yours"), "StorageNotAllowed"),
    ):
        assert said(judged(found)) == ("Unknown", reason)
    assert said(judged(of_a_changed_sweep(optimizer={"warmupTokens": 1000}))) == (
        "True",
        "AnswerHolds",
    )


def test_points_of_replaced_weights_or_of_another_corpus_are_not_judged() -> None:
    found = trained()
    ledger = ledger_of(found)
    assert ledger.corpus is not None
    (checkpoint,) = ledger.checkpoints
    weights = ledger.replace(checkpoints=(replace(checkpoint, stamp="6" * 64),))
    assert said(judged(replace(found, ledger=weights))) == ("Unknown", "CheckpointDiffers")
    corpus = ledger.corpus.model_copy(update={"digest": "e" * 32})
    assert said(judged(replace(found, ledger=ledger.replace(corpus=corpus)))) == (
        "Unknown",
        "CorpusDiffers",
    )


def test_points_of_several_lengths_are_compared_where_all_have_been() -> None:
    """A longer run changes no evaluation of a shorter one."""
    found = trained()
    ledger = ledger_of(found)
    long, *others = ledger.points
    longer = replace(long, tokens=2 * long.tokens, averaged_loss=1.0, loss=1.0)
    mixed = replace(found, ledger=ledger.replace(points=(longer, *others)))
    world = prediction(validation=mixed)
    assert courses_to_read(world).digests == {long.key: long.trajectory_sha256}
    assert said(decide_prediction(world)) == ("Unknown", "StorageUnreachable")
    assert long.averaged_loss is not None
    course = ((long.tokens // 2, long.averaged_loss), (long.tokens, long.averaged_loss))
    read = replace(mixed, courses={long.key: course})
    assert said(judged(read)) == ("True", "AnswerHolds")
    damaged = judged(replace(mixed, courses={long.key: Unreadable("row 3: no number")}))
    assert said(damaged) == ("Unknown", "TooFewProbes")
    assert "row 3: no number" in condition(damaged, "Validated")[2]
