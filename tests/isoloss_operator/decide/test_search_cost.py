"""What a prediction says of the sweep's cost, and that `isoloss plan` says the same."""

from typing import Any

import pytest

from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.answer import search_cost_status
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support.builders import sweep_spec

GRID = {"batchSizes": [64, 128, 256], "learningRates": ["1e-4", "2e-4", "5e-4"]}
SMALL_GRID = {"batchSizes": [64, 128], "learningRates": ["1e-4", "2e-4"]}


def spec(**changes: Any) -> ScalingSweepSpec:
    return parse_sweep_spec(sweep_spec(**{"grid": GRID, **changes}))


def test_the_papers_own_cost_gives_its_saving() -> None:
    """8.15e20 FLOPs of proxies against nine runs of the dense 8B: 92.0%."""
    cost = search_cost_status(spec(), {"plannedFlops": "8.15e20"}, 1.02e22 / 9)
    assert cost is not None
    assert (cost.sweep_flops, cost.direct_flops, cost.direct_runs) == ("8.15e20", "1.02e22", 9)
    assert round(100 * float(cost.saving), 1) == 92.0


def test_a_search_on_the_target_takes_as_many_runs_as_the_largest_grid() -> None:
    """Also where the sweep's own grid is the smaller one, or there is none."""
    small, large = sweep_spec()["proxies"]
    proxies = [{**small, "grid": SMALL_GRID}, {**large, "grid": GRID}]
    assert spec(proxies=proxies, grid=SMALL_GRID).direct_runs == 9
    assert spec(proxies=proxies, grid=None).direct_runs == 9


@pytest.mark.parametrize(
    ("status", "cpt_flops"),
    [({}, 1e20), ({"plannedFlops": "1e20"}, None)],
    ids=["the sweep's cost", "the budget"],
)
def test_nothing_is_said_where_one_side_is_unknown(
    status: dict[str, Any], cpt_flops: float | None
) -> None:
    assert search_cost_status(spec(), status, cpt_flops) is None
