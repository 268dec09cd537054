"""What planned runs tell of a target: more never hurts, order and units do not matter, and it comes as it was expected."""

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.science.cases import synthetic_case
from benchmarks.science.shapes import WIDE
from isoloss import design
from isoloss import laws as engine
from tests.support.synthetic_runs import answered

OPTIMUM = engine.OptimumTrends(
    engine.Trend(math.log(1e-3), -0.4, 0.0),
    engine.Trend(math.log(128.0), 0.0, 0.5),
    math.log(2e8),
    math.log(1e10),
)
SETTING = design.Setting(OPTIMUM)
SIZES = ((1e8, 8e9), (4e8, 2e10))
TARGET = design.Target(4e9, 2e11)


def _grid(params: float, tokens: float, lines: int = 3) -> list[design.PlannedRun]:
    return design.grid_about(SETTING, params, tokens, lines)


def _runs(*sizes: tuple[float, float]) -> list[design.PlannedRun]:
    return [run for size in sizes for run in _grid(*size)]


def _known(
    setting: design.Setting, sizes: Iterable[tuple[float, float]], runs: list[design.PlannedRun]
) -> design.Knowledge:
    """By the evidence of each size that has runs, one of no `sizes` by those that it has."""
    centre = design.centre_below(TARGET)
    ends = {run.params: run.tokens for run in runs} | dict(sizes)
    of_size = [([run for run in runs if run.params == n], tokens) for n, tokens in ends.items()]
    shown = [design.evidence(setting, own, tokens, centre) for own, tokens in of_size if own]
    return design.Knowledge.of(setting, tuple(sizes), shown, centre)


KNOWN = _known(SETTING, SIZES, _runs(*SIZES))

places = st.builds(
    lambda n, d, x, y: design.PlannedRun(n, 128.0 * math.exp(y), 1e-3 * math.exp(x), n * d),
    st.floats(5e7, 2e9),
    st.floats(5.0, 200.0),
    st.floats(-3.0, 3.0),
    st.floats(-3.0, 3.0),
)


@given(run=places)
@settings(max_examples=30, deadline=None)
def test_a_further_run_hardly_ever_raises_the_waste(run: design.PlannedRun) -> None:
    """It tells at worst of what the law does without."""
    after = _known(SETTING, SIZES, [*_runs(*SIZES), run]).outlook(TARGET).wasted
    assert after <= 1.02 * KNOWN.outlook(TARGET).wasted


def test_the_order_of_runs_does_not_matter() -> None:
    """The same runs tell the same."""
    runs = _runs(*SIZES)
    one, other = (_known(SETTING, SIZES, given_) for given_ in (runs, runs[::-1]))
    np.testing.assert_allclose(
        one.outlook(TARGET).covariance, other.outlook(TARGET).covariance, rtol=1e-6, atol=1e-9
    )


def test_the_unit_of_batch_sizes_does_not_matter() -> None:
    """In sequences four times as long everything is as wide as before."""
    batch = replace(OPTIMUM.batch_size, constant=OPTIMUM.batch_size.constant - math.log(4.0))
    longer = replace(SETTING, optimum=replace(OPTIMUM, batch_size=batch))
    runs = [replace(run, batch_size=run.batch_size / 4.0) for run in _runs(*SIZES)]
    found = _known(longer, SIZES, runs).outlook(TARGET)
    np.testing.assert_allclose(
        found.covariance, KNOWN.outlook(TARGET).covariance, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize(
    ("more", "fewer"),
    [
        pytest.param(KNOWN, _known(SETTING, SIZES, _runs(SIZES[0])), id="a second size"),
        pytest.param(
            _known(SETTING, SIZES, _grid(*SIZES[0], 5) + _grid(*SIZES[1], 5)),
            KNOWN,
            id="five lines in place of three",
        ),
        pytest.param(
            _known(SETTING, ((1e8, 8e9), (1.6e9, 4e10)), _runs((1e8, 8e9), (1.6e9, 4e10))),
            KNOWN,
            id="a larger size, farther from the other",
        ),
        pytest.param(
            _known(SETTING, SIZES, _runs(*SIZES) * 2),
            KNOWN,
            id="every run with a second seed",
        ),
        pytest.param(
            _known(replace(SETTING, run_noise=0.001), SIZES, _runs(*SIZES)),
            KNOWN,
            id="less noise",
        ),
    ],
)
def test_what_tells_more_is_expected_to_waste_less(
    more: design.Knowledge, fewer: design.Knowledge
) -> None:
    """Of every pair the first."""
    assert more.outlook(TARGET).wasted < fewer.outlook(TARGET).wasted


def test_a_target_farther_away_is_known_less_well() -> None:
    """In size and in tokens."""
    near, larger, longer = (
        KNOWN.outlook(design.Target(*at)).wasted for at in ((1e9, 5e10), (8e9, 5e10), (1e9, 5e12))
    )
    assert near < min(larger, longer)


def test_nats_are_the_wasted_share_times_what_tokens_bring() -> None:
    """At the target's tokens; one point of a factor of 1.28 standard deviations is the 80% interval."""
    found = KNOWN.outlook(TARGET)
    assert found.nats == pytest.approx(found.wasted * design.token_slope(TARGET.tokens))
    assert found.factors()[0] == pytest.approx(
        math.exp(NormalDist().inv_cdf(0.9) * math.sqrt(found.covariance[0, 0]))
    )


@pytest.mark.parametrize("name", ["params", "batch_size", "learning_rate", "tokens"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_run_is_refused_by_name(name: str, value: float) -> None:
    """Before anything is computed from it."""
    good = {"params": 1e8, "batch_size": 64.0, "learning_rate": 1e-3, "tokens": 1e9}
    with pytest.raises(ValueError, match=f"^{name}: must be positive"):
        design.PlannedRun(**{**good, name: value})


@pytest.mark.parametrize("name", ["params", "tokens"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_target_is_refused_by_name(name: str, value: float) -> None:
    good = {"params": 1e8, "tokens": 1e9}
    with pytest.raises(ValueError, match=f"^{name}: must be positive"):
        design.Target(**{**good, name: value})
    with pytest.raises(ValueError, match=r"^flops: must be positive"):
        design.Target(1e200, 1e200)


def _planned(run: engine.Run) -> design.PlannedRun:
    return design.PlannedRun(
        run.params, run.batch_size, run.learning_rate, float(run.tokens[-1]), float(run.tokens[0])
    )


def _shown_by(laws: engine.Laws) -> design.Setting:
    """What the sweep's own surface shows of optima and noise."""
    surface = laws.surface
    assert surface.optimum is not None
    assert surface.curvature is not None
    found = design.Setting(surface.optimum, surface.curvature)
    if surface.residual_rms is None or not surface.token_slope:
        return found
    # Of what runs have in common, and of each evaluation, the surface knows the sum.
    each = max(surface.residual_rms / surface.token_slope, found.run_noise) / math.sqrt(2.0)
    return replace(found, run_noise=each, evaluation_noise=each)


def test_synthetic_sweeps_lose_about_what_was_expected() -> None:
    """Of sweeps whose optima follow a law with scatter, bend over sizes, bend over tokens or follow the loss, the engine's answers lose
    on average no more than was expected before a loss was known, and no less than a quarter: no such sweep has all of these at
    once, which a real one may have."""
    expected, measured = [], []
    for shape in ("scattered", "bending", "turning", "following"):
        for seed in range(3):
            case = synthetic_case(shape, WIDE, seed)
            laws = engine.fit_laws(case.runs, engine.FitOptions(bootstrap_samples=20))
            setting = _shown_by(laws)
            sizes = list(zip(WIDE.sizes, WIDE.tokens, strict=True))
            known = _known(setting, sizes, [_planned(run) for run in case.runs])
            for n, d, truth in case.targets:
                answer = answered(laws, total_flops=6.0 * n * d, params=n)
                assert laws.surface.token_slope is not None
                measured.append(truth.regret(answer.learning_rate.value, answer.batch_size_raw))
                wasted = known.outlook(design.Target(n, d)).wasted
                expected.append(wasted * laws.surface.token_slope)
    assert 0.25 < np.mean(measured) / np.mean(expected) < 1.5


def test_where_the_optimum_is_does_not_matter_to_runs_about_it() -> None:
    """Of a grid about it, the usual setting expects what one with other constants does."""
    usual = design.Setting.usual()
    moved = replace(
        usual, optimum=replace(usual.optimum, learning_rate=engine.Trend(-7.0, 0.0, 0.0))
    )
    one, other = (
        _known(each, SIZES, [r for s in SIZES for r in design.grid_about(each, *s, 3)])
        for each in (usual, moved)
    )
    np.testing.assert_allclose(
        one.outlook(TARGET).covariance, other.outlook(TARGET).covariance, rtol=1e-6, atol=1e-9
    )
