"""In which order a plan is carried out, where a part of it is refused."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_contract.reading import ABSENT
from isoloss_operator.cluster.client import PREDICTION, SWEEP, ResourceKey, Unavailable
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.observation import ObservedPrediction, PublishedAnswer
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.reconcile.memory import UNANSWERED_PASSES, Memory, carry_out
from isoloss_operator.reconcile.prediction import PredictionSteps
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.sweep import SweepSteps
from tests.support import predictions
from tests.support.builders import observed, points, result
from tests.support.simulated_services import services_of
from tests.support.simulator import Simulator
from tests.support.sweep_worlds import known


def carried_out(simulator: Simulator, world: Any, plan: Any) -> Memory:
    """What is remembered of a pass that is not done with its plan."""
    kind = SWEEP if isinstance(plan, SweepPlan) else PREDICTION
    steps: Any = SweepSteps if kind is SWEEP else PredictionSteps
    simulator.jobs = {job.name: job for job in world.jobs}
    owner, memory = Owner(kind, world.namespace, world.name, world.uid), Memory(world.uid)
    key = ResourceKey(kind, world.namespace, world.name)
    resource = Resource(key, owner, {"metadata": {"generation": world.generation}}, memory)
    apply = steps(services_of(simulator)).apply
    assert not carry_out(memory, world.generation, lambda: apply(resource, world, plan))
    return memory


def test_what_is_done_is_fitted_while_the_next_job_is_refused() -> None:
    done = points()[:4]
    world = known(observed(), results={point.key: result(point) for point in done})
    plan = decide_sweep(world)
    assert plan.fit is not None
    assert plan.create
    simulator = Simulator(refuses_jobs="exceeded quota")
    assert carried_out(simulator, world, plan).create_error == "exceeded quota"
    assert simulator.fit_running == plan.fit


@pytest.mark.parametrize(
    "refusal", [{"refuses_jobs": "quota"}, {"refuses_ledgers": True}], ids=["Job", "ledger"]
)
def test_a_withdrawn_answer_is_published_no_more_although_the_next_one_is_held_up(
    refusal: dict[str, Any],
) -> None:
    """A step of a pipeline would go on with the learning rate of another checkpoint."""
    other = predictions.prediction_spec(checkpoint={"uri": "s3://models/other"})
    world = replace(
        predictions.after(predictions.answered(), decide_prediction(predictions.answered())),
        spec=predictions.parsed_prediction(other),
        generation=2,
        evaluation=ABSENT,
    )
    if "refuses_ledgers" in refusal:
        first = decide_prediction(world).create[0]
        crashed = predictions.ended(1, key=first.labels["isoloss.dev/key"])
        world = replace(world, jobs=(crashed,))
    plan = decide_prediction(world)
    assert plan.create or plan.ledger
    simulator = Simulator(**refusal)
    carried_out(simulator, world, plan)
    (published,) = simulator.config_maps.values()
    assert published["ready"] == "false"
    assert "learningRate" not in published


@pytest.mark.parametrize(("rate", "goes"), [("1", True), (None, False)])
def test_an_answer_that_is_withdrawn_does_not_stay_where_nothing_may_be_published(
    rate: str | None, goes: bool
) -> None:
    """Neither under the wanted name, as in an immutable ConfigMap, nor under a former one."""
    said = decide_prediction(predictions.observed()).publish
    assert said is not None
    data = {**said.data, **({"learningRate": rate} if rate else {}), "stale": "true"}
    found = {"metadata": {"name": said.name, "uid": "u1", "resourceVersion": "1"}, "data": data}
    former = {"former": PublishedAnswer("u2", data)}
    world = predictions.observed(config_map=found, published=former)
    stored = {"former": data, said.name: data}
    simulator = Simulator(config_maps={**stored}, refuses_config_maps=True)
    plan = replace(decide_prediction(world), page=None)
    assert carried_out(simulator, world, plan).publish_error
    assert simulator.config_maps == ({} if goes else stored)


def test_while_a_webhook_for_config_maps_is_down_the_answer_is_shown() -> None:
    """As when its quota is full: a new prediction had no answer for as long as it was."""

    def down(*_: object) -> None:
        raise Unavailable('POST configmaps: 500 failed calling webhook "x"', 500)

    services = services_of(Simulator())
    services.cluster = SimpleNamespace(create=down)
    world, steps = predictions.observed(), PredictionSteps(services)
    plan = replace(decide_prediction(world), page=None)
    owner = Owner(PREDICTION, world.namespace, world.name, world.uid)
    key = ResourceKey(PREDICTION, world.namespace, world.name)
    resource = Resource(key, owner, {"metadata": {"generation": 1}}, Memory(world.uid))

    def passes(observed: ObservedPrediction) -> bool:
        return carry_out(resource.memory, 1, lambda: steps.apply(resource, observed, plan))

    with pytest.raises(Unavailable):
        passes(world)
    resource.memory.unanswered = UNANSWERED_PASSES
    assert not passes(world)
    error = resource.memory.publish_error
    assert 'webhook "x"' in error
    assert resource.memory.publish_error_may_pass
    resource.memory.unanswered = 0  # that pass has come to its end
    assert not passes(replace(world, publish_error=error))
    assert resource.memory.publish_error == error
