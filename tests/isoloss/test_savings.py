"""Search cost as plain ratios of FLOPs."""

import math

import pytest

from isoloss.savings import SearchCost, search_cost
from tests.support.paper_costs import PAPER_COSTS


@pytest.mark.parametrize(("name", "percent"), [("dense-8b", 92.0), ("moe-3b", 73.1)])
def test_the_papers_cost_table_follows_from_its_flops(name: str, percent: float) -> None:
    assert round(100 * PAPER_COSTS[name].saving, 1) == percent


def test_proxies_dearer_than_the_grid_are_a_negative_saving() -> None:
    assert SearchCost(direct_flops=1e18, proxy_flops=3e18).saving == pytest.approx(-2.0)


def test_a_direct_grid_does_not_overflow_64_bit_integers() -> None:
    run_flops = 6 * 8_000_000_000 * 55_000_000_000
    cost = search_cost(sweep_flops=1e20, direct_runs=9, run_flops=run_flops)
    assert cost.direct_flops == pytest.approx(9 * 6 * 8e9 * 55e9)


@pytest.mark.parametrize("flops", [0.0, -1.0, math.nan, math.inf])
def test_costs_that_are_none_are_refused(flops: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        SearchCost(direct_flops=1e20, proxy_flops=flops)
