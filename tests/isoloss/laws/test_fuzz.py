"""Whatever the runs, the engine answers or refuses: it never crashes and never states nonsense."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isoloss import laws as engine
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

OPTIONS = engine.FitOptions(bootstrap_samples=12)
SLOW_OK = settings(max_examples=50, suppress_health_check=list(HealthCheck))
MANY = settings(SLOW_OK, max_examples=200)


@st.composite
def any_run(draw: st.DrawFn, index: int = 0) -> engine.Run:
    count = draw(st.integers(0, 14))
    tokens = np.cumsum(draw(st.lists(st.floats(1e5, 1e9), min_size=count, max_size=count)))
    start, end = draw(st.floats(0.5, 12.0)), draw(st.floats(0.2, 12.0))
    noise = draw(st.floats(0.0, 0.5))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    losses = np.abs(np.linspace(start, end, count) + noise * rng.standard_normal(count)) + 1e-3
    diverged = draw(st.booleans())
    if diverged and count and draw(st.booleans()):
        losses[-1] = np.nan
    return engine.Run(
        name=f"run{index}-{draw(st.integers(0, 9))}",
        params=draw(st.sampled_from([1e6, 3e6, 1e7])),
        batch_size=draw(st.sampled_from([8.0, 16.0, 32.0, 64.0])),
        sequence_length=128,
        learning_rate=draw(st.sampled_from([1e-4, 3e-4, 1e-3, 3e-3])),
        tokens=np.asarray(tokens, dtype=float),
        losses=np.asarray(losses, dtype=float),
        diverged=diverged,
        finished=draw(st.booleans()),
    )


def check(runs: list[engine.Run]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laws = engine.fit_laws(runs, OPTIONS)
        text = json.dumps(engine.laws_to_json(laws), allow_nan=False)
        document = json.loads(text)
        assert engine.laws_to_json(engine.laws_from_json(document)) == document
        for query in (
            engine.PredictionQuery(initial_loss=2.5, cpt_flops=1e18),
            engine.PredictionQuery(total_flops=1e16, params=1e7),
        ):
            found = engine.predict(laws, query)
            if isinstance(found, engine.Prediction):
                _check_answer(found)
            else:
                assert all(r.message for r in found.refusals)
                assert found.refusals


def _check_answer(found: engine.Prediction) -> None:
    for interval in (found.learning_rate, found.total_flops):
        assert np.isfinite([interval.low, interval.value, interval.high]).all()
        assert 0 < interval.low <= interval.value <= interval.high
    assert np.isfinite(found.batch_size_raw)
    assert found.batch_size.value >= 1


ANY_RUNS = st.integers(0, 30).flatmap(lambda n: st.tuples(*(any_run(index=i) for i in range(n))))


@SLOW_OK
@given(ANY_RUNS)
def test_arbitrary_runs(runs):
    check(list(runs))


@pytest.mark.whole
@MANY
@given(ANY_RUNS)
def test_many_arbitrary_runs(runs):
    check(list(runs))


@st.composite
def damaged_sweep(draw: st.DrawFn) -> list[engine.Run]:
    """Runs missing, cut short, diverged, constant, or with a wild loss."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    grid = Grid(evaluations=draw(st.sampled_from([2, 3, 5, 9, 20])))
    damaged = []
    for run in synthetic_runs(Synthetic(), grid, rng, draw(st.sampled_from([0.0, 0.001, 0.1]))):
        fate = draw(
            st.sampled_from(["whole"] * 6 + ["missing", "short", "diverged", "flat", "wild"])
        )
        damaged += _damage(run, fate, rng)
    return damaged


@SLOW_OK
@given(damaged_sweep())
def test_a_sound_sweep_with_holes(runs):
    check(runs)


@pytest.mark.whole
@MANY
@given(damaged_sweep())
def test_many_sound_sweeps_with_holes(runs):
    check(runs)


def _damage(run: engine.Run, fate: str, rng: np.random.Generator) -> list[engine.Run]:
    keep = int(rng.integers(0, len(run.tokens) + 1))
    if fate == "missing":
        return []
    if fate in ("short", "diverged"):
        return [
            replace(
                run,
                tokens=run.tokens[:keep],
                losses=run.losses[:keep],
                finished=False,
                diverged=fate == "diverged",
            )
        ]
    if fate == "flat":
        return [replace(run, losses=np.full_like(run.losses, 3.0))]
    if fate == "wild":
        return [replace(run, losses=run.losses * rng.uniform(0.5, 3.0))]
    return [run]
