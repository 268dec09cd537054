"""What evaluations are worth: thousands are averaged."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import FitOptions, fit_laws
from isoloss.laws.data.evaluations import MOST_EVALUATIONS
from isoloss.laws.data.trajectories import collect
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

OPTIONS = FitOptions(bootstrap_samples=60)
SURFACE = Synthetic()
GRID = Grid(sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.5e10, 2e10), rates=4, batches=4)


def dense(evaluations: int, noise: float = 0.0):  # type: ignore[no-untyped-def]
    """Evaluated at even steps, as trainers log."""
    return synthetic_runs(
        SURFACE, replace(GRID, evaluations=evaluations), np.random.default_rng(0), noise
    )


def test_thousands_of_evaluations_become_few_rows():
    """A smoother has the square of this many entries per run."""
    trajectories = collect(dense(4000)).trajectories
    for t in trajectories:
        assert len(t.log_tokens) <= MOST_EVALUATIONS
        assert t.smoother.shape == (len(t.log_tokens),) * 2
    run = dense(4000)[0]
    assert trajectories[0].log_tokens[-1] == pytest.approx(np.log(run.tokens[-1]), abs=1e-12)


@pytest.mark.parametrize("evaluations", [3, 20])
def test_evaluations_at_equal_tokens_count_as_their_mean(evaluations):
    """As of runs that are evaluated on several texts, and listed without saying so."""
    runs = dense(evaluations)
    off = 0.05 * np.linspace(-1.0, 1.0, 8)
    repeated = [
        replace(
            run,
            tokens=np.repeat(run.tokens, len(off)),
            losses=np.outer(run.losses, np.exp(off)).ravel(),
        )
        for run in runs
    ]
    rates = [fit_laws(each, OPTIONS).surface.optimum.learning_rate for each in (runs, repeated)]
    assert rates[1].constant == pytest.approx(rates[0].constant, abs=1e-9)
    assert rates[1].of_tokens == pytest.approx(rates[0].of_tokens, abs=1e-9)


def test_averaged_evaluations_give_the_same_laws():
    many, few = fit_laws(dense(4000), OPTIONS), fit_laws(dense(100), OPTIONS)
    for one, other in (
        (many.surface.optimum.learning_rate, few.surface.optimum.learning_rate),
        (many.surface.optimum.batch_size, few.surface.optimum.batch_size),
    ):
        assert one.constant == pytest.approx(other.constant, abs=0.01)
        assert one.of_params == pytest.approx(other.of_params, abs=0.02)


def test_a_single_evaluation_of_every_run_is_said_to_leave_open_what_tokens_change():
    """The surface and the law at a given batch size then conclude it from different things."""
    grid = replace(GRID, sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.2e10, 2e10))
    runs = synthetic_runs(SURFACE, grid, np.random.default_rng(0), 0.001)
    last = [replace(run, tokens=run.tokens[-1:], losses=run.losses[-1:]) for run in runs]
    for given, is_reported in ((runs, False), (last, True)):
        laws = fit_laws(given, OPTIONS)
        assert laws.surface.optimum is not None
        assert laws.rate_at_batch.curve is not None
        message = [
            w for w in laws.warnings if w.startswith("Every size was evaluated at one number")
        ]
        assert bool(message) is is_reported
