"""The comparison of losses: planted valleys have their bottom where it was put, and choices cost what they cost."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.cooldown.__main__ import UnknownSize, of_size
from benchmarks.cooldown.comparison import loss_at, opinions, paraboloid_optimum, shared_tokens
from isoloss.laws import Run

RATES, BATCHES = (1e-3, 2e-3, 4e-3), (2, 4, 8)


def run(rate: float, batch: int, loss: float, tokens: tuple[float, ...] = (100.0, 400.0)) -> Run:
    losses = np.array([loss + 1.0 - i for i in range(len(tokens))])
    return Run(
        name=f"{rate}-{batch}",
        params=1e5,
        batch_size=float(batch),
        sequence_length=128,
        learning_rate=rate,
        tokens=np.array(tokens),
        losses=losses,
    )


def valley(rate: float, batch: float) -> list[Run]:
    """A grid whose loss at 400 tokens is lowest at `rate` and `batch`."""
    return [
        run(r, b, 3.0 + 0.01 * math.log(r / rate) ** 2 + 0.02 * math.log(b / batch) ** 2)
        for r in RATES
        for b in BATCHES
    ]


def test_the_bottom_of_a_planted_valley_is_found() -> None:
    runs = valley(1.7e-3, 5.0)
    found = paraboloid_optimum(runs, np.array([loss_at(r, 400.0) for r in runs]))
    assert found is not None
    assert (found.learning_rate, found.batch_size) == (pytest.approx(1.7e-3), pytest.approx(5.0))


@pytest.mark.parametrize(("rate", "batch"), [(9e-3, 4.0), (2e-3, 1.0)])
def test_a_bottom_outside_the_grid_is_none(rate: float, batch: float) -> None:
    runs = valley(rate, batch)
    assert paraboloid_optimum(runs, np.array([loss_at(r, 400.0) for r in runs])) is None


def test_believing_one_loss_costs_what_the_other_says() -> None:
    kinds = {"raw": valley(1e-3, 8.0), "Linear": valley(2e-3, 4.0)}
    raw, cooled = opinions(kinds, "Linear", 400.0)
    assert (raw.best.learning_rate, raw.best.batch_size) == (1e-3, 8.0)
    assert (cooled.best.learning_rate, cooled.best.batch_size) == (2e-3, 4.0)
    assert raw.regret == pytest.approx(0.03 * math.log(2) ** 2)
    assert cooled.regret == 0.0


def test_losses_are_interpolated_over_the_log_of_tokens_and_not_beyond() -> None:
    assert loss_at(run(1e-3, 2, 3.0), 200.0) == pytest.approx(3.5)
    assert math.isnan(loss_at(run(1e-3, 2, 3.0), 401.0))
    assert math.isnan(loss_at(run(1e-3, 2, 3.0), 99.0))


def test_points_without_every_kind_of_loss_do_not_count() -> None:
    short = [run(r.learning_rate, int(r.batch_size), 2.0, (100.0, 200.0)) for r in valley(1e-3, 2)]
    kinds = {"raw": valley(2e-3, 4.0), "Linear": [*valley(2e-3, 4.0)[:8], short[8]]}
    assert shared_tokens(kinds) == 200.0
    assert opinions(kinds, "Linear", 400.0)[0].best.learning_rate == 2e-3
    with pytest.raises(ValueError, match="fewer than two points"):
        opinions({"raw": short, "Linear": valley(2e-3, 4.0)}, "Linear", 300.0)


def test_one_size_can_be_compared_alone_and_an_unknown_one_is_named() -> None:
    points: Any = [
        SimpleNamespace(proxy=SimpleNamespace(name=n)) for n in ("tiny", "tiny", "small")
    ]
    assert of_size(points, "tiny") == points[:2]
    assert of_size(points, None) == points
    with pytest.raises(UnknownSize, match="the demo's sizes are tiny, small"):
        of_size(points, "large")
