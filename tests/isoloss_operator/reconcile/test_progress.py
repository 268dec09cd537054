"""Since when an attempt has reported no progress."""

from dataclasses import replace
from datetime import timedelta

import pytest

from isoloss_contract.reading import ABSENT
from isoloss_operator.decide.reads import sweep_reads
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.reconcile.memory import Mark, progress_marks
from tests.support.builders import NOW, complete, job, observed, points, progress, sweep_spec

POINT = points()[0]
RUNNING = job(POINT, working_since=NOW - timedelta(hours=1))
LATER = NOW + timedelta(minutes=5)


def test_only_new_tokens_are_progress() -> None:
    """A hung trainer's reporter thread writes the same tokens under new times."""
    first = progress_marks([RUNNING], {POINT.key: progress(POINT, 100)}, {}, NOW)
    rewritten = progress(POINT, 100).model_copy(update={"updated_at": "2031-01-01T00:00:00Z"})
    assert progress_marks([RUNNING], {POINT.key: rewritten}, first, LATER) == first
    moved = progress_marks([RUNNING], {POINT.key: progress(POINT, 101)}, first, LATER)
    assert moved == {RUNNING.uid: Mark(101, LATER, LATER)}


def test_an_attempt_that_never_reported_counts_from_when_it_was_first_seen_running() -> None:
    """By the operator's clock: a start time is the node's."""
    first = progress_marks([RUNNING], {}, {}, NOW)
    assert first == {RUNNING.uid: Mark(None, NOW, NOW)}
    assert progress_marks([RUNNING], {}, first, LATER) == first


def test_what_an_earlier_attempt_reported_is_not_this_ones_progress() -> None:
    """Its record stays in the store until the new one reports."""
    second = replace(RUNNING, attempt=2, uid="second")
    found = progress_marks([second], {POINT.key: progress(POINT, 100)}, {}, NOW)
    assert found == {"second": Mark(None, NOW, NOW)}


def test_jobs_that_do_not_run_are_not_watched() -> None:
    """Queued, pulling an image, or finished: nothing can be reported."""
    assert progress_marks([job(POINT), complete(POINT)], {}, {}, NOW) == {}


def test_the_clock_stands_still_while_the_store_does_not_say_how_far_an_attempt_is() -> None:
    """Neither that it hangs nor that it goes on is known, and it may not be able to report either."""
    minute, reported = timedelta(minutes=1), {POINT.key: progress(POINT, 100)}
    marks = progress_marks([RUNNING], reported, {}, NOW)
    marks = progress_marks([RUNNING], reported, marks, NOW + minute)
    for passed in (2, 30, 90):
        marks = progress_marks([RUNNING], {}, marks, NOW + passed * minute, {POINT.key})
        assert marks[RUNNING.uid].since == NOW + (passed - 1) * minute
    marks = progress_marks([RUNNING], reported, marks, NOW + 91 * minute)
    assert marks == {RUNNING.uid: Mark(100, NOW + 89 * minute, NOW + 91 * minute)}


def test_the_clock_goes_on_with_the_pod_that_takes_anothers_place() -> None:
    """It stands still while none is at work."""
    minute, waiting = timedelta(minutes=1), replace(RUNNING, working_since=None)
    marks = progress_marks([RUNNING], {}, {}, NOW)
    marks = progress_marks([RUNNING], {}, marks, NOW + 20 * minute)
    for passed in (21, 120):
        marks = progress_marks([waiting], {}, marks, NOW + passed * minute)
    replaced = replace(RUNNING, working_since=NOW + 120 * minute)
    marks = progress_marks([replaced], {}, marks, NOW + 140 * minute)
    assert marks == {RUNNING.uid: Mark(None, NOW + 100 * minute, NOW + 140 * minute)}
    marks = progress_marks([replaced], {POINT.key: progress(POINT, 1)}, marks, NOW + 141 * minute)
    assert marks[RUNNING.uid].since == NOW + 141 * minute


@pytest.mark.parametrize(
    ("hours", "stall_seconds", "counted"),
    [(8, None, 1800), (-24, None, 0), (8, 60, 30), (8, 1800, 900)],
)
def test_a_clock_that_jumps_makes_no_attempt_hang(
    hours: int, stall_seconds: int | None, counted: int
) -> None:
    """Machines that were suspended together wake up hours later, and pods report only then; one whose clock was set back must
    still hang. No attempt is ended for one look alone."""
    reported = {POINT.key: progress(POINT, 100)}
    marks = progress_marks([RUNNING], reported, {}, NOW)
    awake = NOW + timedelta(hours=hours)
    marks = progress_marks([RUNNING], reported, marks, awake, stall_seconds=stall_seconds)
    assert (awake - marks[RUNNING.uid].since).total_seconds() == counted


def test_what_is_to_be_read_of_points_says_when_they_stall() -> None:
    """Whatever their sweep waits for."""
    raw = sweep_spec(failurePolicy={"stallSeconds": 600})
    prepared = observed(raw, jobs=(RUNNING,))
    ledger = decide_sweep(prepared).ledger
    unprepared = observed(raw, jobs=(RUNNING,), ledger=ledger, manifest=ABSENT)
    for each in (prepared, unprepared):
        assert sweep_reads(each, frozenset()).stall_seconds == 600


def test_an_attempt_that_is_seen_first_while_the_store_says_nothing_starts_its_clock() -> None:
    first = progress_marks([RUNNING], {}, {}, NOW, {POINT.key})
    assert first == {RUNNING.uid: Mark(None, NOW, NOW)}
