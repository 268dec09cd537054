"""Whether an answer holds: probes planned, trained as the points of a sweep, judged; the answer left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isoloss.laws import Laws, Prediction, loss_curvature, predict
from isoloss.report.probed import probed_by
from isoloss_contract.ledger import Ledger, PointState, Spend
from isoloss_contract.reading import ABSENT, Newer, Unanswered, Unreadable
from isoloss_contract.records import ExitCode, Outcome, PointResult, TrainTask
from isoloss_operator.decide import prediction_status
from isoloss_operator.decide.observation import ObservedPod, ObservedPrediction, ObservedProbes
from isoloss_operator.decide.plans import PredictionPlan, TaskWrites
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.prediction_view import prediction_view
from isoloss_operator.decide.reads import probe_reads
from isoloss_operator.decide.validation import PlannedProbes, planned_probes
from isoloss_operator.planning.parameters import parameter_counts
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.specs import InvalidSpec
from tests.support.builders import (
    NOW,
    complete,
    condition,
    failed,
    job,
    manifest,
    parsed,
    result,
    sweep_spec,
)
from tests.support.builders import words as termination
from tests.support.ledgers import read_back
from tests.support.planted_laws import fitted_laws
from tests.support.predictions import (
    CHECKPOINT,
    after,
    evaluation,
    fit,
    observed,
    parsed_prediction,
    prediction_spec,
    sweep,
)
from tests.support.predictions import job as evaluate_job
from tests.support.published_configs import TOY_CHECKPOINT

README = Path(__file__).parents[3] / "operator" / "README.md"
MEASURED = evaluation(parameters=parameter_counts(TOY_CHECKPOINT))
QUIET_LAWS = fitted_laws()
Losses = Callable[[int, PlannedPoint], float]
"""Of a probe, by its number in planned order: the answer, a lower and a higher learning rate, then batch sizes."""


def spec(**validation: Any) -> dict[str, Any]:
    return prediction_spec(validation={"tokensShare": "1", "parallelism": 3, **validation})


def world(raw: Mapping[str, Any] | None = None, **changes: Any) -> ObservedPrediction:
    """A prediction that asks for probes, with its answer; `config`, `ledger` and so on are those of the probes."""
    ours = ("config", "ledger", "results", "progress", "unchanged_since")
    stored = {"config": TOY_CHECKPOINT, **{n: changes.pop(n) for n in ours if n in changes}}
    found = observed(spec() if raw is None else raw, **{"evaluation": MEASURED, **changes})
    return replace(found, probes=replace(found.probes, **stored))


def planned(prediction: ObservedPrediction) -> PlannedProbes:
    view = prediction_view(prediction)
    assert view is not None
    found = planned_probes(view)
    assert isinstance(found, PlannedProbes), found
    return found


def probes(prediction: ObservedPrediction | None = None) -> tuple[PlannedPoint, ...]:
    return planned(prediction or world()).points


def stored_ledger(plan: PredictionPlan) -> Ledger:
    """What the plan writes, as the next pass reads it."""
    assert plan.probes is not None
    assert plan.probes.ledger is not None
    return read_back(plan.probes.ledger)


def started(raw: Mapping[str, Any] | None = None, **changes: Any) -> ObservedPrediction:
    """The world in which the first three probes train."""
    first = world(raw)
    jobs = tuple(job(point, generation=1) for point in probes(first)[:3])
    begun = world(raw, ledger=stored_ledger(decide_prediction(first)), jobs=jobs)
    return after(begun, decide_prediction(first), **changes)


def trained(
    losses: Losses = lambda index, _: 2.5 if index == 0 else 2.55,
    raw: Mapping[str, Any] | None = None,
    **outcomes: Mapping[int, Any],
) -> ObservedPrediction:
    """The world in which every probe has its result; `outcomes["diverged"]` are numbers of those that diverged."""
    diverged = outcomes.get("diverged", {})
    found: dict[str, PointResult] = {}
    for index, point in enumerate(probes(world(raw))):
        loss = losses(index, point)
        found[point.key] = result(
            point,
            averaged_loss=loss,
            loss=loss,
            **({"outcome": Outcome.DIVERGED} if index in diverged else {}),
        )
    return world(raw, results=found)


def config_without(key: str) -> dict[str, Any]:
    return {name: value for name, value in TOY_CHECKPOINT.items() if name != key}


def judged() -> ObservedPrediction:
    """With its verdict in the status, and the ledger that has every result."""
    first = trained()
    plan = decide_prediction(first)
    settled = replace(first, probes=replace(first.probes, ledger=stored_ledger(plan), results={}))
    return after(settled, plan)


def retraining() -> ObservedPrediction:
    return replace(judged(), fit=ABSENT, sweep=sweep("False", "Training", generation=2))


def crashed(count: int) -> ObservedPrediction:
    """The first probe failed so many times, the last time an hour ago."""
    hour_ago = NOW - timedelta(hours=1)
    jobs = [
        failed(probes()[0], name=f"j{n}", uid=f"u{n}", attempt=n, ended=hour_ago, generation=1)
        for n in range(1, count + 1)
    ]
    return world(jobs=tuple(jobs))


def refused_by_the_trainer() -> ObservedPrediction:
    words = termination("BadModel", "no such rope", "model")
    bad = failed(probes()[0], ExitCode.BAD_CONFIGURATION, pod_termination_message=words)
    return world(jobs=(replace(bad, generation=1),))


NO_FAILURES = {"retriesPerPoint": 0, "maxFailedPoints": 0}


@dataclass(frozen=True)
class Row:
    """One state of a validation."""

    world: Callable[[], ObservedPrediction]
    validated: tuple[str, str]
    creates: int = 0
    deletes: int = 0
    says: str = ""


ROWS: dict[str, Row] = {
    "probes of a sweep that was deleted are stopped": Row(
        lambda: started(sweep=None, manifest=ABSENT, fit=ABSENT, evaluation=ABSENT),
        ("Unknown", "SweepNotFound"),
        deletes=3,
        says="no ScalingSweep demo",
    ),
    "a verdict stands when its sweep is deleted": Row(
        lambda: replace(judged(), sweep=None, manifest=ABSENT, fit=ABSENT, evaluation=ABSENT),
        ("True", "AnswerHolds"),
    ),
    "probes go on while the corpus of their sweep is not there": Row(
        lambda: started(manifest=ABSENT), ("Unknown", "Training")
    ),
    "a ledger of probes that the store does not give out is waited for": Row(
        lambda: world(ledger=Unanswered("s3://bucket: timeout")),
        ("Unknown", "StorageUnreachable"),
    ),
    "a ledger of probes of a newer operator is left alone": Row(
        lambda: world(ledger=Newer("ledger: version 9")), ("Unknown", "LedgerNewer")
    ),
    "before the checkpoint is measured there is nothing to validate": Row(
        lambda: world(evaluation=ABSENT), ("Unknown", "AnswerAwaited")
    ),
    "while the sweep trains there is nothing to validate": Row(
        lambda: world(fit=ABSENT, sweep=sweep("False", "Training")), ("Unknown", "AnswerAwaited")
    ),
    "a stale answer keeps its verdict": Row(retraining, ("True", "AnswerHolds")),
    "probes that run while their sweep trains again go on": Row(
        lambda: started(fit=ABSENT, sweep=sweep("False", "Training", generation=2)),
        ("Unknown", "Training"),
    ),
    "a config.json that the store does not give out is waited for": Row(
        lambda: world(config=Unanswered("s3://models: timeout")),
        ("Unknown", "StorageUnreachable"),
    ),
    "a checkpoint without a config.json has no probes": Row(
        lambda: world(config=ABSENT),
        ("Unknown", "ProbesNotPossible"),
        says=f"{CHECKPOINT}/config.json: not found",
    ),
    "a model whose parameters are not counted has no probes": Row(
        lambda: world(config={**TOY_CHECKPOINT, "model_type": "gpt2"}),
        ("Unknown", "ProbesNotPossible"),
        says="model_type: 'gpt2' is not supported",
    ),
    "a config.json of another model than was measured has no probes": Row(
        lambda: world(config={**TOY_CHECKPOINT, "num_hidden_layers": 7}),
        ("Unknown", "ProbesNotPossible"),
        says="was it replaced since?",
    ),
    "a setting that is not known has no probes": Row(
        lambda: world(config={**TOY_CHECKPOINT, "quantization_config": {}}),
        ("Unknown", "ProbesNotPossible"),
        says="quantization_config",
    ),
    "a checkpoint with another tokenizer has no probes": Row(
        lambda: world(evaluation=replace_result(same_tokenizer=False)),
        ("Unknown", "ProbesNotPossible"),
        says="its tokenizer differs",
    ),
    "probes that end in their warm-up are not trained": Row(
        lambda: world(
            spec(tokensShare="1e-9"),
            sweep=sweep(spec=parsed(sweep_spec(optimizer={"warmupTokens": 400_000}))),
        ),
        ("Unknown", "ProbesNotPossible"),
        says="spec.validation.tokensShare",
    ),
    "probes too short to be judged are not trained": Row(
        lambda: world(spec(tokensShare="0.0001")),
        ("Unknown", "ProbesNotPossible"),
        says="spec.validation.tokensShare: Probes of 3.58e+07 tokens are 15 steps",
    ),
    "probes that are no longer possible are stopped": Row(
        lambda: replace(started(), probes=replace(started().probes, config=ABSENT)),
        ("Unknown", "ProbesNotPossible"),
        deletes=3,
    ),
    "probes of a corpus that is gone are not trained": Row(
        lambda: world(manifest=ABSENT, corpus=manifest()), ("Unknown", "DataRemoved")
    ),
    "a store that does not take the probes' ledger is named": Row(
        lambda: world(store_write_error="s3://bucket: denied"),
        ("Unknown", "StorageNotWritable"),
        creates=3,
    ),
    "a probe that refuses its configuration stops the others": Row(
        refused_by_the_trainer, ("Unknown", "BadConfiguration"), says="no such rope"
    ),
    "more failed probes than the sweep allows end the validation": Row(
        lambda: replace(
            crashed(1), sweep=sweep(spec=parsed(sweep_spec(failurePolicy=NO_FAILURES)))
        ),
        ("Unknown", "TooManyFailedPoints"),
    ),
    "probes that do not fit their budget are not started": Row(
        lambda: world(spec(budget={"flops": "1"})),
        ("Unknown", "BudgetExhausted"),
        says="5 points are not started",
    ),
    "a spent budget of probes stops what runs": Row(
        lambda: overspent(), ("Unknown", "BudgetExhausted"), deletes=3
    ),
    "a suspended prediction stops its probes": Row(
        lambda: replace(started(), spec=parsed_prediction(spec() | {"suspend": True})),
        ("Unknown", "Suspending"),
        deletes=3,
    ),
    "a suspended prediction starts no probes": Row(
        lambda: world(spec() | {"suspend": True}), ("Unknown", "Suspended")
    ),
    "a probe's Job that the API server refuses is tried one at a time": Row(
        lambda: world(create_error="403 forbidden"), ("Unknown", "JobRefused"), creates=1
    ),
    "probes that no node has room for are waited for": Row(
        lambda: replace(
            started(),
            jobs=tuple(
                replace(each, pod=ObservedPod(unschedulable="0/3 nodes"))
                for each in started().jobs
            ),
        ),
        ("Unknown", "Unschedulable"),
    ),
    "a new answer gets its probes, as many as may run at a time": Row(
        world, ("Unknown", "Training"), creates=3, says="0 of 5 points are done"
    ),
    "probes that run are waited for": Row(started, ("Unknown", "Training")),
    "a crashed probe waits and the next takes its slot": Row(
        lambda: crashed(2), ("Unknown", "Training"), creates=3
    ),
    "probes that diverge at the answer reject it": Row(
        lambda: trained(diverged={0: True}),
        ("False", "AnswerDiverged"),
        says="lower learning rate",
    ),
    "probes that all diverge reject the answer": Row(
        lambda: trained(diverged=dict.fromkeys(range(5), True)), ("False", "AnswerDiverged")
    ),
    "too few probes with a loss tell nothing": Row(
        lambda: trained(diverged=dict.fromkeys(range(1, 5), True)), ("Unknown", "TooFewProbes")
    ),
    "neighbours that are lower on both sides tell nothing": Row(
        lambda: trained(lambda index, _: 2.5 if index == 0 else 2.4), ("Unknown", "NoMinimum")
    ),
    "probes that scatter as much as losses about the laws tell nothing": Row(
        lambda: noisy(trained(lambda index, _: (2.5, 2.55, 2.3, 2.7, 2.45)[index])),
        ("Unknown", "WithinNoise"),
        says="spec.validation.seeds and spec.validation.tokensShare",
    ),
    "probes that all come to the same, however noisy the laws, show a flat valley": Row(
        lambda: noisy(trained(lambda *_: 2.5)), ("True", "AnswerHolds")
    ),
    "a neighbour far below the answer rejects it": Row(
        lambda: trained(lambda index, _: (2.5, 2.8, 2.3, 2.52, 2.52)[index]),
        ("False", "BetterAnswerNearby"),
        says="a higher learning rate",
    ),
    "an answer below its neighbours holds": Row(trained, ("True", "AnswerHolds")),
    "a verdict needs the corpus no more": Row(
        lambda: replace(trained(), manifest=ABSENT, corpus=manifest()), ("True", "AnswerHolds")
    ),
}


def replace_result(**changes: Any) -> Any:
    return evaluation(parameters=MEASURED.parameters, **changes)


def noisy(prediction: ObservedPrediction) -> ObservedPrediction:
    """By laws whose residuals are so large that the noise between seeds may be anything."""
    laws: Laws = replace(QUIET_LAWS, surface=replace(QUIET_LAWS.surface, residual_rms=0.3))
    return replace(prediction, fit=fit(laws))


def overspent() -> ObservedPrediction:
    """The budget was lowered below what its probes have spent."""
    flops = probes()[0].flops
    world_ = started()
    assert isinstance(world_.probes.ledger, Ledger)
    points = tuple(
        replace(record, unfinished_flops=flops / 2) for record in world_.probes.ledger.points
    )
    ledger = world_.probes.ledger.replace(points=points)
    lowered = parsed_prediction(spec(budget={"flops": f"{flops:.0f}"}))
    return replace(world_, spec=lowered, probes=replace(world_.probes, ledger=ledger))


def writes(plan: PredictionPlan) -> tuple[int, int]:
    """Jobs of probes created and deleted."""
    return (
        (len(plan.probes.create), len(plan.probes.delete)) if plan.probes is not None else (0, 0)
    )


@pytest.mark.parametrize("name", ROWS)
def test_state(name: str) -> None:
    """The row's sentence holds."""
    row = ROWS[name]
    plan = decide_prediction(row.world())
    assert condition(plan, "Validated")[:2] == row.validated, condition(plan, "Validated")
    assert row.says in condition(plan, "Validated")[2]
    assert writes(plan) == (row.creates, row.deletes)


def happens(row: Row) -> str:
    """The last column of the README's table."""
    parts = [f"starts {row.creates} probes"] if row.creates > 1 else []
    parts += ["starts 1 probe"] if row.creates == 1 else []
    parts += [f"deletes {row.deletes} Jobs"] if row.deletes else []
    return "; ".join(parts) or "waits"


def test_the_state_table_in_the_readme_names_the_same_rows() -> None:
    """Row for row, in the order of the checks: sentence, Validated, its reason and what happens."""
    table = README.read_text().split("<!-- validation states -->")[1]
    found = re.findall(r"^\| (.+?) \| (\w+) \| `(\w+)` \| (.+?) \|$", table, flags=re.MULTILINE)
    assert found == [(name, *row.validated, happens(row)) for name, row in ROWS.items()]


@pytest.mark.parametrize("name", ROWS)
def test_the_answer_is_what_it_is_without_a_validation(name: str) -> None:
    """Its numbers, Ready, Stale and what is published do not depend on any probe."""
    asked = ROWS[name].world()
    plain = spec()
    del plain["validation"]
    suspended = {"suspend": True} if getattr(asked.spec, "suspend", False) else {}
    alone = decide_prediction(replace(asked, spec=parsed_prediction(plain | suspended), jobs=()))
    plan = decide_prediction(asked)
    for kind in ("Evaluated", "Ready", "Stale", "Stalled", "Reconciling"):
        assert condition(plan, kind) == condition(alone, kind)
    assert plan.publish == alone.publish
    fields = {"conditions", "validation", "refined"}
    assert plan.status.model_dump(exclude=fields) == alone.status.model_dump(exclude=fields)


def test_without_validation_there_is_neither_condition_nor_status() -> None:
    plan = decide_prediction(observed())
    assert "Validated" not in {each.type for each in plan.status.conditions}
    assert (plan.status.validation, plan.status.refined, plan.probes) == (None, None, None)


def test_probes_lie_around_the_answer_and_continue_its_checkpoint() -> None:
    """Twice and half its learning rate and batch size, from its weights, for the share of its budget."""
    raw = spec(tokensShare="0.3", podTemplate={"spec": {"nodeSelector": {"gpu": "h200"}}})
    raw["checkpoint"] = {"uri": CHECKPOINT, "secretName": "models-s3"}
    plan = decide_prediction(world(raw))
    points = probes(world(raw))
    rate, batch = points[0].learning_rate, points[0].batch_size
    status = plan.status
    assert status.learning_rate is not None
    assert rate == pytest.approx(float(status.learning_rate.value or 0), rel=0.05)
    assert [point.learning_rate / rate for point in points] == pytest.approx([1, 0.5, 2, 1, 1])
    sizes = sorted(point.batch_size / batch for point in points)
    assert sizes == pytest.approx([0.5, 1, 1, 1, 2], rel=0.01)
    budget = 1e19 / (6 * MEASURED.parameters.active)
    assert points[0].tokens == pytest.approx(0.3 * budget, rel=1e-3)
    assert plan.probes is not None
    request = plan.probes.create[0]
    assert isinstance(request.task, TrainTask)
    assert request.task.point.initial_weights == CHECKPOINT
    assert request.task.point.model == TOY_CHECKPOINT
    assert request.secret_names == ("sweep-s3", "models-s3")
    assert request.pod_templates == ({"spec": {"nodeSelector": {"gpu": "h200"}}},)
    assert request.task.claimant.sweep_uid == "uid-p"
    assert status.validation is not None
    assert float(status.validation.planned_flops) == pytest.approx(5 * 0.3 * 1e19, rel=1e-3)
    assert [place.state for place in status.validation.places] == ["Pending"] * 5


@pytest.mark.parametrize("budget", ["3.5e16", "1e16"])
def test_probes_too_short_to_be_judged_are_told_the_smallest_share_that_is_not(
    budget: str,
) -> None:
    def asked(share: float) -> dict[str, Any]:
        return {**spec(tokensShare=f"{share:g}"), "budget": {"flops": budget}}

    message = condition(decide_prediction(world(asked(1e15 / float(budget)))), "Validated")[2]
    enough = float(message.rpartition(" Set it to ")[2].removesuffix(" or more."))
    trains = decide_prediction(world(asked(enough)))
    assert condition(trains, "Validated")[:2] == ("Unknown", "Training")
    less = decide_prediction(world(asked(0.9 * enough)))
    assert condition(less, "Validated")[:2] == ("Unknown", "ProbesNotPossible")
    assert (
        condition(decide_prediction(trained(raw=asked(enough))), "Validated")[1] == "WithinNoise"
    )


def test_seeds_repeat_every_place() -> None:
    points = probes(world(spec(seeds=3)))
    assert len({point.key for point in points}) == len(points) == 15
    assert [point.seed for point in points[:3]] == [0, 1, 2]
    plan = decide_prediction(trained(raw=spec(seeds=3)))
    assert plan.status.validation is not None
    assert len(plan.status.validation.places) == 5
    assert plan.status.validation.points.succeeded == 15


def test_an_answer_that_hardly_moves_keeps_its_probes() -> None:
    """Laws that are fitted again, on another machine or with a point more, must not cost new ones."""
    slightly = replace_result(loss=3.2001)
    before = {point.key for point in probes(world())}
    assert {p.key for p in probes(world(evaluation=slightly))} == before


def test_an_answer_that_crosses_a_rounding_border_keeps_its_probes() -> None:
    """By 0.2 %: all five would be trained again, for one and a half planned runs at a share of 0.3."""
    first = world()
    answer = prediction_of(first)
    batch = replace(answer.batch_size, value=96.0)
    rate = answer.learning_rate
    border = replace(answer, batch_size=batch, batch_size_raw=92.4)
    beyond = replace(border, learning_rate=replace(rate, value=3.155e-4), batch_size_raw=92.6)
    border = replace(border, learning_rate=replace(rate, value=3.149e-4))
    at_border = with_answer(first, border)
    ledger = stored_ledger(decide_prediction(at_border))
    kept = with_answer(world(ledger=ledger), beyond)
    assert {p.key for p in probes(kept)} == {p.key for p in probes(at_border)}
    assert {p.key for p in probes(with_answer(first, beyond))} != {
        p.key for p in probes(at_border)
    }


def with_answer(world_: ObservedPrediction, answer: Prediction) -> ObservedPrediction:
    return replace(world_, probes=replace(world_.probes, prediction=answer))


def prediction_of(world_: ObservedPrediction) -> Prediction:
    view = prediction_view(world_)
    assert view is not None
    answer = view.prediction_in_sweep_sequences
    assert isinstance(answer, Prediction)
    return answer


def test_without_a_budget_the_probes_of_two_answers_are_paid() -> None:
    """Of the third none starts, and the condition says what to set."""
    first = world()
    spent = sum(point.flops for point in probes(first))
    ledger = stored_ledger(decide_prediction(first))

    def after_answers(count: float) -> PredictionPlan:
        carried = ledger.replace(carried=Spend(flops=count * spent))
        return decide_prediction(world(ledger=carried))

    assert writes(after_answers(1.0)) == (3, 0)
    over = after_answers(2.0)
    assert writes(over) == (0, 0)
    assert condition(over, "Validated")[:2] == ("Unknown", "BudgetExhausted")
    assert "set it to train more" in condition(over, "Validated")[2]
    written = spec(budget={"flops": f"{10 * spent:.4e}"})
    assert writes(
        decide_prediction(world(written, ledger=ledger.replace(carried=Spend(flops=2 * spent))))
    ) == (3, 0)


def test_another_answer_keeps_what_its_probes_have_cost_and_stops_them() -> None:
    """The budget of the validation counts those of former answers, too."""
    world_ = started()
    assert isinstance(world_.probes.ledger, Ledger)
    cost = probes()[0].flops / 4
    points = tuple(
        replace(record, unfinished_flops=cost) for record in world_.probes.ledger.points[:3]
    )
    ledger = world_.probes.ledger.replace(points=(*points, *world_.probes.ledger.points[3:]))
    moved = replace(
        world_, evaluation=replace_result(loss=3.0), probes=replace(world_.probes, ledger=ledger)
    )
    plan = decide_prediction(moved)
    assert writes(plan) == (0, 3), "new ones start once the slots are free"
    assert plan.status.validation is not None
    assert float(plan.status.validation.spent_flops) == pytest.approx(3 * cost)
    assert len(stored_ledger(plan).former) == 3


def costing(prediction: ObservedPrediction, flops: float) -> ObservedPrediction:
    """The same once its first probe has cost so much."""
    ledger = prediction.probes.ledger
    assert isinstance(ledger, Ledger)
    points = (replace(ledger.points[0], unfinished_flops=flops), *ledger.points[1:])
    paid = replace(prediction.probes, ledger=ledger.replace(points=points))
    return replace(prediction, jobs=(), probes=paid)


def test_what_probes_cost_under_another_sweep_counts_once_the_former_one_is_named_again() -> None:
    """Their ledger is in its store, and each store has one."""
    cost = probes()[0].flops / 4
    first = costing(started(), cost)
    plan = decide_prediction(first)
    elsewhere = parsed(sweep_spec(storage={"uri": "s3://elsewhere/lm"}))
    other = replace(
        after(first, plan, generation=2),
        sweep=sweep(name="other", uid="uid-o", spec=elsewhere),
        spec=parsed_prediction(spec() | {"sweepRef": {"name": "other"}}),
        probes=replace(first.probes, ledger=ABSENT),
    )
    moved = decide_prediction(other)
    paid = replace(other.probes, ledger=stored_ledger(moved))
    there = decide_prediction(costing(after(other, moved, probes=paid), cost))
    back = after(first, there, generation=3)
    counted = decide_prediction(back)
    kept = replace(back.probes, ledger=stored_ledger(counted))
    again = decide_prediction(after(back, counted, probes=kept))
    for each in (moved, there, counted, again):
        assert each.status.validation is not None
    spent = [float(each.status.validation.spent_flops) for each in (moved, there, counted, again)]
    assert spent == pytest.approx([cost, 2 * cost, 2 * cost, 2 * cost], rel=1e-4)
    assert again.probes is not None
    assert again.probes.ledger is None, "it has what it needs"


def test_results_that_are_in_the_store_already_are_taken_and_cost_nothing() -> None:
    """Points are named by their content: another prediction of the same answer has trained them."""
    plan = decide_prediction(trained())
    assert writes(plan) == (0, 0)
    validation = plan.status.validation
    assert validation is not None
    assert (validation.points.adopted, validation.spent_flops, validation.progress) == (
        5,
        "0",
        "5/5",
    )


def test_probes_of_a_former_question_do_not_go_on_while_nobody_answers_the_next() -> None:
    """Another checkpoint is not measured yet, or cannot be: each probe costs a share of the whole budget."""
    trains = {"fit": ABSENT, "sweep": sweep("False", "Training", generation=2)}
    world_ = after(started(), decide_prediction(started()), **trains)
    assert writes(decide_prediction(world_)) == (0, 0)
    other = spec() | {"checkpoint": {"uri": "s3://models/dense-70b"}}
    edited = replace(world_, generation=2, spec=parsed_prediction(other), evaluation=ABSENT)
    assert writes(decide_prediction(edited)) == (0, 3)
    invalid = replace(world_, generation=2, spec=parsed_prediction({"sweepRef": {}}))
    back = after(invalid, decide_prediction(invalid), generation=3, spec=world_.spec)
    assert writes(decide_prediction(back)) == (0, 0), "the same is asked as before"


def test_probes_without_a_validation_are_stopped() -> None:
    plain = prediction_spec()
    plan = decide_prediction(replace(started(), spec=parsed_prediction(plain)))
    assert writes(plan) == (0, 3)
    assert plan.status.validation is None


def slightly_better(index: int, _: PlannedPoint) -> float:
    return (2.5, 2.515, 2.512, 2.515, 2.515)[index]


def test_longer_probes_than_are_asked_for_are_judged_as_long_as_they_are() -> None:
    """After the share was lowered, and of another prediction that adopts them."""
    long = trained(slightly_better, spec(tokensShare="1"))
    plan = decide_prediction(long)
    assert condition(plan, "Validated")[:2] == ("True", "AnswerHolds")
    lowered = world(spec(tokensShare="0.1"), generation=2, ledger=stored_ledger(plan))
    other = world(spec(tokensShare="0.1"), uid="uid-q", results=dict(long.probes.results))
    for each in (lowered, other):
        again = decide_prediction(each)
        assert writes(again) == (0, 0)
        assert condition(again, "Validated") == condition(plan, "Validated")
        assert again.status.refined == plan.status.refined
        assert again.status.validation is not None
        assert plan.status.validation is not None
        assert again.status.validation.tokens == plan.status.validation.tokens
        assert again.status.validation.regret == plan.status.validation.regret


def of_two_lengths() -> tuple[ObservedPrediction, PredictionPlan]:
    """Three probes have seen the whole budget and two a tenth of it, of which all would have had the same losses; and
    the pass that records them."""
    asked = spec(tokensShare="0.1")
    full, short = probes(world(spec(tokensShare="1"))), probes(world(asked))
    found = {p.key: result(p, averaged_loss=2.1, loss=2.1) for p in full[:3]}
    found |= {
        p.key: result(p, averaged_loss=slightly_better(n, p), loss=9.0)
        for n, p in enumerate(short)
        if n >= 3
    }
    first = world(asked, results=found)
    plan = decide_prediction(first)
    return world(asked, ledger=stored_ledger(plan)), plan


def test_probes_of_two_lengths_are_compared_at_the_shorter() -> None:
    """By the longer ones' trajectories there, for what these tokens cost."""
    world_, plan = of_two_lengths()
    assert condition(plan, "Validated")[:2] == ("Unknown", "NotYetKnown")
    assert plan.requeue_after <= 60.0
    assert probe_reads(prediction_view(world_), frozenset()).courses == {
        record.key: record.trajectory_sha256 for record in stored_ledger(plan).points[:3]
    }
    (short, *_) = probes(world_)
    at = short.tokens
    courses = {
        p.key: ((at // 2, 5.0), (at * 2, 2 * slightly_better(n, p) - 5.0), (at * 10, 2.1))
        for n, p in enumerate(probes(world_)[:3])
    }
    compared = replace(world_, probes=replace(world_.probes, courses=courses))
    again = decide_prediction(compared)
    as_short = decide_prediction(trained(slightly_better, spec(tokensShare="0.1")))
    assert condition(again, "Validated") == condition(as_short, "Validated")
    assert again.status.refined == as_short.status.refined
    assert again.status.validation is not None
    assert as_short.status.validation is not None
    for name in ("tokens", "places", "regret"):
        said, expected = again.status.validation, as_short.status.validation
        assert getattr(said, name) == getattr(expected, name)


@pytest.mark.parametrize(
    "course", [ABSENT, Unreadable("s3://bucket/x: truncated"), (), ((10**14, 2.0),)]
)
def test_probes_of_two_lengths_without_trajectories_say_what_to_change(course: Any) -> None:
    world_, _ = of_two_lengths()
    courses = dict.fromkeys((p.key for p in probes(world_)[:3]), course)
    plan = decide_prediction(replace(world_, probes=replace(world_.probes, courses=courses)))
    status, reason, message = condition(plan, "Validated")
    assert (status, reason) == ("Unknown", "TooFewProbes")
    assert "raise spec.validation.tokensShare" in message


def test_a_verdict_stands_while_the_store_does_not_give_out_a_trajectory() -> None:
    world_ = judged()
    away = replace(world_.probes, courses={probes()[0].key: Unanswered("timeout")})
    assert (
        decide_prediction(replace(world_, probes=away)).status == decide_prediction(world_).status
    )


def test_probes_that_are_longer_than_the_budget_are_compared_at_its_tokens() -> None:
    """It was lowered since, by so little that the answer kept its probes."""
    first = trained(slightly_better)
    plan = decide_prediction(first)
    asked = spec() | {"budget": {"flops": "9e18"}}
    lowered = world(asked, generation=2, ledger=stored_ledger(plan))
    assert [p.key for p in probes(lowered)] == [p.key for p in probes(first)]
    assert len(probe_reads(prediction_view(lowered), frozenset()).courses) == 5
    courses = {
        p.key: ((1, 2.0), (p.tokens, 2.0 + slightly_better(n, p) - 2.5))
        for n, p in enumerate(probes(first))
    }
    said = decide_prediction(replace(lowered, probes=replace(lowered.probes, courses=courses)))
    assert condition(said, "Validated")[1] != "TooFewProbes"
    assert said.status.validation is not None
    budget = 9e18 / (6 * MEASURED.parameters.active)
    assert said.status.validation.tokens == pytest.approx(budget, rel=0.01)


def test_a_verdict_shows_its_figures_and_the_refined_answer_beside_the_laws_own() -> None:
    plan = decide_prediction(judged())
    status, validation, refined = plan.status, plan.status.validation, plan.status.refined
    assert validation is not None
    assert refined is not None
    assert validation.beats_neighbours is True
    assert validation.regret is not None
    assert [place.better for place in validation.places] == ["", *["answer"] * 4]
    assert [place.difference for place in validation.places] == ["", *["0.0500"] * 4]
    assert refined.learning_rate is not None
    assert status.learning_rate is not None
    own, narrow = (
        float(each.high or 0) / float(each.low or 1)
        for each in (status.learning_rate, refined.learning_rate)
    )
    assert narrow < own
    assert len(status.model_dump_json(by_alias=True, exclude_none=True)) < 16 * 2**10


def test_a_second_pass_repeats_the_verdict_to_the_letter_and_sleeps() -> None:
    """A status that changed by itself would be written for ever."""
    world_ = judged()
    plan = decide_prediction(world_)
    again = decide_prediction(after(world_, plan, now=NOW + timedelta(hours=1)))
    assert again.status == plan.status
    assert again.events == ()
    assert again.probes == TaskWrites()
    assert again.requeue_after == float("inf")


def test_a_verdict_is_told_by_an_event_once() -> None:
    told = [event.reason for event in decide_prediction(trained()).events]
    assert told.count("AnswerHolds") == 1


def test_refined_batch_sizes_are_in_sequences_of_the_planned_run() -> None:
    """The sweep has 128 tokens per sequence: 16 times shorter ones are 16 times as many."""
    plain = trained(raw=spec() | {"batchSizeMultipleOf": 1})
    short = trained(raw=spec() | {"batchSizeMultipleOf": 1, "targetSequenceLength": 8})
    assert [p.key for p in probes(plain)] == [p.key for p in probes(short)]
    batches = []
    for each in (plain, short):
        refined = decide_prediction(each).status.refined
        assert refined is not None
        assert refined.batch_size is not None
        batches.append(float(refined.batch_size.value or 0))
    assert batches[1] / batches[0] == pytest.approx(16, rel=0.05)


def test_the_page_of_an_answer_has_the_refined_batch_size_in_the_sequences_of_the_laws() -> None:
    """As the probes beside it are."""
    plan = decide_prediction(trained(raw=spec() | {"targetSequenceLength": 8}))
    refined = plan.status.refined
    assert refined is not None
    assert refined.batch_size is not None
    assert plan.page is not None
    shown = probed_by(plan.page.resource, 128)
    assert shown is not None
    assert shown.batch_size is not None
    assert shown.batch_size.value == pytest.approx(float(refined.batch_size.value or 0) / 16)


def test_the_page_of_a_verdict_is_drawn_at_once() -> None:
    """Nor does it wait for the rest that others keep; one with another loss is drawn a minute after the last at the earliest."""
    before = decide_prediction(started())
    assert before.page is not None
    assert not before.page.provisional, "the first of an answer"
    page = {"page_shows": before.page.inputs, "page_seconds": 5.0}
    verdict = decide_prediction(after(trained(), before, **page))
    assert condition(verdict, "Validated")[1] == "AnswerHolds"
    assert verdict.page is not None
    assert not verdict.page.provisional
    again = decide_prediction(after(noisy(trained()), verdict, **page))
    assert condition(again, "Validated")[1] == "WithinNoise"
    assert again.page is not None
    other = noisy(trained(lambda index, _: 2.5 if index == 0 else 2.56))
    the_same = decide_prediction(after(other, again, **page))
    assert condition(the_same, "Validated")[1] == "WithinNoise"
    assert the_same.page is None
    assert the_same.requeue_after <= 55.0
    later = decide_prediction(
        after(other, again, page_shows=before.page.inputs, page_seconds=61.0)
    )
    assert later.page is not None
    assert later.page.provisional


def test_finished_probes_are_recorded_before_their_jobs_may_go() -> None:
    """As a sweep's: once the stored ledger knows what became of them."""
    world_ = started()
    point = probes()[0]
    done = complete(point, generation=1)
    jobs = (done, *world_.jobs[1:])
    ended = replace(
        world_, jobs=jobs, probes=replace(world_.probes, results={point.key: result(point)})
    )
    plan = decide_prediction(ended)
    assert plan.probes is not None
    assert plan.probes.expire == ()
    ledger = stored_ledger(plan)
    assert ledger.points[0].state is PointState.SUCCEEDED
    (created,) = [each.labels["isoloss.dev/key"] for each in plan.probes.create]
    assert created in {each.key for each in probes()[3:]}
    later = decide_prediction(replace(ended, probes=replace(ended.probes, ledger=ledger)))
    assert later.probes is not None
    assert [each.name for each in later.probes.expire] == [done.name]


@pytest.mark.parametrize("validation", [{"tokensShare": "1"}, None])
def test_finished_jobs_of_a_sweep_that_is_gone_expire(validation: Any) -> None:
    """The ledger that would record them is in its store, and while a sweep is made again they are still there."""
    over = (complete(probes()[0]), failed(probes()[1]), evaluate_job(complete=True))
    asked = parsed_prediction(prediction_spec(validation=validation))
    gone = replace(started(), spec=asked, sweep=None, jobs=(*over, started().jobs[2]))
    plan = decide_prediction(gone)
    assert plan.probes is not None
    expire = {each.name: each.seconds for each in plan.probes.expire}
    assert expire == {over[0].name: 600, over[1].name: 86400, over[2].name: 600}
    away = decide_prediction(replace(gone, sweep=sweep(), store_error="timeout"))
    assert away.probes is None or away.probes.expire == ()


def test_what_is_read_of_probes_is_what_a_decision_asks_for() -> None:
    """Results of ended Jobs and of stored points, progress of running ones, of stopped ones and of those whose Job is
    gone."""
    world_ = started()
    keys = [point.key for point in probes()]
    working = replace(world_, now=NOW + timedelta(minutes=5))
    reads = probe_reads(prediction_view(working), frozenset(keys[3:]))
    assert set(reads.results) == set(keys[3:])
    assert set(reads.progress) == set(keys)
    impossible = replace(working, probes=replace(working.probes, config=ABSENT))
    assert set(probe_reads(prediction_view(impossible), frozenset()).progress) == set(keys[:3])


UNKNOWN_WORLDS: dict[str, dict[str, Any]] = {
    "no sweep": {"sweep": None, "manifest": ABSENT, "fit": ABSENT, "evaluation": ABSENT},
    "a sweep that prepares its corpus": {
        "sweep": sweep("False", "PreparingData", generation=2),
        "manifest": ABSENT,
        "fit": ABSENT,
        "evaluation": ABSENT,
    },
    "no store": {"store_error": "s3://bucket: timeout"},
    "no right to the store": {"storage_refusal": "research may use s3://bucket only"},
    "no ledger": {"probes": replace(judged().probes, ledger=Unanswered("timeout"))},
    "a sweep that trains": {"sweep": sweep("False", "Training", generation=2), "fit": ABSENT},
}


@pytest.mark.parametrize("changes", UNKNOWN_WORLDS.values(), ids=UNKNOWN_WORLDS)
@pytest.mark.parametrize(
    "raw",
    [
        spec() | {"checkpoint": {"uri": "s3://models/dense-70b"}},
        spec() | {"budget": {"flops": "2e19"}},
        spec(tolerance="0.0001"),
        {"sweepRef": {}},
    ],
    ids=["checkpoint", "budget", "tolerance", "invalid"],
)
def test_a_verdict_on_a_former_spec_is_not_said_of_another(
    changes: dict[str, Any], raw: dict[str, Any]
) -> None:
    """Neither in the first pass over the edit nor later; what the probes have cost stays."""
    world_ = replace(judged(), generation=2, spec=parsed_prediction(raw), **changes)
    for _ in range(2):
        plan = decide_prediction(world_)
        assert condition(plan, "Validated")[0] == "Unknown"
        status = plan.status
        assert status.refined is None
        assert status.validation is not None
        assert (status.validation.regret, status.validation.places) == (None, ())
        world_ = after(world_, plan)


@pytest.mark.parametrize("changes", UNKNOWN_WORLDS.values(), ids=UNKNOWN_WORLDS)
def test_probes_without_a_validation_are_stopped_whatever_is_known(
    changes: dict[str, Any],
) -> None:
    world_ = replace(started(), generation=2, spec=parsed_prediction(prediction_spec()), **changes)
    plan = decide_prediction(world_)
    assert writes(plan) == (0, 3)
    assert "Validated" not in {each.type for each in plan.status.conditions}


def test_probes_are_stopped_when_their_prediction_turns_to_a_sweep_without_a_corpus() -> None:
    """What they have cost is recorded once the ledger is there again, and counts against their budget."""
    hour_ago = NOW - timedelta(hours=1)
    first = started()
    jobs = tuple(replace(each, working_since=hour_ago, accelerators=1) for each in first.jobs)
    moved = replace(
        first,
        jobs=jobs,
        generation=2,
        spec=parsed_prediction(spec() | {"sweepRef": {"name": "dense-v2"}}),
        sweep=sweep("False", "PreparingData", name="dense-v2", uid="uid-v2"),
        manifest=ABSENT,
        fit=ABSENT,
        evaluation=ABSENT,
    )
    plan = decide_prediction(moved)
    assert condition(plan, "Validated")[:2] == ("Unknown", "AnswerAwaited")
    assert writes(plan) == (0, 3)
    assert [each.uid for each in plan.stopped] == [each.uid for each in jobs]
    again = decide_prediction(after(moved, plan, stopped=plan.stopped))
    assert again.stopped == plan.stopped
    assert again.status.validation is not None
    assert again.status.validation.points.active == 0
    back = decide_prediction(replace(first, jobs=(), stopped=plan.stopped))
    assert back.status.validation is not None
    assert float(back.status.validation.accelerator_hours) == pytest.approx(3)


@pytest.mark.parametrize(
    "changes",
    [
        {"fit": ABSENT, "sweep": sweep("False", "Training", generation=2)},
        {"sweep": sweep(spec=InvalidSpec([]))},
    ],
)
def test_probes_that_ended_while_nobody_can_judge_them_are_not_told_as_active(
    changes: dict[str, Any],
) -> None:
    """The alert on probes without progress would go on for as long, and a completion in the past be promised."""
    world_ = after(started(), decide_prediction(started()))
    told = decide_prediction(replace(world_, **changes)).status.validation
    assert told is not None
    assert told.points.active == 3
    over = tuple(complete(probe) for probe in probes()[:3])
    plan = decide_prediction(replace(world_, jobs=over, **changes))
    assert condition(plan, "Validated")[:2] == ("Unknown", "AnswerAwaited")
    told = plan.status.validation
    assert told is not None
    assert (told.points.active, told.points.pending) == (0, 5)
    assert {place.state for place in told.places} == {"Pending"}
    assert told.estimated_completion == ""


@pytest.mark.parametrize("changes", UNKNOWN_WORLDS.values(), ids=UNKNOWN_WORLDS)
def test_a_verdict_stands_when_the_prediction_is_suspended_or_its_probes_get_more(
    changes: dict[str, Any],
) -> None:
    world_ = judged()
    before = decide_prediction(world_).status
    for raw in (spec() | {"suspend": True}, spec(parallelism=5, budget={"flops": "1e21"})):
        asked = parsed_prediction(raw)
        plan = decide_prediction(replace(world_, generation=2, spec=asked, **changes))
        assert condition(plan, "Validated")[:2] == ("True", "AnswerHolds")
        assert plan.status.validation == before.validation
        assert plan.status.refined == before.refined


@pytest.mark.parametrize(
    "outage", [{"ledger": Unanswered("timeout")}, {"config": Unanswered("timeout")}]
)
def test_a_verdict_stands_while_the_store_gives_out_neither_ledger_nor_config(
    outage: Mapping[str, Any],
) -> None:
    """Nothing is concluded from no answer."""
    world_ = judged()
    before = decide_prediction(world_)
    away = decide_prediction(replace(world_, probes=replace(world_.probes, **outage)))
    assert away.status == before.status
    assert writes(away) == (0, 0)
    assert away.requeue_after <= 60.0


@pytest.mark.parametrize(
    "away",
    [
        {"sweep": None},
        {"sweep": sweep(spec=InvalidSpec([]))},
        {"store_error": "s3://bucket: timeout"},
        {"probes": ObservedProbes(ledger=Unanswered("timeout"))},
        {"probes": ObservedProbes(config=Unanswered("timeout"))},
        {"fit": ABSENT, "sweep": sweep("False", "Training", generation=2)},
    ],
)
@pytest.mark.parametrize("suspend", [False, True])
def test_a_verdict_that_leaves_it_open_stands_as_any_other(
    away: dict[str, Any], suspend: bool
) -> None:
    """Nothing that nobody can look at now has changed it."""
    first = noisy(trained(lambda index, _: (2.5, 2.55, 2.3, 2.7, 2.45)[index]))
    plan = decide_prediction(first)
    assert condition(plan, "Validated")[:2] == ("Unknown", "WithinNoise")
    asked = parsed_prediction(spec() | {"suspend": suspend})
    again = decide_prediction(after(first, plan, **{"spec": asked, **away}))
    assert condition(again, "Validated") == condition(plan, "Validated")


def test_of_probes_that_nobody_asked_for_a_suspension_says_nothing() -> None:
    """Under an invalid spec it is not known whether some are asked for by now: what was told before says."""
    refused = InvalidSpec([])
    refused.suspend = True
    plan = decide_prediction(replace(observed(), spec=refused))
    assert "Validated" not in {each.type for each in plan.status.conditions}


def test_a_pass_asks_the_laws_once_for_reads_plan_and_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the answer is in other sequences than the laws'."""
    asked: list[object] = []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments)
        return predict(*arguments)

    monkeypatch.setattr(prediction_status, "predict", counted)
    reading = world({**spec(), "targetSequenceLength": 4096})
    view = prediction_view(reading)
    assert view is not None
    assert probe_reads(view, frozenset()) is not None
    known = view.prediction_in_sweep_sequences
    read = replace(reading, probes=replace(reading.probes, prediction=known))
    plan = decide_prediction(read)
    assert len(asked) == 1
    assert plan == decide_prediction(reading), "as without what the reads have worked out"


def test_after_the_last_seed_of_the_api_comes_the_first() -> None:
    last = sweep(spec=parsed(sweep_spec(training={"seed": 2**31 - 1})))
    plan = decide_prediction(world(spec(seeds=2), sweep=last))
    assert {request.task.point.seed for request in plan.probes.create} <= {2**31 - 1, 0}
    for request in plan.probes.create:
        TrainTask.model_validate_json(request.task.model_dump_json())


def test_probes_of_a_far_multiple_are_judged_at_the_multiple_for_another_sequence_length() -> None:
    """The sweep's best batch size is some 1,400 sequences of 128 tokens."""
    raw = {**spec(), "batchSizeMultipleOf": 480, "targetSequenceLength": 256}
    view = prediction_view(world(raw))
    assert view is not None
    planned = planned_probes(view)
    assert isinstance(planned, PlannedProbes)
    answer = predict(planned.fit.laws, planned.query)
    assert isinstance(answer, Prediction)
    assert answer.batch_size.value == 960
    assert any(abs(point.batch_size / 960 - 1) < 0.01 for point in planned.points)
    best = answer.routes["surface"]
    bowl = loss_curvature(planned.fit.laws)

    def losses(_: int, point: PlannedPoint) -> float:
        x = np.log([point.learning_rate, point.batch_size])
        x -= np.log([best.learning_rate.value, best.batch_size.value])
        return 2.5 + 0.5 * float(x @ bowl @ x)

    status = decide_prediction(noisy(trained(losses, raw=raw))).status
    assert status.validation is not None
    assert len(status.validation.places) == len(planned.points)
    assert status.refined is not None
    found = status.refined.batch_size
    assert found is not None
    # The probes' optimum is the best pair's, in twice as long sequences; the multiple is no knowledge of it.
    assert float(found.low or 0) < best.batch_size.value / 2 < float(found.high or 0)
    assert float(found.high or 0) > 1.2 * float(found.low or 0)


def test_with_a_given_batch_size_probes_at_it_judge_the_learning_rate() -> None:
    raw = {**spec(), "batchSizeMultipleOf": 1, "batchSize": 512}
    assert {point.batch_size for point in planned(world(raw)).points} == {512}
    verdict = condition(decide_prediction(noisy(trained(lambda *_: 2.5, raw=raw))), "Validated")
    assert verdict[1] != "TooFewProbes"
    assert "The learning rate alone is judged, by the probes at 512 sequences" in verdict[2]


def test_probes_are_not_trained_again_because_a_checkpoint_may_not_be_listed_any_more() -> None:
    """Under the URI alone its evaluation and they have other keys, and their results would not be found."""
    refused = replace(judged(), checkpoint_stamp=ABSENT)
    plan = decide_prediction(refused)
    assert plan.create == ()
    assert plan.probes is None or plan.probes.create == ()
    assert condition(plan, "Validated") == condition(decide_prediction(judged()), "Validated")


def test_the_condition_says_what_makes_the_probes_doubtful() -> None:
    said = condition(decide_prediction(noisy(trained(lambda *_: 9.5))), "Validated")
    assert said[:2] == ("True", "AnswerHolds")
    assert "ends at a loss of 9.5000" in said[2]
