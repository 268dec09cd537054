"""Sweeps on their way, as a pass observes them: eight points, three of which may train at a time."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

from isoloss.laws import FitOptions, Refusal, RefusalReason, refused_laws
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT
from isoloss_contract.records import ExitCode
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.fits import FitOutcome, PointDecision
from isoloss_operator.decide.observation import (
    ObservedJob,
    ObservedPod,
    ObservedSweep,
    ObservedWorkload,
)
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.record import fit_inputs
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.points import PlannedPoint, prepare_config
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support import builders
from tests.support.synthetic_runs import fitted_laws

POINTS = builders.points()
FIRST = POINTS[0]
SEQUENTIAL = {"strategy": "Sequential"}
PREPARE_KEY = prepare_config(parse_sweep_spec(builders.sweep_spec())).key


def known(world: ObservedSweep, **changes: Any) -> ObservedSweep:
    """The world one pass later: ledger and status of that pass are written."""
    return builders.after(world, decide_sweep(world), **changes)


def training(**changes: Any) -> ObservedSweep:
    """Three points train and the ledger knows all eight."""
    return known(
        builders.observed(), **{"jobs": tuple(builders.job(p) for p in POINTS[:3]), **changes}
    )


def ending(first: ObservedJob, **changes: Any) -> ObservedSweep:
    """Three points train, and the Job of the first has come to this."""
    return training(jobs=(first, *(builders.job(p) for p in POINTS[1:3])), **changes)


def unprepared(*jobs: Any, **changes: Any) -> ObservedSweep:
    return known(builders.observed(manifest=ABSENT), jobs=jobs, **changes)


def all_done(**changes: Any) -> ObservedSweep:
    """Every point has its result in the ledger."""
    world = builders.observed(results={p.key: builders.result(p) for p in POINTS})
    return known(world, results={}, **changes)


def with_fit(world: ObservedSweep, laws: Any, **changes: Any) -> ObservedSweep:
    """The final fit of the ledger's points is done."""
    assert isinstance(world.ledger, Ledger)
    inputs = fit_inputs(spec_of(world), world.ledger.points, final=True)
    fit = FitOutcome(inputs=inputs, laws=laws, laws_sha256="f" * 64, points=8, **changes)
    return replace(world, fit=fit)


def ready() -> ObservedSweep:
    """Its final laws are in the status."""
    return known(with_fit(all_done(), fitted_laws()))


def search_answered(**outcome: Any) -> ObservedSweep:
    """The first step of a search has its outcome."""
    world = known(builders.observed(builders.sweep_spec(search=SEQUENTIAL)))
    request = decide_sweep(world).fit
    assert request is not None
    return replace(world, fit=FitOutcome(inputs=request.inputs, laws=None, **outcome))


def chosen(point: PlannedPoint) -> PointDecision:
    """It is to run part of the way."""
    return PointDecision(
        size=point.proxy.name,
        batch_size=point.batch_size,
        learning_rate=point.learning_rate,
        tokens=300_000,
        reason="LowersRegret",
        flops=1e12,
        saves=2e12,
        added=False,
    )


def queued(workload: ObservedWorkload) -> ObservedSweep:
    """Three Jobs wait for Kueue, which says why."""
    waiting = {"suspended": True, "pod": None, "unfinished_pods": 0, "workload": workload}
    return training(jobs=tuple(builders.job(p, **waiting) for p in POINTS[:3]))


def spec_of(world: ObservedSweep) -> ScalingSweepSpec:
    assert isinstance(world.spec, ScalingSweepSpec)
    return world.spec


def refused() -> Any:
    refusal = Refusal(RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE, "Extend the learning rates.")
    return refused_laws(refusal, (), FitOptions())


def waiting(reason: str, message: str) -> ObservedPod:
    return ObservedPod(phase="Pending", waiting_reason=reason, waiting_message=message)


def out_of_memory(count: int) -> ObservedSweep:
    """So many points ran out of memory for good."""
    ended = tuple(builders.failed(p, ExitCode.OUT_OF_MEMORY) for p in POINTS[:count])
    return known(training(jobs=ended), jobs=())


def hung(seconds: float) -> ObservedSweep:
    """Three points train; the first has reported no progress for so long, and 600 s are allowed."""
    spec = builders.sweep_spec(failurePolicy={"stallSeconds": 600})
    jobs = tuple(
        builders.job(p, working_since=builders.NOW - timedelta(hours=2)) for p in POINTS[:3]
    )
    since = {jobs[0].uid: builders.NOW - timedelta(seconds=seconds), jobs[1].uid: builders.NOW}
    return known(builders.observed(spec), jobs=jobs, unchanged_since=since)


def flops_of(count: int) -> str:
    """A budget for exactly the `count` cheapest points."""
    return f"{sum(p.flops for p in POINTS[:count]) * 1.001:.6e}".replace("e+", "e")


def started(plan: SweepPlan) -> tuple[str, ...]:
    """Which points start: the Jobs' names without owner and hash."""
    return tuple(
        re.sub(r"^demo-(.*)-[0-9a-f]{8}", r"\1", name) for name in builders.names(plan.create)
    )
