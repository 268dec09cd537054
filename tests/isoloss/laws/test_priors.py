"""What published sweeps say is usual holds where a sweep tells nothing, and gives way to what it tells."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.science.cases import synthetic_case
from benchmarks.science.shapes import MANY, TWO, WIDE, Layout, SyntheticJudge, surface
from isoloss.laws import FitOptions, Laws, PredictionQuery, fit_laws, predict
from isoloss.laws.surface.joint_fit import usual_end


def test_the_usual_end_of_runs_follows_sizes_between_equal_tokens_and_equal_ratios() -> None:
    sizes = np.repeat([0.0, 1.0, 2.0], 2)
    ends = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    assert usual_end(sizes, ends) == pytest.approx((1.0, 0.0))
    assert usual_end(sizes, ends + 0.5 * sizes) == pytest.approx((1.0, 0.5))
    assert usual_end(sizes, ends + 3.0 * sizes)[1] == 1.0
    assert usual_end(sizes, ends - 3.0 * sizes)[1] == 0.0
    assert usual_end(np.zeros(2), np.array([0.0, 1.0])) == pytest.approx((1.0, 0.0))


@cache
def laws_of(shape: str, layout: Layout, seed: int) -> Laws:
    return fit_laws(synthetic_case(shape, layout, seed).runs, FitOptions(bootstrap_samples=100))


def widths(shape: str, layout: Layout, seeds: int, beyond: float = 1.0) -> tuple[float, float]:
    """(share of ln LR and ln B held, median half width of the intervals, ln) at `beyond` times the largest size."""
    held, wide = [], []
    for seed in range(seeds):
        n, d = beyond * layout.sizes[-1], layout.tokens[-1]
        truth = SyntheticJudge(surface(shape, seed), n, d)
        question = PredictionQuery(total_flops=6 * n * d, params=n)
        found = predict(laws_of(shape, layout, seed), question)
        for interval, at in zip(
            (found.learning_rate, found.batch_size), np.exp(truth.vertex), strict=True
        ):
            held.append(interval.low <= at <= interval.high)
            wide.append(0.5 * np.log(interval.high / interval.low))
    return float(np.mean(held)), float(np.median(wide))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [12, pytest.param(30, marks=pytest.mark.whole)])
def test_laws_that_sizes_follow_exactly_get_narrow_intervals_and_others_do_not(seeds: int) -> None:
    """From two sizes nobody can tell; from five it is plain."""
    held, exact = widths("exact", MANY, seeds)
    assert held >= 0.75
    assert exact < 0.045
    held, scattered = widths("scattered", MANY, seeds)
    assert held >= 0.7
    assert scattered > 2.5 * exact
    _, three = widths("exact", WIDE, seeds)
    _, two = widths("exact", TWO, seeds)
    assert exact < three < two


@pytest.mark.slow
def test_beyond_the_sizes_an_exact_law_gets_wider_intervals_as_it_may_bend_there() -> None:
    """By less from five sizes than from three, which leave more room for it."""
    five = [widths("exact", MANY, 4, beyond)[1] for beyond in (1.0, 2.5, 10.0)]
    three = [widths("exact", WIDE, 4, beyond)[1] for beyond in (1.0, 2.5, 10.0)]
    assert five[0] < 0.045
    assert five[1] > 2.0 * five[0]
    assert five[2] > 2.0 * five[1]
    assert three[1] > 1.3 * five[1]
    assert three[2] > 1.3 * five[2]


def test_the_prior_for_a_sweep_does_not_depend_on_the_order_of_its_runs() -> None:
    case = synthetic_case("scattered", WIDE, 1)
    shuffled = replace(case, runs=case.runs[::-1])
    found = [
        fit_laws(c.runs, FitOptions(bootstrap_samples=20)).surface.error.moments
        for c in (case, shuffled)
    ]
    assert found[0] == pytest.approx(found[1])
