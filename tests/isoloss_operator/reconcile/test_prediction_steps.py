"""In which order a prediction's plan is carried out."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_contract.reading import ABSENT
from isoloss_contract.store import StoreUnavailable
from isoloss_operator.cluster.client import PREDICTION, Refused, ResourceKey
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.observation import PublishedAnswer
from isoloss_operator.decide.prediction import decide_prediction
from isoloss_operator.reconcile.memory import Memory, carry_out
from isoloss_operator.reconcile.prediction import PredictionSteps
from isoloss_operator.reconcile.resource import Resource
from tests.support import predictions


def of_generation(generation: int) -> Resource:
    """The prediction of these tests as a pass finds it, remembered by nobody."""
    key = ResourceKey(PREDICTION, "research", "dense-8b")
    owner = Owner(PREDICTION, key.namespace, key.name, "uid-p")
    return Resource(key, owner, {"metadata": {"generation": generation}}, Memory("uid-p"))


def nothing(*_: object) -> None:
    pass


def quota(*_: object) -> None:
    raise CreateRefused("exceeded quota", may_pass=True)


def full_bucket(*_: object) -> None:
    raise StoreUnavailable("quota exceeded")


@pytest.mark.parametrize(
    ("create", "write"), [(quota, nothing), (nothing, full_bucket)], ids=["Job", "ledger"]
)
def test_a_withdrawn_answer_is_published_no_more_although_the_next_one_is_held_up(
    create: Callable[..., None], write: Callable[..., None]
) -> None:
    """A step of a pipeline would go on with the learning rate of another checkpoint."""
    other = predictions.prediction_spec(checkpoint={"uri": "s3://models/other"})
    world = replace(
        predictions.after(predictions.answered(), decide_prediction(predictions.answered())),
        spec=predictions.parsed_prediction(other),
        generation=2,
        evaluation=ABSENT,
    )
    if write is full_bucket:
        first = decide_prediction(world).create[0]
        crashed = predictions.ended(1, key=first.labels["isoloss.dev/key"])
        world = replace(world, jobs=(crashed,))
    plan = decide_prediction(world)
    assert plan.create or plan.ledger
    config_maps: list[dict[str, Any]] = []
    services: Any = SimpleNamespace(
        cluster=SimpleNamespace(create=lambda _kind, _namespace, body: config_maps.append(body)),
        jobs=SimpleNamespace(delete=nothing, expire=nothing, create=create),
        ledgers=SimpleNamespace(write=write),
    )
    steps, resource = PredictionSteps(services), of_generation(2)
    assert not carry_out(resource.memory, 2, lambda: steps.apply(resource, world, plan))
    (published,) = config_maps
    assert published["data"]["ready"] == "false"
    assert "learningRate" not in published["data"]


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
    deleted: list[str] = []

    def refuse(*_: object) -> None:
        raise Refused("PATCH configmaps: 422 field is immutable", 422)

    services: Any = SimpleNamespace(
        cluster=SimpleNamespace(
            patch=refuse, delete=lambda _kind, _namespace, name, _uid: deleted.append(name)
        ),
        jobs=SimpleNamespace(delete=nothing, expire=nothing, create=nothing),
        ledgers=SimpleNamespace(write=nothing),
    )
    plan = replace(decide_prediction(world), page=None)
    steps, resource = PredictionSteps(services), of_generation(1)
    assert not carry_out(resource.memory, 1, lambda: steps.apply(resource, world, plan))
    assert resource.memory.publish_error
    assert deleted == (["former", said.name] if goes else [])
