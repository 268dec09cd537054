"""Which results and which progress a pass reads from the store."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from isoloss_contract.reading import ABSENT
from isoloss_operator.decide.reads import (
    first_reads,
    needs_manifest,
    sweep_reads,
)
from isoloss_operator.decide.sweep import decide_sweep
from tests.support.builders import (
    NOW,
    after,
    complete,
    failed,
    job,
    observed,
    parsed,
    points,
    result,
    sweep_spec,
)
from tests.support.sweep_worlds import (
    FIRST,
    POINTS,
    PREPARE_KEY,
    known,
    ready,
    training,
)


def test_the_progress_of_every_running_point_is_read() -> None:
    """What each cost counts against the budget, and any may be hung."""
    grid = {"batchSizes": list(range(1, 11)), "learningRates": [f"{n}e-5" for n in range(1, 11)]}
    spec = sweep_spec(grid=grid, parallelism=200)
    world = observed(spec, jobs=tuple(job(p) for p in points(spec)))
    assert len(sweep_reads(world, frozenset()).progress) == 200


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        pytest.param({"created": NOW - timedelta(seconds=29)}, False, id="created just now"),
        pytest.param({"created": NOW - timedelta(seconds=30)}, True, id="half a minute ago"),
        pytest.param({"created": NOW, "working_since": NOW}, True, id="its pod works already"),
        pytest.param({"created": NOW, "worked_seconds": 1.0}, True, id="a pod of it has worked"),
    ],
)
def test_progress_of_a_job_that_has_just_been_created_is_not_read(
    changes: dict[str, Any], is_read: bool
) -> None:
    """A thousand Jobs at once would be a thousand reads of what cannot be there."""
    world = training(jobs=(job(FIRST, **changes),))
    assert (FIRST.key in sweep_reads(world, frozenset()).progress) == is_read


def test_what_to_read_is_what_may_have_news() -> None:
    """Results of ended Jobs always; of idle points only where the store has a folder; never of done or running ones.
    Progress of all Jobs whose end is not recorded, and of points that have a folder and no Job."""
    world = known(
        observed(results={POINTS[7].key: result(POINTS[7])}),
        jobs=(job(POINTS[0]), complete(POINTS[1])),
        results={},
    )
    stored = frozenset(p.key for p in (POINTS[0], POINTS[5], POINTS[7]))
    reads = sweep_reads(world, stored)
    assert set(reads.results) == {POINTS[1].key, POINTS[5].key}
    assert reads.progress == (POINTS[0].key, POINTS[1].key, POINTS[5].key)
    first = first_reads(world)
    assert first is not None
    assert first.corpus == f"data/{PREPARE_KEY}/sweeps/{world.uid}.json"
    assert first_reads(observed({"bad": 1}, manifest=ABSENT)) is None


def test_no_result_is_read_while_an_attempt_works_beside_the_job_of_a_lost_one() -> None:
    """It would end the point before its attempt, which was then missing from the ledger."""
    gone = {"failed": True, "lost": True, "unfinished_pods": 0}
    lost = job(FIRST, reason="NodeLost", message="pod a on node b", **gone)
    world = training(jobs=(lost, job(POINTS[1])))
    assert FIRST.key in sweep_reads(world, frozenset()).results
    recorded = after(world, decide_sweep(world), jobs=(lost, job(FIRST, attempt=2)))
    assert sweep_reads(recorded, frozenset({FIRST.key})).results == ()
    ended = replace(recorded, jobs=(lost, complete(FIRST, attempt=2)))
    assert sweep_reads(ended, frozenset({FIRST.key})).results == (FIRST.key,)


def test_results_of_points_that_have_failed_are_wanted_now_and_then_only() -> None:
    """Only another sweep could write them, and there may be thousands. Until its end is in the ledger, the
    result of a failed attempt is wanted like any."""
    spec = sweep_spec(failurePolicy={"retriesPerPoint": 0})
    world = observed(spec, jobs=(failed(FIRST, 1), failed(POINTS[1], 1)))
    assert FIRST.key in sweep_reads(world, frozenset()).results
    recorded = after(world, decide_sweep(world))
    reads = sweep_reads(recorded, frozenset())
    assert reads.results == ()
    assert set(reads.results_of_failed) == {FIRST.key, POINTS[1].key}


def test_the_manifest_is_read_while_something_is_left_to_train() -> None:
    """Also where the corpus is unknown, and once an edit asks a finished sweep for more."""
    assert needs_manifest(observed(manifest=ABSENT))
    assert needs_manifest(training(manifest=ABSENT))
    assert needs_manifest(training(manifest=ABSENT, jobs=()))
    finished = replace(ready(), manifest=ABSENT)
    assert not needs_manifest(finished)
    rates = {"batchSizes": [8, 16], "learningRates": ["1e-3", "2e-3", "4e-3"]}
    assert needs_manifest(replace(finished, spec=parsed(sweep_spec(grid=rates))))


def test_what_others_may_have_found_is_read_without_the_manifest_too() -> None:
    """Results of points that have failed for good, for which another sweep may have one by now."""
    spec = sweep_spec(failurePolicy={"retriesPerPoint": 0, "maxFailedPoints": 8})
    world = observed(spec, jobs=tuple(failed(p, 1) for p in POINTS))
    quiet = after(world, decide_sweep(world), manifest=ABSENT, jobs=())
    assert not needs_manifest(quiet)
    assert len(sweep_reads(quiet, frozenset(p.key for p in POINTS)).results_of_failed) == 8
