"""How often a status is written and a resource looked at."""

import math
from typing import Any

import pytest

from isoloss_operator.reconcile.status_writes import PROGRESS, next_look, status_pause
from isoloss_operator.settings import Settings

SETTINGS = Settings(
    trainer_image="i",
    status_interval_seconds=1,
    progress_interval_seconds=30,
    resync_seconds=60,
    idle_seconds=600,
)
BEFORE: dict[str, Any] = {
    "conditions": [{"type": "Ready", "status": "False"}],
    "progress": "1/8",
    "estimatedCompletion": "12:00",
}


def pause(since_written: float, **changes: Any) -> float:
    return status_pause(BEFORE, {**BEFORE, **changes}, since_written, SETTINGS)


def test_a_turned_condition_is_written_at_once() -> None:
    assert pause(0, conditions=[], estimatedCompletion="12:01") == 0


@pytest.mark.parametrize("field", sorted(PROGRESS))
def test_progress_is_written_every_thirty_seconds(field: str) -> None:
    assert pause(0, **{field: "new"}) == 30
    assert pause(29, **{field: "new"}) == 1
    assert pause(31, **{field: "new"}) == 0


def test_a_finished_point_is_written_after_a_second_and_takes_the_progress_along() -> None:
    assert pause(0.25, progress="2/8", estimatedCompletion="12:01") == 0.75


def test_a_field_that_goes_is_a_change() -> None:
    after = {name: value for name, value in BEFORE.items() if name != "progress"}
    assert status_pause(BEFORE, after, 0, SETTINGS) == 1


@pytest.mark.parametrize(("asked", "seconds"), [(5, 5), (300, 60), (math.inf, 600)])
def test_a_resource_is_looked_at_every_minute_unless_nothing_is_under_way(
    asked: float, seconds: float
) -> None:
    assert next_look(asked, SETTINGS) == seconds
