"""What it costs to train points again whose trajectories were lost."""

from dataclasses import replace
from datetime import timedelta

import pytest

from isoloss_contract.records import Claimant, PointResult
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.points import PlannedPoint
from tests.support import builders
from tests.support.sweep_worlds import POINTS, flops_of, known, with_fit
from tests.support.synthetic_runs import fitted_laws

SPENT = sum(point.flops for point in POINTS)


def own(point: PlannedPoint, attempt: int = 1) -> PointResult:
    return builders.result(point, claimant=Claimant(sweep_uid=builders.UID, attempt=attempt))


def lost(budget: object) -> ObservedSweep:
    """A finished sweep whose points are removed from the store before an edit asks for another fit."""
    spec = builders.sweep_spec(budget={"flops": flops_of(8)}, parallelism=8)
    jobs = tuple(builders.complete(point) for point in POINTS)
    world = known(
        builders.observed(spec, jobs=jobs, results={p.key: own(p) for p in POINTS}), jobs=()
    )
    world = known(with_fit(replace(world, results={}), fitted_laws()))
    edit = builders.sweep_spec(
        budget={"flops": budget}, parallelism=8, fit={"form": "LinearInLogCompute"}
    )
    world = replace(world, generation=2, spec=builders.parsed(edit))
    plan = decide_sweep(world)
    assert plan.fit is not None
    gone = tuple((point.key, "trajectory: not found") for point in POINTS)
    return builders.after(world, plan, fit=FitOutcome(plan.fit.inputs, laws=None, unreadable=gone))


def test_without_room_in_the_budget_no_point_is_trained_again() -> None:
    plan = decide_sweep(lost(flops_of(8)))
    assert plan.create == ()
    assert plan.status.points.pending == 8
    assert float(plan.status.spent_flops) == pytest.approx(SPENT, rel=1e-3)
    assert any("must be trained again" in each for each in plan.status.warnings)
    assert any("leaves no room for" in each for each in plan.status.warnings)
    status, reason, message = builders.condition(plan, "Stalled")
    assert (status, reason) == ("True", "NoResults"), message


@pytest.mark.parametrize(("share", "factor"), [(2, 2.0), (1, 1.0)])
def test_what_is_trained_again_counts_again_and_what_a_checkpoint_holds_does_not(
    share: int, factor: float
) -> None:
    """The reports of an attempt say where it began: where the result ended, or at nothing."""
    world = lost(f"{2.1 * SPENT:.6g}")
    plan = decide_sweep(world)
    assert len(plan.create) == 8
    world = builders.after(world, plan)
    claimant = Claimant(sweep_uid=builders.UID, attempt=2)
    jobs = tuple(builders.job(p, attempt=2, working_since=builders.NOW) for p in POINTS)
    told = {
        p.key: builders.progress(p, p.tokens // share).model_copy(
            update={"claimant": claimant, "began_tokens": p.tokens if share == 1 else 0}
        )
        for p in POINTS
    }
    world = replace(world, jobs=jobs, progress=told)
    plan = decide_sweep(world)
    under_way = SPENT * (1 + 1 / share if share > 1 else 1)
    assert float(plan.status.spent_flops) == pytest.approx(under_way, rel=1e-3)
    ended = tuple(builders.complete(p, attempt=2) for p in POINTS)
    results = {p.key: own(p, 2) for p in POINTS}
    world = builders.after(
        world, plan, jobs=ended, results=results, now=builders.NOW + timedelta(hours=1)
    )
    plan = decide_sweep(world)
    assert plan.status.points.succeeded == 8
    assert float(plan.status.spent_flops) == pytest.approx(factor * SPENT, rel=1e-3)
    assert not any("trained again" in each for each in plan.status.warnings)


def test_the_report_of_an_attempt_whose_work_was_taken_back_is_not_paid_again() -> None:
    """It stays in the store: all that had been trained counted twice as soon as it was read."""
    reports = {p.key: builders.progress(p, p.tokens) for p in POINTS}
    world = replace(known(lost(f"{2.1 * SPENT:.6g}")), progress=reports)
    for waiting in (world, known(world)):
        plan = decide_sweep(waiting)
        assert len(plan.create) == 8
        assert float(plan.status.spent_flops) == pytest.approx(SPENT, rel=1e-3)
