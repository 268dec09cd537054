"""Whole sweeps in memory, with pods that end badly and an operator that is killed between any two writes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoloss_contract.ledger import DONE, PointState
from isoloss_operator.decide.jobs.failures import FailureClass
from tests.support.builders import sweep_spec
from tests.support.fake_world import FakeWorld

PASSES = 400
PATIENT = {"retriesPerPoint": 20, "maxFailedPoints": 0}


def run(world: FakeWorld) -> None:
    """Passes at random moments until every point is done."""
    for _ in range(PASSES):
        world.run_operator()
        if world.ledger is not None and _is_over(world):
            return
        world.let_time_pass(world.chance.choice([1.0, 20.0, 400.0]))
    raise AssertionError(f"not done after {PASSES} passes: {world.ledger}")


def _is_over(world: FakeWorld) -> bool:
    assert world.ledger is not None
    records = world.ledger.points
    done = len(records) == len(world.points) and all(
        record.state is not PointState.PENDING for record in records
    )
    return done and not world.damaged


def assert_trained_once_and_charged(world: FakeWorld) -> None:
    """Every point is done, was trained once, and is charged for exactly the chargeable failures."""
    assert world.ledger is not None
    assert all(record.state in DONE for record in world.ledger.points)
    assert set(world.trained.values()) == {1}
    assert 0 < world.most_active <= 3
    charged = {
        (record.key, failure): count
        for record in world.ledger.points
        for failure, count in record.attempts.charged.items()
        if failure != FailureClass.OUT_OF_MEMORY
    }
    assert charged == dict(world.injected)


@pytest.mark.parametrize("worlds", [8, pytest.param(100, marks=pytest.mark.whole)])
def test_each_point_is_trained_once_and_charged_for_exactly_the_chargeable_failures(
    worlds: int,
) -> None:
    """Interruptions, vanished pods, claims and deletions by hand cost a point nothing. Within the passes of FakeWorld,
    parallelism and double starts are asserted as they happen."""

    @settings(max_examples=worlds)
    @given(seed=st.integers(0, 2**32), kills=st.sampled_from([0.0, 0.05, 0.3]))
    def in_each(seed: int, kills: float) -> None:
        world = FakeWorld(
            random.Random(seed), spec=sweep_spec(failurePolicy=PATIENT), trouble=0.5, kills=kills
        )
        run(world)
        assert_trained_once_and_charged(world)

    in_each()


@pytest.mark.parametrize("worlds", [5, pytest.param(60, marks=pytest.mark.whole)])
def test_a_new_operator_without_a_ledger_adopts_every_result_and_trains_none_again(
    worlds: int,
) -> None:
    """Deleting the sweep and applying it again finds all points done in the store."""

    @settings(max_examples=worlds)
    @given(seed=st.integers(0, 2**32))
    def in_each(seed: int) -> None:
        first = FakeWorld(random.Random(seed), spec=sweep_spec(failurePolicy=PATIENT))
        run(first)
        second = FakeWorld(random.Random(seed + 1), spec=first.spec, kills=0.2)
        second.results = dict(first.results)
        run(second)
        assert second.ledger is not None
        assert all(record.adopted for record in second.ledger.points)
        assert not second.trained

    in_each()


@pytest.mark.parametrize("worlds", [8, pytest.param(100, marks=pytest.mark.whole)])
def test_a_damaged_trajectory_is_trained_again_once_and_the_same_bytes_then_count(
    worlds: int,
) -> None:
    """The repeated run has the old digest: a fit's old complaint must not hit it again."""

    @settings(max_examples=worlds)
    @given(seed=st.integers(0, 2**32), kills=st.sampled_from([0.0, 0.1]))
    def in_each(seed: int, kills: float) -> None:
        world = FakeWorld(
            random.Random(seed), spec=sweep_spec(failurePolicy=PATIENT), damage=0.3, kills=kills
        )
        run(world)
        assert world.trained == Counter({key: 1 + world.damages[key] for key in world.points})

    in_each()
