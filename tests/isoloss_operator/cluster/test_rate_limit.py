"""The common limit on requests, and the pauses that an overloaded server asks for."""

import threading

import pytest

from isoloss_operator.cluster.rate_limit import (
    DEFAULT_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    RateLimit,
)
from tests.support.chance import Clock

NEVER = float("inf")


def limit(time: Clock, per_second: float = 10, burst: int = 5) -> RateLimit:
    return RateLimit(per_second, burst, clock=time, sleep=time.sleep)


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    time = Clock(100.0)
    limited = limit(time)
    starts = []
    for _ in range(25):
        assert limited.wait(NEVER)
        starts.append(time.now - 100)
    assert starts[:5] == [0] * 5
    assert starts[-1] == pytest.approx(2.0)


def test_a_quiet_time_allows_one_burst_and_no_more() -> None:
    time = Clock(100.0)
    limited = limit(time)
    limited.wait(NEVER)
    time.now += 1000
    for _ in range(6):
        limited.wait(NEVER)
    assert time.now == pytest.approx(1100.1)


def test_without_a_limit_nobody_waits() -> None:
    time = Clock(100.0)
    limited = limit(time, per_second=0)
    assert all(limited.wait(time.now) for _ in range(1000))
    assert time.now == 100


def test_whose_turn_would_come_too_late_hears_so_at_once_and_takes_no_turn() -> None:
    time = Clock(100.0)
    limited = limit(time, per_second=1, burst=1)
    assert limited.wait(NEVER)
    for _ in range(10):
        assert not limited.wait(100.5)
    assert time.now == 100
    assert limited.wait(NEVER)
    assert time.now == 101


def test_after_a_refusal_nobody_sends_for_as_long_as_the_server_says() -> None:
    time = Clock(100.0)
    limited = limit(time)
    limited.pause("7")
    assert not limited.wait(106)
    assert limited.wait(NEVER)
    assert time.now == 107


@pytest.mark.parametrize(
    ("header", "seconds", "client"),
    [
        (None, DEFAULT_PAUSE_SECONDS, {}),
        ("Sat, 21 Nov 2026 12:00:00 GMT", DEFAULT_PAUSE_SECONDS, {}),
        ("-3", DEFAULT_PAUSE_SECONDS, {}),
        ("86400", LONGEST_PAUSE_SECONDS, {}),
        ("0", 0, {}),
        # That of the lease has little time: one refusal that asks for 12 s must not cost a leader its 10 s.
        ("12", 2, {"longest_pause": 2}),
    ],
)
def test_a_header_that_says_no_sensible_time_pauses_for_a_sensible_one(
    header: str | None, seconds: float, client: dict[str, float]
) -> None:
    time = Clock(100.0)
    limited = RateLimit(clock=time, sleep=time.sleep, **client)
    limited.pause(header)
    limited.wait(NEVER)
    assert time.now - 100 == seconds


def test_a_pause_also_holds_back_who_waits_for_a_turn_already() -> None:
    limited = RateLimit(5, 1)
    limited.wait(NEVER)
    waiting = threading.Thread(target=limited.wait, args=(NEVER,))
    waiting.start()
    limited.pause("1")
    waiting.join(0.6)
    assert waiting.is_alive()
    waiting.join(5)
    assert not waiting.is_alive()
