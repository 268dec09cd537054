"""A sweep that continues checkpoints, on a grid or around the answer of a prediction."""

from dataclasses import replace
from typing import Any

import pytest

from isoloss_contract.reading import ABSENT, Unanswered, Unreadable
from isoloss_operator.decide.checks import accepted_sweep
from isoloss_operator.decide.observation import ObservedAnswer, ObservedCheckpoint, ObservedSweep
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.reads import planned_tasks
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.points import PlannedPoint, prepare_config
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support import builders
from tests.support.models import example_model
from tests.support.predictions import (
    CHECKPOINT,
    STAMP,
    answer_status,
    parsed_prediction,
    prediction_spec,
)
from tests.support.predictions import observed as observed_prediction
from tests.support.published_configs import TOY_CHECKPOINT

OTHER = "6" * 64
SIZE = {"name": "probe", "checkpoint": {"uri": CHECKPOINT}, "tokens": 1_000_000}
FOUND = ObservedCheckpoint(STAMP, TOY_CHECKPOINT)


def spec_of(size: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A sweep of this size alone."""
    return builders.sweep_spec(proxies=[size], parallelism=9, **changes)


ON_A_GRID = spec_of(SIZE)
AROUND = spec_of({**SIZE, "grid": {"around": {"prediction": "dense-8b"}}}, design="Checked")


def answer(
    rate: str = "3e-4", batch: str = "64", spec: dict[str, Any] | None = None, **changes: Any
) -> ObservedAnswer:
    """A prediction that is Ready with this answer."""
    ready = {**builders.stated("Ready", "True", "Predicted"), **changes}
    asked = prediction_spec(sweepRef={"name": "dense"}) if spec is None else spec
    return ObservedAnswer(1, parsed_prediction(asked), answer_status(rate, batch, ready))


def world(
    spec: dict[str, Any] = AROUND, found: ObservedAnswer | None = None, **changes: Any
) -> ObservedSweep:
    """With its checkpoint in the store, and the prediction if there is one."""
    answers = {} if found is None else {"dense-8b": found}
    fields = {"checkpoints": {CHECKPOINT: FOUND}, "answers": answers}
    return builders.observed(spec, **{"manifest": builders.manifest(spec), **fields, **changes})


def points(sweep: ObservedSweep) -> tuple[PlannedPoint, ...]:
    """Those that it plans."""
    planned = planned_tasks(accepted_sweep(sweep))
    assert planned is not None
    return tuple(planned.points.values())


def places(sweep: ObservedSweep) -> list[tuple[float, int]]:
    """Theirs."""
    return [(point.learning_rate, point.batch_size) for point in points(sweep)]


def finished(sweep: ObservedSweep) -> ObservedSweep:
    """The sweep once all of its points have their results."""
    begun = builders.after(sweep, decide_sweep(sweep))
    return replace(begun, results={point.key: builders.result(point) for point in points(begun)})


def said(plan: SweepPlan) -> tuple[str, str]:
    """Status and reason of Ready."""
    return builders.condition(plan, "Ready")[:2]


# -------------------------------------------------------------------------------- continued sizes


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (ObservedCheckpoint(STAMP, ABSENT), "config.json: not found"),
        (ObservedCheckpoint(STAMP, {"model_type": "gpt2"}), "'gpt2' is not supported"),
        (ObservedCheckpoint(Unreadable("no weights"), TOY_CHECKPOINT), "no weights"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused_by_its_field(
    found: ObservedCheckpoint, says: str
) -> None:
    plan = decide_sweep(world(ON_A_GRID, checkpoints={CHECKPOINT: found}))
    assert said(plan) == ("False", "InvalidSpec")
    assert f"spec.proxies[0].checkpoint.uri: {CHECKPOINT}" in builders.condition(plan, "Ready")[2]
    assert says in builders.condition(plan, "Ready")[2]


def test_a_checkpoint_is_waited_for_while_its_store_does_not_answer() -> None:
    away = ObservedCheckpoint(Unanswered("no answer"), Unanswered("no answer"))
    plan = decide_sweep(world(ON_A_GRID, checkpoints={CHECKPOINT: away}))
    assert said(plan) == ("False", "StorageUnreachable")


@pytest.mark.parametrize(
    "gone",
    [
        ObservedCheckpoint(Unanswered("no answer"), Unanswered("no answer")),
        ObservedCheckpoint(Unreadable("no config.json"), ABSENT),
        ObservedCheckpoint(ABSENT, TOY_CHECKPOINT),
    ],
)
def test_points_stay_as_they_were_planned_when_their_checkpoint_cannot_be_read_again(
    gone: ObservedCheckpoint,
) -> None:
    before = world(ON_A_GRID)
    later = builders.after(before, decide_sweep(before), checkpoints={CHECKPOINT: gone})
    assert [p.key for p in points(later)] == [p.key for p in points(before)]


def test_trained_points_are_not_replaced_by_those_of_other_weights() -> None:
    """As with another corpus: what they cost would be spent again. Without any, nothing is lost."""
    replaced = {CHECKPOINT: ObservedCheckpoint(OTHER, TOY_CHECKPOINT)}
    fresh = world(ON_A_GRID)
    assert (
        said(decide_sweep(builders.after(fresh, decide_sweep(fresh), checkpoints=replaced)))[1]
        == "Training"
    )
    done = finished(fresh)
    done = builders.after(done, decide_sweep(done))
    plan = decide_sweep(replace(done, checkpoints=replaced))
    assert said(plan) == ("False", "CheckpointChanged")
    assert builders.condition(plan, "Stalled")[0] == "True"
    assert CHECKPOINT in builders.condition(plan, "Ready")[2]


def test_points_around_an_answer_follow_the_weights_that_the_prediction_measures_again() -> None:
    done = finished(world(found=answer()))
    done = builders.after(done, decide_sweep(done))
    replaced = replace(done, checkpoints={CHECKPOINT: ObservedCheckpoint(OTHER, TOY_CHECKPOINT)})
    plan = decide_sweep(replaced)
    assert said(plan) == ("False", "Training")
    assert {r.task.point.initial_weights_stamp for r in plan.create} == {OTHER}


# --------------------------------------------------------------------------------- around an answer


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "PredictionNotFound"),
        (ObservedAnswer(1, parsed_prediction({}), {}), "PredictionNotReady"),
        (
            ObservedAnswer(1, parsed_prediction(prediction_spec(sweepRef={"name": "d"})), {}),
            "PredictionNotReady",
        ),
        (answer(status="False", reason="SweepNotReady"), "PredictionNotReady"),
        (answer(observedGeneration=0), "PredictionNotReady"),
        (answer(rate="soon"), "PredictionNotReady"),
    ],
)
def test_without_an_answer_the_sweep_waits_and_is_not_stalled(
    found: ObservedAnswer | None, reason: str
) -> None:
    """All manifests may be applied at once, in any order."""
    plan = decide_sweep(world(found=found))
    assert said(plan) == ("False", reason)
    assert builders.condition(plan, "Stalled")[0] == "False"
    assert builders.condition(plan, "Reconciling")[0] == "True"
    assert plan.create == ()


def test_a_lost_preparation_is_deleted_while_points_have_no_places() -> None:
    lost = builders.job(prepare_config(parse_sweep_spec(AROUND)).key, failed=True, lost=True)
    assert builders.names(decide_sweep(world(jobs=(lost,))).delete) == [lost.name]


def test_the_corpus_is_prepared_before_there_is_an_answer() -> None:
    plan = decide_sweep(world(manifest=ABSENT))
    assert [request.kind for request in plan.create] == ["prepare"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"sweepRef": {"name": "demo"}}, "answers from the laws of this sweep"),
        ({"checkpoint": {"uri": "s3://models/other"}}, "is about s3://models/other"),
        ({"checkpoint": None, "initialLoss": "3"}, "a given loss"),
    ],
)
def test_a_prediction_that_cannot_place_points_is_refused(
    asked: dict[str, Any], says: str
) -> None:
    raw = prediction_spec(**{"sweepRef": {"name": "dense"}, **asked})
    plan = decide_sweep(world(found=answer(spec=raw)))
    assert said(plan) == ("False", "InvalidSpec")
    assert says in builders.condition(plan, "Ready")[2]


@pytest.mark.parametrize(
    ("batch", "asked", "expected"),
    [
        ("64", {}, [(3e-4, 64), (1.5e-4, 64), (6e-4, 64), (3e-4, 32), (3e-4, 128)]),
        (
            "50",
            {"batchSize": 50, "batchSizeMultipleOf": 1},
            [(3e-4, 50), (1.5e-4, 50), (6e-4, 50)],
        ),
        (
            "32",
            {"targetSequenceLength": 256},
            [(3e-4, 64), (1.5e-4, 64), (6e-4, 64), (3e-4, 32), (3e-4, 128)],
        ),
    ],
    ids=["and next to it", "at a given batch size", "in sequences of the sweep"],
)
def test_points_lie_at_the_answer(
    batch: str, asked: dict[str, Any], expected: list[tuple[float, int]]
) -> None:
    raw = prediction_spec(sweepRef={"name": "dense"}, **asked)
    begun = world(found=answer("3e-4", batch, raw))
    assert places(begun) == expected
    assert len(decide_sweep(begun).create) == len(expected)


def test_a_size_under_another_name_keeps_its_points() -> None:
    begun = world(found=answer())
    begun = builders.after(begun, decide_sweep(begun))
    renamed = world({**AROUND, "proxies": [{**AROUND["proxies"][0], "name": "near"}]})
    for found in ({"dense-8b": answer("3.3e-4")}, {}):
        later = replace(begun, spec=renamed.spec, generation=2, answers=found)
        assert places(later) == places(begun)
        assert {point.key for point in points(later)} == {point.key for point in points(begun)}


@pytest.mark.parametrize("found", [None, answer(status="False", reason="SweepNotReady")])
def test_points_stay_while_there_is_no_answer_any_more(found: ObservedAnswer | None) -> None:
    begun = world(found=answer())
    later = builders.after(begun, decide_sweep(begun))
    answers = {} if found is None else {"dense-8b": found}
    assert places(replace(later, answers=answers)) == places(begun)


def test_another_prediction_is_waited_for() -> None:
    begun = world(found=answer())
    later = builders.after(begun, decide_sweep(begun))
    other = spec_of({**SIZE, "grid": {"around": {"prediction": "other"}}})
    edited = world(other, ledger=later.ledger, answers={"dense-8b": answer()})
    assert said(decide_sweep(edited)) == ("False", "PredictionNotFound")


def test_a_sweep_of_such_points_is_ready_without_laws_once_they_are_done() -> None:
    begun = decide_sweep(world(found=answer()))
    assert builders.condition(begun, "FitReady")[:2] == ("False", "NothingToFit")
    done = finished(world(found=answer()))
    plan = decide_sweep(done)
    assert said(plan) == ("True", "NothingToFit")
    assert builders.condition(plan, "FitReady")[:2] == ("True", "NothingToFit")
    assert plan.fit is None
    assert plan.status.points.succeeded == 5
    again = builders.after(done, plan, results={})
    assert said(decide_sweep(again)) == ("True", "NothingToFit")


def test_laws_of_a_mixed_sweep_are_fitted_to_its_grids_alone() -> None:
    grid = {"batchSizes": [8, 16], "learningRates": ["1e-3", "2e-3"]}
    sizes = [
        {
            "name": "tiny",
            "model": {"config": example_model("dense-tiny")},
            "tokens": 1_000_000,
            "grid": grid,
        },
        {**SIZE, "grid": {"around": {"prediction": "dense-8b"}}},
    ]
    done = finished(world(builders.sweep_spec(proxies=sizes, parallelism=9), answer()))
    plan = decide_sweep(done)
    assert plan.fit is not None
    assert {point.config.initial_weights for point in plan.fit.points} == {None}
    assert len(plan.fit.points) == 4


def test_a_prediction_that_names_such_a_sweep_for_its_laws_is_told_so() -> None:
    done = finished(world(found=answer()))
    status = decide_sweep(done).status.document()
    sweep = replace(observed_prediction().sweep, status=status)  # type: ignore[type-var]
    plan = decide_prediction(observed_prediction(sweep=sweep))
    assert builders.condition(plan, "Ready")[1] == "SweepInvalid"
    assert "has no laws" in builders.condition(plan, "Ready")[2]
