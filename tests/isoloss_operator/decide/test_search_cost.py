"""What a prediction says of the sweep's cost."""

import pytest

from isoloss_operator.api import Grid
from isoloss_operator.decide.prediction_status import search_cost

GRID = Grid.model_validate(
    {"batchSizes": [64, 128, 256], "learningRates": ["1e-4", "2e-4", "5e-4"]}
)


def test_the_papers_own_cost_gives_its_saving() -> None:
    """8.15e20 FLOPs of proxies against nine runs of the dense 8B: 92.0 %."""
    words = search_cost(GRID, "8.15e20", 1.02e22 / 9)
    assert words.startswith("8.15e20 FLOPs for the sweep, 1.02e22 for 9 runs of the target")
    assert words.endswith("92.0 % saved")


def test_a_sweep_dearer_than_its_target_saves_nothing() -> None:
    assert search_cost(GRID, "8.15e20", 1e18).endswith("nothing saved")


@pytest.mark.parametrize(
    ("planned_flops", "cpt_flops"),
    [("", 1e20), (None, 1e20), ("1e20", None)],
    ids=["the sweep's cost", "a status without it", "the budget"],
)
def test_nothing_is_said_where_one_side_is_unknown(
    planned_flops: object, cpt_flops: float | None
) -> None:
    assert search_cost(GRID, planned_flops, cpt_flops) == ""
