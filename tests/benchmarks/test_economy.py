"""The comparison of cost and regret: which design stands for a cost, what is printed of it, and one design on one surface."""

import numpy as np
import pytest

from benchmarks.economy import synthetic
from benchmarks.economy.outcomes import Outcome, best_within, mean_line, table

CHEAP = Outcome(1, 0.02, 6e-3, 1e8, 2.0, 7e-3, 8e-3)
DEAR = Outcome(2, 0.2, 1e-3, 4e8, 4.0, 2e-3, 3e-3)
REFUSED = Outcome(3, 0.4, 2e-3, 8e8, 4.0)
EVERY = (CHEAP, DEAR, REFUSED)


@pytest.mark.parametrize(("cap", "best"), [(0.01, None), (0.1, CHEAP), (0.5, DEAR)])
def test_a_cost_has_the_design_that_is_expected_to_lose_least(
    cap: float, best: Outcome | None
) -> None:
    """Of those that cost no more."""
    assert best_within(EVERY, cap) is best


def test_means_are_over_answers_and_refusals_are_counted() -> None:
    assert table([("dense", EVERY)])[2] == "| dense | 3 | 2 | 1 | 5.50 | 3.50 | 4.50 | 0.64 |"
    assert mean_line("some", EVERY) == "| some | 20.7% | 3 | 1 | 5.50 | 8.00 | 3.50 |"
    assert mean_line("none", [REFUSED]) == "| none | 40.0% | 1 | 1 | | | |"


def test_a_dearer_design_on_a_synthetic_surface_is_expected_to_lose_less() -> None:
    """The cheapest of those compared costs at most 1% of the target."""
    designs = dict(synthetic.designs())
    assert next(iter(designs)) == "at most 1%"
    assert designs["at most 1%"].cost <= 0.01
    wasted = [design.outlook.wasted for design in designs.values()]
    assert wasted == sorted(wasted, reverse=True)


def test_answers_report_what_they_lose_in_the_mean() -> None:
    """Far beyond two small sizes: by the intervals' variances and the slope of the proxies' last tokens it was seven times that."""
    found = [
        synthetic.outcome(design, shape, 0, number)
        for number, (_, design) in enumerate(synthetic.designs())
        for shape in synthetic.SHAPES
    ]
    reported, measured = np.mean([(each.reported, each.measured) for each in found], axis=0)
    assert 1 / 1.5 < reported / measured < 1.5
