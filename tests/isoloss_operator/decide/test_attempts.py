"""What is charged to which task, and how long the next attempt waits."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from isoloss_contract.ledger import Attempts, PointState
from isoloss_contract.reading import timestamp
from isoloss_contract.records import Outcome, ParameterCounts
from isoloss_operator.decide import jobs
from isoloss_operator.decide.attempts import (
    after_failure,
    charges,
    is_enough,
    planned,
    result_found,
    settled,
    unusable,
)
from tests.support.builders import NOW, job, points, result, sweep_spec

README = Path(__file__).parents[3] / "operator" / "README.md"
POINT = points()[0]
F = jobs.FailureClass


def after(
    attempts: Attempts, *failures: jobs.FailureClass, template: str = "t", **job_changes: object
) -> Attempts:
    """The attempts after these failures, one Job each."""
    for failure in failures:
        ended = job(POINT, attempt=attempts.ended + 1, **job_changes)
        reported = jobs.Failure(failure, "words")
        attempts = after_failure(attempts, ended, reported, template=template, now=NOW, halvable=3)
    return attempts


def test_a_job_seen_twice_is_recorded_once() -> None:
    """Attempts are numbered: what ended stays ended."""
    once = after(Attempts(), F.CRASHED)
    again = after_failure(
        once, job(POINT, attempt=1), jobs.Failure(F.CRASHED, ""), template="t", now=NOW
    )
    assert again is once


def test_a_pass_that_is_repeated_records_the_same_end_again() -> None:
    """As long as a store does not take the ledger: its digest is in the status, which was written anew each time."""
    crashed = job(POINT, failed=True, ended=NOW - timedelta(seconds=5))
    failure = jobs.Failure(F.CRASHED, "words")
    first, again = (
        after_failure(Attempts(), crashed, failure, template="t", now=NOW + timedelta(seconds=s))
        for s in (0, 30)
    )
    assert first == again
    assert first.last_ended_at == timestamp(NOW - timedelta(seconds=5))


@pytest.mark.parametrize(
    "changes",
    [
        {"failed": True},
        {"failed": True, "lost": True, "ended": NOW - timedelta(days=9)},
        {"complete": True, "outlived": True, "ended": NOW - timedelta(days=9)},
        {"failed": True, "ended": NOW + timedelta(days=9)},
        {"ended": NOW - timedelta(days=9)},
    ],
    ids=["of no time", "a lost pod's", "a node's", "in the future", "not ended"],
)
def test_an_end_that_the_api_server_does_not_know_is_when_it_was_seen(
    changes: dict[str, Any],
) -> None:
    seen = job(POINT, **changes)
    found = after_failure(Attempts(), seen, jobs.Failure(F.CRASHED, ""), template="t", now=NOW)
    assert found.last_ended_at == timestamp(NOW)


def test_interruptions_are_counted_and_not_charged() -> None:
    """However many there are."""
    attempts = after(Attempts(), *[F.INTERRUPTED] * 500)
    assert (attempts.interruptions, charges(attempts, "t")) == (500, 0)


def test_charges_belong_to_their_template() -> None:
    """Under another template there are none, and its first failure starts the count at zero."""
    attempts = after(Attempts(), F.CRASHED, F.STORAGE, template="old")
    assert (charges(attempts, "old"), charges(attempts, "new")) == (2, 0)
    assert charges(after(attempts, F.CRASHED, template="new"), "new") == 1


def test_only_the_last_failures_keep_their_messages() -> None:
    """Counts are never cut."""
    attempts = after(Attempts(), *[F.CRASHED] * 7)
    assert [f.attempt for f in attempts.failures] == [6, 7]
    assert charges(attempts, "t") == 7


@pytest.mark.parametrize(
    ("kind", "free", "charged"),
    [
        (F.STORE_UNAVAILABLE, 20, "StorageError"),
        (F.NODE_FAILURE, 10, "Crashed"),
    ],
)
def test_what_is_not_the_points_fault_is_charged_once_it_has_happened_so_often_in_a_row(
    kind: jobs.FailureClass, free: int, charged: str
) -> None:
    """Outages on the way cost no retry, however many in weeks of training; an image that no runtime can start looks like a
    broken node."""
    attempts = after(Attempts(), *[kind] * free)
    assert (attempts.charged, attempts.interruptions, attempts.last_failure) == ({}, free, kind)
    fewer = [kind] * (free - 1)
    worked = after(after(Attempts(), *fewer), kind, started=NOW - timedelta(hours=1))
    assert charges(after(worked, *fewer), "t") == 0, "it had time to work in between"
    too_often = after(attempts, kind)
    assert too_often.charged == {charged: 1}
    assert too_often.failures[-1].message == f"{free + 1} attempts in a row: words"


def test_a_pod_that_vanishes_is_charged_the_twenty_first_time() -> None:
    """A lost node is no fault of the point; a pod that vanishes for ever is."""
    attempts = after(Attempts(), *[F.POD_VANISHED] * 20)
    assert attempts.charged == {}
    assert after(attempts, F.POD_VANISHED).charged == {"Crashed": 1}


def test_the_last_failure_of_a_node_keeps_its_words_and_its_delay() -> None:
    attempts = after(Attempts(), *[F.NODE_FAILURE] * 10)
    assert (attempts.last_message, jobs.delay_seconds(attempts)) == ("words", 600.0)


def test_a_bad_configuration_is_recorded_and_does_not_count() -> None:
    """The sweep stops for it anyway."""
    attempts = after(Attempts(), F.BAD_CONFIGURATION)
    assert attempts.charged == {"BadConfiguration": 1}
    assert charges(attempts, "t") == 0


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        ([], 0.0),
        ([F.INTERRUPTED], 0.0),
        ([F.INTERRUPTED] * 2, 10.0),
        ([F.INTERRUPTED] * 3, 20.0),
        ([F.POD_VANISHED] * 19, 300.0),
        ([F.CRASHED], 5.0),
        ([F.CRASHED] * 3, 20.0),
        ([F.CRASHED] * 12, 300.0),
        ([F.CRASHED, F.INTERRUPTED], 0.0),
        ([F.STORAGE], 15.0),
        ([F.STORAGE] * 3, 240.0),
        ([F.STORE_UNAVAILABLE], 15.0),
        ([F.STORE_UNAVAILABLE] * 12, 600.0),
        ([F.INTERRUPTED] * 2 + [F.STORE_UNAVAILABLE], 240.0),
        ([F.BAD_DATA] * 9, 600.0),
        ([F.CLAIMED_ELSEWHERE] * 5, 60.0),
        ([F.HOST_OUT_OF_MEMORY] * 2, 0.0),
    ],
)
def test_delays_grow_with_repetition_and_are_bounded(
    failures: list[jobs.FailureClass], seconds: float
) -> None:
    """The table of operator/README.md."""
    attempts = after(Attempts(), *failures)
    assert jobs.delay_seconds(attempts) == seconds
    expected = NOW + timedelta(seconds=seconds) if seconds else None
    assert jobs.not_before(attempts, "t", NOW) == expected


def in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 or seconds % 60 else f"{seconds / 60:.0f} min"


def row(kind: jobs.FailureClass) -> tuple[str, ...]:
    """A row of the README's table."""
    delay = jobs.DELAYS.get(kind, jobs.OTHERS)
    delays = [in_words(delay.seconds(count)) for count in (1, 2, 3, 1000)]
    return str(kind), "no" if kind in jobs.UNCHARGED else "yes", *delays


def test_the_delay_table_in_the_readme_is_the_operators() -> None:
    """Every class of failure, in the order of its enum: one table for prepare, train and evaluate."""
    table = README.read_text().split("<!-- delays -->")[1]
    found = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", table, re.MULTILINE
    )
    assert found == [row(kind) for kind in jobs.FailureClass]


def test_a_changed_template_ends_the_wait_for_what_failed_under_the_former_one() -> None:
    """Whoever changed it fixed something; an interruption had nothing to do with it."""
    crashed = after(Attempts(), *[F.CRASHED] * 3)
    assert jobs.not_before(crashed, "t", NOW) is not None
    assert jobs.not_before(crashed, "fixed", NOW) is None
    interrupted = after(Attempts(), *[F.INTERRUPTED] * 3)
    assert jobs.not_before(interrupted, "fixed", NOW) is not None


def test_an_attempt_that_ended_in_the_future_delays_nothing() -> None:
    """A former leader's clock was three hours ahead: its points must not wait three hours."""
    attempts = after(Attempts(), *[F.CRASHED] * 3)
    assert jobs.not_before(attempts, "t", NOW - timedelta(hours=3)) is None
    assert jobs.not_before(attempts, "t", NOW - timedelta(seconds=5)) is not None


def test_retries_are_tries_after_the_first() -> None:
    """retriesPerPoint 1: the second failure is one too many; raising it revives the point."""
    record = planned(POINT, None)
    digest = POINT.proxy.template_digest
    once = replace(record, attempts=after(Attempts(), F.CRASHED, template=digest))
    twice = replace(record, attempts=after(Attempts(), F.CRASHED, F.CRASHED, template=digest))
    assert settled(once, POINT, 1).state is PointState.PENDING
    assert settled(twice, POINT, 1).state is PointState.FAILED
    assert settled(settled(twice, POINT, 1), POINT, 2).state is PointState.PENDING


def test_more_tokens_reopen_a_success_but_not_a_divergence() -> None:
    """A run is continued from its checkpoint; a diverged one has none worth it."""
    longer = points(
        sweep_spec(proxies=[{**p, "tokens": 4_000_000} for p in sweep_spec()["proxies"]])
    )[0]
    done = result_found(planned(POINT, None), result(POINT), adopted=False)
    diverged = result_found(
        planned(POINT, None), result(POINT, outcome=Outcome.DIVERGED), adopted=False
    )
    assert settled(done, POINT, 3).state is PointState.SUCCEEDED
    assert settled(done, longer, 3).state is PointState.PENDING
    assert settled(diverged, longer, 3).state is PointState.DIVERGED


def test_a_result_must_be_the_points_own() -> None:
    """Another point's result, or one of a model of another size, is as good as unreadable."""
    assert unusable(POINT, result(POINT)) == ""
    assert "result of" in unusable(POINT, result(points()[1]))
    small = ParameterCounts(body_active=1, body_total=1, head=1, embedding=1)
    assert "2 active parameters" in unusable(POINT, result(POINT, parameters=small))


def test_what_a_result_is_worth() -> None:
    """Enough tokens or a divergence; out of memory is no result."""
    assert is_enough(POINT, result(POINT))
    assert not is_enough(POINT, result(POINT, tokens=10, wanted_tokens=10))
    assert is_enough(POINT, result(POINT, outcome=Outcome.DIVERGED, wanted_tokens=10))
    assert not is_enough(POINT, result(POINT, outcome=Outcome.OUT_OF_MEMORY))
