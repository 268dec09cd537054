"""The operator lives by the API server's clock, not by its node's."""

from datetime import UTC, datetime, timedelta

import pytest

from isoloss_operator.cluster.transport import ServerClock

HERE = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)


def date(moment: datetime) -> str:
    return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")


@pytest.mark.parametrize("hours", [3, -3])
def test_a_clock_that_is_hours_off_is_corrected(hours: int) -> None:
    clock = ServerClock(lambda: HERE)
    clock.saw(date(HERE + timedelta(hours=hours)))
    assert clock.now() == HERE + timedelta(hours=hours)


def test_clocks_that_agree_to_seconds_are_left_alone() -> None:
    """So that times do not jump with every answer."""
    clock = ServerClock(lambda: HERE)
    clock.saw(date(HERE + timedelta(seconds=4)))
    assert clock.now() == HERE


def test_a_clock_that_was_set_right_is_used_again() -> None:
    clock = ServerClock(lambda: HERE)
    clock.saw(date(HERE + timedelta(hours=3)))
    clock.saw(date(HERE))
    assert clock.now() == HERE


def test_a_date_that_came_before_a_slow_body_is_as_old_as_the_body_took() -> None:
    clock = ServerClock(lambda: HERE)
    clock.saw(date(HERE - timedelta(seconds=25)), 25.0)
    assert clock.now() == HERE


@pytest.mark.parametrize("rubbish", [None, "", "yesterday", "Tue, 01 Sep 2026 12:00:00 -0000"])
def test_a_date_that_cannot_be_read_tells_nothing(rubbish: str | None) -> None:
    clock = ServerClock(lambda: HERE)
    clock.saw(rubbish)
    assert clock.now() == HERE
