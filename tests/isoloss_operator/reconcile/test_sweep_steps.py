"""In which order a sweep's plan is carried out."""

from types import SimpleNamespace
from typing import Any

from isoloss_operator.cluster.client import SWEEP, ResourceKey
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.reconcile.memory import Memory, carry_out
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.sweep import SweepSteps
from tests.support.builders import UID, observed, points, result
from tests.support.sweep_worlds import known


def nothing(*_: object) -> None:
    pass


def quota(*_: object) -> None:
    raise CreateRefused("exceeded quota", may_pass=True)


def test_what_is_done_is_fitted_while_the_next_job_is_refused() -> None:
    done = points()[:4]
    world = known(observed(), results={point.key: result(point) for point in done})
    plan = decide_sweep(world)
    assert plan.fit is not None
    assert plan.create
    started: list[object] = []
    services: Any = SimpleNamespace(
        jobs=SimpleNamespace(delete=nothing, expire=nothing, create=quota),
        ledgers=SimpleNamespace(write=nothing),
        storage=SimpleNamespace(anchor=lambda uri: uri),
        fitter=SimpleNamespace(
            forget=nothing, start=lambda _uid, _key, job: started.append(job.request)
        ),
        metrics=SimpleNamespace(attempts=None),
    )
    memory, key = Memory(UID), ResourceKey(SWEEP, "research", "demo")
    resource = Resource(key, Owner(SWEEP, "research", "demo", UID), {"metadata": {}}, memory)
    steps = SweepSteps(services)
    assert not carry_out(memory, 1, lambda: steps.apply(resource, world, plan))
    assert memory.create_error == "exceeded quota"
    assert started == [plan.fit]
