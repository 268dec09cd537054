"""How long Jobs take, so many at a time."""

import pytest

from isoloss_operator.planning.flops import elapsed


@pytest.mark.parametrize(
    ("parallelism", "hours"),
    [
        pytest.param(1, 10.0, id="one after the other"),
        pytest.param(2, 6.0, id="the dearest starts last"),
        pytest.param(4, 4.0, id="as long as the longest"),
        pytest.param(9, 4.0, id="more slots than Jobs"),
    ],
)
def test_the_cheapest_start_first(parallelism: int, hours: float) -> None:
    assert elapsed([4.0, 1.0, 3.0, 2.0], parallelism) == hours


def test_no_jobs_take_no_time() -> None:
    assert elapsed([], 4) == 0.0
