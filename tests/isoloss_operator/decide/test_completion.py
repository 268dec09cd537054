"""How long a sweep still trains: by the seconds that a token of each size has taken."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isoloss_contract.ledger import NOT_CHOSEN, Intent, IntentAction, Ledger, Spend
from isoloss_operator.api import SearchStatus
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.decide.sweep_status import SweepFacts, seconds_left, seconds_per_token
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.search_cost import search_estimate
from tests.support.builders import (
    NOW,
    after,
    job,
    observed,
    points,
    progress,
    result,
    sweep_spec,
)

POINTS = points()
TINY = tuple(point for point in POINTS if point.proxy.name == "tiny")
SMALL = tuple(point for point in POINTS if point.proxy.name == "small")
RATIO = SMALL[0].proxy.parameters.active / TINY[0].proxy.parameters.active


def world(done: int, running: int, seconds: float = 500.0, speed: float = 1000.0) -> ObservedSweep:
    """The first points have ended, each after `seconds`, and the next ones report half of their tokens."""
    ended, active = POINTS[:done], POINTS[done : done + running]
    start = observed(
        results={point.key: result(point, accelerator_seconds=seconds) for point in ended}
    )
    known = after(start, decide_sweep(start), results={})
    reports = {point.key: progress(point, point.tokens // 2, speed) for point in active}
    return replace(known, jobs=tuple(job(point) for point in active), progress=reports)


def work(seen: ObservedSweep, **changes: object) -> SweepFacts:
    """What is left of it; points not adopted, although nobody saw their Jobs here."""
    assert isinstance(seen.ledger, Ledger)
    records = tuple(
        replace(record, adopted=False, others=Spend()) for record in seen.ledger.points
    )
    ledger = seen.ledger.replace(points=records)
    facts = SweepFacts("s3://bucket", "sweeps/demo-uid", POINTS, ledger, seen.jobs, parallelism=3)
    return replace(facts, **changes)  # type: ignore[arg-type]


def test_a_size_with_ended_points_is_measured_from_start_to_end_of_their_pods() -> None:
    """Not by the speed that running ones report, which leaves out how long a pod takes to start."""
    seen = world(done=2, running=1)
    assert seconds_per_token(seen, work(seen))["tiny"] == pytest.approx(
        500 / TINY[0].tokens, rel=1e-3
    )


def test_a_size_without_ended_points_goes_by_what_running_ones_report() -> None:
    seen = world(done=0, running=2)
    assert seconds_per_token(seen, work(seen))["tiny"] == pytest.approx(1e-3)


def test_an_unseen_size_takes_the_square_root_of_the_ratio_of_parameters_longer() -> None:
    """Between the same seconds for every token and the same for every FLOP."""
    seen = world(done=0, running=2)
    found = seconds_per_token(seen, work(seen))
    assert found["small"] == pytest.approx(1e-3 * math.sqrt(RATIO))


def test_a_size_that_is_measured_is_no_longer_assumed() -> None:
    seen = world(done=len(TINY), running=1, speed=2000.0)
    found = seconds_per_token(seen, work(seen))
    assert found["small"] == pytest.approx(1 / 2000.0)
    assert found["tiny"] == pytest.approx(500 / TINY[0].tokens, rel=1e-3)


def test_what_is_left_is_the_tokens_of_each_size_at_its_own_pace_over_the_slots() -> None:
    seen = world(done=len(TINY), running=3, speed=2000.0)
    left = (3 * 0.5 + len(SMALL) - 3) * SMALL[0].tokens / 2000.0
    assert seconds_left(seen, work(seen)) == pytest.approx(left / 3, rel=1e-3)


def test_the_last_point_takes_as_long_as_it_takes() -> None:
    """More slots than points do not make it end sooner."""
    seen = world(done=len(POINTS) - 1, running=1, speed=1000.0)
    left = 0.5 * SMALL[0].tokens / 1000.0
    assert seconds_left(seen, work(seen)) == pytest.approx(left, rel=1e-3)


def test_nothing_is_said_while_nothing_is_measured_or_nothing_trains() -> None:
    silent = replace(world(done=0, running=2), progress={})
    assert seconds_left(silent, work(silent)) is None
    idle = world(done=2, running=0)
    assert seconds_left(idle, work(idle)) is None


def test_nothing_is_said_before_the_corpus_is_prepared() -> None:
    """Points have no keys then, and the ledger no records of them."""
    unprepared = SweepFacts(
        "s3://bucket",
        "sweeps/demo-uid",
        tuple(replace(point, key="") for point in POINTS),
        Ledger(sweep="demo", namespace="research", uid="uid"),
    )
    assert seconds_left(observed(), unprepared) is None


def searched(chosen: PlannedPoint) -> SweepFacts:
    """A search that has chosen one point so far, of which half is trained."""
    waits = Intent(IntentAction.PAUSE, reason=NOT_CHOSEN)
    base = work(world(done=0, running=1))
    records = tuple(
        record if record.key == chosen.key else replace(record, intent=waits)
        for record in base.ledger.points
    )
    ledger = base.ledger.replace(points=records)
    return replace(base, ledger=ledger, search=SearchStatus())


@pytest.mark.parametrize("parallelism", [1, 3, 16])
def test_points_that_a_search_has_not_chosen_count_by_what_searches_cost(parallelism: int) -> None:
    """Of each grid the measured share, less what was wanted so far, by as many Jobs as searches keep at work."""
    seen, chosen = world(done=0, running=1), POINTS[0]
    base = replace(searched(chosen), parallelism=parallelism)
    sizes = {s.name: s.measured for s in search_estimate(POINTS, 0, 0).sizes}
    paces = seconds_per_token(seen, base)
    now = 0.5 * chosen.tokens / 1000.0
    tiny = sizes["tiny"].mean * sum(p.tokens for p in TINY) - chosen.tokens
    later = paces["tiny"] * tiny / sizes["tiny"].jobs_at_work(parallelism)
    small = sizes["small"].mean * sum(p.tokens for p in SMALL)
    later += paces["small"] * small / sizes["small"].jobs_at_work(parallelism)
    assert seconds_left(seen, base) == pytest.approx(now + later, rel=1e-3)
    alone = seconds_left(seen, replace(base, search=None))
    assert alone == pytest.approx(now, rel=1e-3)


def test_slots_that_a_search_leaves_empty_do_not_bring_its_end_nearer() -> None:
    """Its rounds wait for their slowest Job: with sixteen slots it takes as long as with a hundred."""
    seen, base = world(done=0, running=1), searched(POINTS[0])
    few, many = (seconds_left(seen, replace(base, parallelism=n)) for n in (16, 100))
    assert few == many


def test_the_status_states_the_end() -> None:
    seen = world(done=0, running=3)
    status = decide_sweep(seen).status
    left = seconds_left(seen, work(seen))
    assert left is not None
    assert status.estimated_completion == (NOW + timedelta(seconds=left)).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


# ------------------------------------------------------------------------------ a recorded run

RECORDED = Path(__file__).parent / "samples" / "demo_run.json"
"""Start and end of every point of a `make demo` that trained its whole grid, on two busy cores."""
START_UP_SECONDS = 3.0
"""Of a pod, before its trainer reports a speed."""
DEMO: dict[str, Any] = sweep_spec(
    proxies=[
        {"name": "tiny", "model": {"preset": "dense-tiny"}, "tokens": 600_000},
        {
            "name": "small",
            "model": {"preset": "dense-small"},
            "tokens": 400_000,
            "grid": {"batchSizes": [1, 2, 4, 8], "learningRates": ["6e-4", "1.2e-3", "2.4e-3"]},
        },
    ],
    grid={"batchSizes": [2, 4, 8], "learningRates": ["1.5e-3", "3e-3", "6e-3"]},
    parallelism=2,
)


@dataclass(frozen=True)
class Recorded:
    """One point, in seconds since the first one started."""

    point: PlannedPoint
    start: float
    end: float

    def tokens_at(self, seconds: float) -> int:
        begun = self.start + START_UP_SECONDS
        return max(0, round(self.point.tokens * (seconds - begun) / (self.end - begun)))

    @property
    def speed(self) -> float:
        return self.point.tokens / (self.end - self.start - START_UP_SECONDS)


@cache
def recorded() -> tuple[Recorded, ...]:
    planned = {(p.proxy.name, p.batch_size, p.learning_rate): p for p in points(DEMO)}
    return tuple(
        Recorded(
            planned[row["size"], row["batch_size"], row["learning_rate"]],
            row["start_seconds"],
            row["end_seconds"],
        )
        for row in json.loads(RECORDED.read_text())
    )


def seconds_left_at(seconds: float) -> float:
    """The estimate at a moment of the recorded run."""
    done = [each for each in recorded() if each.end <= seconds]
    running = [each for each in recorded() if each.start <= seconds < each.end]
    start = observed(
        DEMO,
        results={
            each.point.key: result(each.point, accelerator_seconds=each.end - each.start)
            for each in done
        },
    )
    seen = replace(
        after(start, decide_sweep(start), results={}),
        jobs=tuple(job(each.point) for each in running),
        progress={
            each.point.key: progress(each.point, each.tokens_at(seconds), each.speed)
            for each in running
            if each.tokens_at(seconds)
        },
    )
    planned = tuple(each.point for each in recorded())
    found = seconds_left(seen, work(seen, points=planned, parallelism=2))
    assert found is not None
    return found


def test_the_record_is_of_the_whole_grid() -> None:
    assert {each.point.key for each in recorded()} == {point.key for point in points(DEMO)}


@pytest.mark.parametrize("share", np.arange(0.25, 0.95, 0.05).round(2).tolist())
def test_a_quarter_of_a_run_tells_the_rest_within_a_factor_of_one_and_a_half(share: float) -> None:
    """The second size starts after two fifths of it, so that at first nothing of it is measured."""
    whole = max(each.end for each in recorded())
    moment = share * whole
    while not any(each.start <= moment < each.end for each in recorded()):
        moment += 1.0
    ratio = seconds_left_at(moment) / (whole - moment)
    assert 1 / 1.5 < ratio < 1.5
