"""The interval of checkpoints at which least is lost to copying them and to preemptions."""

from dataclasses import replace

import pytest

from isoloss_contract.checkpointing import Checkpointing

SPOT = Checkpointing(copy=0.5, write=10, grace=15, preemptions_per_day=6, longest=600)


def test_no_other_interval_loses_less() -> None:
    assert SPOT.interval == pytest.approx(120)  # sqrt(2 * 0.5 s * 4 h)
    assert SPOT.lost_share == pytest.approx(0.5 / 120 + (10 + 60) / 14400)
    for interval in (60, 110):
        assert replace(SPOT, longest=interval).lost_share > SPOT.lost_share
    for interval in (130, 240):
        assert SPOT.copy / interval + (SPOT.write + interval / 2) / 14400 > SPOT.lost_share


@pytest.mark.parametrize(
    ("change", "interval"),
    [
        ({"write": 200}, 200),  # one is written at a time
        ({"longest": 60}, 60),
        ({"write": 200, "longest": 60}, 200),
        ({"write": 200, "longest": 60, "preemptions_per_day": 0}, 200),
        ({"grace": 39}, 120),
        ({"grace": 40}, 600),  # half a minute for the work at hand, and ten seconds to write
        ({"preemptions_per_day": 0}, 600),
    ],
)
def test_the_interval_is_within_its_limits_and_the_longest_if_nothing_is_known_or_lost(
    change: dict[str, float], interval: float
) -> None:
    assert replace(SPOT, **change).interval == pytest.approx(interval)


def test_what_can_be_saved_in_time_costs_its_copies_alone() -> None:
    assert replace(SPOT, grace=40).lost_share == pytest.approx(0.5 / 600)
