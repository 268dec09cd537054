"""What a prediction says of the sweep's cost."""

from typing import Any

import pytest

from isoloss_operator.decide.observation import ObservedReference
from isoloss_operator.decide.prediction_status import search_cost

GRID = {"batchSizes": [64, 128, 256], "learningRates": ["1e-4", "2e-4", "5e-4"]}


def sweep(spec: dict[str, Any], status: dict[str, Any]) -> ObservedReference:
    return ObservedReference("dense", "uid", 1, spec, status)


def test_the_papers_own_cost_gives_its_saving() -> None:
    """8.15e20 FLOPs of proxies against nine runs of the dense 8B: 92.0 %."""
    words = search_cost(sweep({"grid": GRID}, {"plannedFlops": "8.15e20"}), 1.02e22 / 9)
    assert words.startswith("8.15e20 FLOPs for the sweep, 1.02e22 for 9 runs of the target")
    assert words.endswith("92.0 % saved")


def test_a_sweep_dearer_than_its_target_saves_nothing() -> None:
    words = search_cost(sweep({"grid": GRID}, {"plannedFlops": "8.15e20"}), 1e18)
    assert words.endswith("nothing saved")


@pytest.mark.parametrize(
    ("spec", "status", "cpt_flops"),
    [
        ({"grid": GRID}, {}, 1e20),
        ({}, {"plannedFlops": "1e20"}, 1e20),
        ({"grid": GRID}, {"plannedFlops": "1e20"}, None),
    ],
    ids=["the sweep's cost", "its grid", "the budget"],
)
def test_nothing_is_said_where_one_side_is_unknown(
    spec: dict[str, Any], status: dict[str, Any], cpt_flops: float | None
) -> None:
    assert search_cost(sweep(spec, status), cpt_flops) == ""
