"""Whole sweeps in memory, with pods that end badly and an operator that is killed between any two writes."""

import random
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoloss_contract.ledger import DONE, PointState
from isoloss_contract.reading import timestamp
from isoloss_operator.decide.jobs import FailureClass
from tests.support.builders import NOW, ledger_of, sweep_spec
from tests.support.chance import Chance
from tests.support.simulator import Simulator

PASSES = 400
PATIENT = {"retriesPerPoint": 20, "maxFailedPoints": 0, "stallSeconds": 86_400}


def ended(seed: int, simulator: Simulator | None = None, **odds: float) -> Chance[Simulator]:
    """Passes at random moments until every point is done."""
    world = simulator or Simulator(spec=sweep_spec(failurePolicy=PATIENT))
    chance = Chance(random.Random(seed), world, **odds)
    for _ in range(PASSES):
        chance.run_operator()
        if world.ledger is not None and _is_over(world):
            return chance
        chance.let_time_pass(chance.random.choice([1.0, 20.0, 400.0]))
    raise AssertionError(f"not done after {PASSES} passes: {world.ledger}")


def _is_over(simulator: Simulator) -> bool:
    records = ledger_of(simulator).points
    done = len(records) == len(simulator.points) and all(
        record.state is not PointState.PENDING for record in records
    )
    return done and not simulator.damaged


def test_a_lost_ledger_was_lost_when_that_was_first_seen_however_long_none_is_stored() -> None:
    """Each pass said another time, so that condition, event and status changed each time."""
    simulator = Simulator()
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
    assert f"begun at {timestamp(first)} (the old one is ledger.jsonl.gz.unreadable-" in said[0][0]


@pytest.mark.parametrize("simulators", [8, pytest.param(100, marks=pytest.mark.whole)])
def test_each_point_is_trained_once_and_charged_for_exactly_the_chargeable_failures(
    simulators: int,
) -> None:
    """Interruptions, vanished pods, claims and deletions by hand cost a point nothing. Within the passes of Simulator,
    parallelism and double starts are asserted as they happen."""

    @settings(max_examples=simulators)
    @given(seed=st.integers(0, 2**32), kills=st.sampled_from([0.0, 0.05, 0.3]))
    def in_each(seed: int, kills: float) -> None:
        chance = ended(seed, trouble=0.5, kills=kills)
        ledger, simulator = chance.simulator.ledger, chance.simulator
        assert ledger is not None
        assert all(record.state in DONE for record in ledger.points)
        assert set(simulator.trained.values()) == {1}
        assert 0 < simulator.most_active <= 3
        charged = {
            (record.key, failure): count
            for record in ledger.points
            for failure, count in record.attempts.charged.items()
            if failure != FailureClass.OUT_OF_MEMORY
        }
        assert charged == dict(chance.charged)

    in_each()


@pytest.mark.parametrize("simulators", [8, pytest.param(100, marks=pytest.mark.whole)])
def test_a_damaged_trajectory_is_trained_again_once_and_the_same_bytes_then_count(
    simulators: int,
) -> None:
    """The repeated run has the old digest: a fit's old complaint must not hit it again."""

    @settings(max_examples=simulators)
    @given(seed=st.integers(0, 2**32), kills=st.sampled_from([0.0, 0.1]))
    def in_each(seed: int, kills: float) -> None:
        chance = ended(seed, damage=0.3, kills=kills)
        assert chance.simulator.trained == Counter(
            {key: 1 + chance.damages[key] for key in chance.simulator.points}
        )

    in_each()
