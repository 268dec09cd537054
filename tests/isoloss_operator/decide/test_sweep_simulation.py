"""Whole sweeps in memory, with pods that end badly and an operator that is killed between any two writes."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoloss_contract.ledger import DONE, PointState
from isoloss_operator.decide.conditions import timestamp
from isoloss_operator.decide.jobs.failures import FailureClass
from tests.support.builders import NOW, sweep_spec
from tests.support.simulator import Simulator

PASSES = 400
PATIENT = {"retriesPerPoint": 20, "maxFailedPoints": 0}


def run(simulator: Simulator) -> None:
    """Passes at random moments until every point is done."""
    for _ in range(PASSES):
        simulator.run_operator()
        if simulator.ledger is not None and _is_over(simulator):
            return
        simulator.let_time_pass(simulator.chance.choice([1.0, 20.0, 400.0]))
    raise AssertionError(f"not done after {PASSES} passes: {simulator.ledger}")


def _is_over(simulator: Simulator) -> bool:
    assert simulator.ledger is not None
    records = simulator.ledger.points
    done = len(records) == len(simulator.points) and all(
        record.state is not PointState.PENDING for record in records
    )
    return done and not simulator.damaged


def assert_trained_once_and_charged(simulator: Simulator) -> None:
    """Every point is done, was trained once, and is charged for exactly the chargeable failures."""
    assert simulator.ledger is not None
    assert all(record.state in DONE for record in simulator.ledger.points)
    assert set(simulator.trained.values()) == {1}
    assert 0 < simulator.most_active <= 3
    charged = {
        (record.key, failure): count
        for record in simulator.ledger.points
        for failure, count in record.attempts.charged.items()
        if failure != FailureClass.OUT_OF_MEMORY
    }
    assert charged == dict(simulator.injected)


def test_a_lost_ledger_was_lost_when_that_was_first_seen_however_long_none_is_stored() -> None:
    """Each pass said another time, so that condition, event and status changed each time."""
    simulator = Simulator(random.Random(0), kills=0.0, trouble=0.0)
    simulator.run_operator()
    simulator.let_time_pass(25.0)
    simulator.status |= {"spentFlops": "1e12"}
    simulator.ledger_is_damaged = simulator.refuses_ledgers = True
    said = []
    for _ in range(3):
        simulator.run_operator()
        simulator.run_operator()
        said.append(simulator.status["warnings"])
        simulator.let_time_pass(4000.0)
        simulator.refuses_ledgers = len(said) < 2
    first = NOW + timedelta(seconds=25)
    assert said[0] == said[1] == said[2]
    assert f"begun anew at {timestamp(first)}, kept as ledger.jsonl.gz.unreadable-" in said[0][0]


@pytest.mark.parametrize("simulators", [8, pytest.param(100, marks=pytest.mark.whole)])
def test_each_point_is_trained_once_and_charged_for_exactly_the_chargeable_failures(
    simulators: int,
) -> None:
    """Interruptions, vanished pods, claims and deletions by hand cost a point nothing. Within the passes of Simulator,
    parallelism and double starts are asserted as they happen."""

    @settings(max_examples=simulators)
    @given(seed=st.integers(0, 2**32), kills=st.sampled_from([0.0, 0.05, 0.3]))
    def in_each(seed: int, kills: float) -> None:
        simulator = Simulator(
            random.Random(seed), spec=sweep_spec(failurePolicy=PATIENT), trouble=0.5, kills=kills
        )
        run(simulator)
        assert_trained_once_and_charged(simulator)

    in_each()


@pytest.mark.parametrize("simulators", [5, pytest.param(60, marks=pytest.mark.whole)])
def test_a_new_operator_without_a_ledger_adopts_every_result_and_trains_none_again(
    simulators: int,
) -> None:
    """Deleting the sweep and applying it again finds all points done in the store."""

    @settings(max_examples=simulators)
    @given(seed=st.integers(0, 2**32))
    def in_each(seed: int) -> None:
        first = Simulator(random.Random(seed), spec=sweep_spec(failurePolicy=PATIENT))
        run(first)
        second = Simulator(random.Random(seed + 1), spec=first.spec, kills=0.2)
        second.results = dict(first.results)
        run(second)
        assert second.ledger is not None
        assert all(record.adopted for record in second.ledger.points)
        assert not second.trained

    in_each()


@pytest.mark.parametrize("simulators", [8, pytest.param(100, marks=pytest.mark.whole)])
def test_a_damaged_trajectory_is_trained_again_once_and_the_same_bytes_then_count(
    simulators: int,
) -> None:
    """The repeated run has the old digest: a fit's old complaint must not hit it again."""

    @settings(max_examples=simulators)
    @given(seed=st.integers(0, 2**32), kills=st.sampled_from([0.0, 0.1]))
    def in_each(seed: int, kills: float) -> None:
        simulator = Simulator(
            random.Random(seed), spec=sweep_spec(failurePolicy=PATIENT), damage=0.3, kills=kills
        )
        run(simulator)
        assert simulator.trained == Counter(
            {key: 1 + simulator.damages[key] for key in simulator.points}
        )

    in_each()
