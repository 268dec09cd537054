"""What evaluations are worth: thousands are averaged, and stated errors weigh as far as runs do not share them."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import FitOptions, InvalidRunError, fit_laws
from isoloss.laws.data.evaluations import MOST_EVALUATIONS, shared_error
from isoloss.laws.data.trajectories import collect
from isoloss.laws.iso_loss.noise import evaluation_noise
from tests.support.planted import Grid, Planted, planted_runs

OPTIONS = FitOptions(bootstrap_samples=60)
SURFACE = Planted()
GRID = Grid(sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.5e10, 2e10), rates=4, batches=4)


def dense(evaluations: int, noise: float = 0.0):  # type: ignore[no-untyped-def]
    """Evaluated at even steps, as trainers log."""
    return planted_runs(
        SURFACE, replace(GRID, evaluations=evaluations), np.random.default_rng(0), noise
    )


def test_thousands_of_evaluations_become_few_rows():
    """A smoother has the square of this many entries per run."""
    trajectories = collect(dense(4000)).trajectories
    for t in trajectories:
        assert len(t.log_tokens) <= MOST_EVALUATIONS
        assert t.smoother.shape == (len(t.log_tokens),) * 2
        assert t.counts.sum() > 2000
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
    rates = [fit_laws(each, OPTIONS).surface.planes.learning_rate for each in (runs, repeated)]
    assert rates[1].constant == pytest.approx(rates[0].constant, abs=1e-9)
    assert rates[1].of_tokens == pytest.approx(rates[0].of_tokens, abs=1e-9)


def test_averaged_evaluations_give_the_same_laws():
    many, few = fit_laws(dense(4000), OPTIONS), fit_laws(dense(100), OPTIONS)
    for one, other in (
        (many.surface.planes.learning_rate, few.surface.planes.learning_rate),
        (many.surface.planes.batch_size, few.surface.planes.batch_size),
    ):
        assert one.constant == pytest.approx(other.constant, abs=0.01)
        assert one.of_params == pytest.approx(other.of_params, abs=0.02)


def test_the_noise_of_single_evaluations_is_still_known():
    noise = 0.004
    found = evaluation_noise(collect(dense(3000, noise)).trajectories)
    assert found == pytest.approx(noise / 3.0, rel=0.25)


def with_errors(runs, own: float, shared: float = 0.02):  # type: ignore[no-untyped-def]
    """A third of the runs has an error of its own beside what all share."""
    rng = np.random.default_rng(1)
    changed = []
    for i, run in enumerate(runs):
        extra = own if i % 3 == 0 else 0.0
        errors = np.full(len(run.losses), np.hypot(shared, extra))
        moved = run.losses + extra * rng.standard_normal()
        changed.append(replace(run, losses=moved, loss_standard_errors=errors))
    return changed


def error(runs) -> float:  # type: ignore[no-untyped-def]
    planes = fit_laws(runs, replace(OPTIONS, keep_outliers=True)).surface.planes
    rate, batch = planes.at(np.log(2e8), np.log(1.5e10))
    return float(
        np.hypot(
            rate - np.log(SURFACE.rate(2e8, 1.5e10)), batch - np.log(SURFACE.batch(2e8, 1.5e10))
        )
    )


def test_runs_with_an_error_of_their_own_weigh_less():
    sparse = planted_runs(
        SURFACE, replace(GRID, evaluations=5, seen_from=0.2), np.random.default_rng(0)
    )
    told = with_errors(sparse, 0.02)
    untold = [replace(run, loss_standard_errors=None) for run in told]
    assert error(told) < 0.5 * error(untold)


def test_an_error_that_all_runs_share_changes_nothing():
    """It is that of the validation text."""
    runs = dense(30, 0.001)
    stated = [replace(r, loss_standard_errors=0.02 * r.losses) for r in runs]
    one, other = fit_laws(stated, OPTIONS).surface.planes, fit_laws(runs, OPTIONS).surface.planes
    assert one.learning_rate.constant == pytest.approx(other.learning_rate.constant, abs=1e-9)
    assert one.batch_size.of_tokens == pytest.approx(other.batch_size.of_tokens, abs=1e-9)


def test_errors_that_only_some_runs_state_are_not_used():
    runs = dense(30)
    some = [replace(runs[0], loss_standard_errors=np.full(30, 0.1)), *runs[1:]]
    assert shared_error(some) is None
    assert fit_laws(some, OPTIONS).surface.planes == fit_laws(runs, OPTIONS).surface.planes


def test_errors_without_their_losses_are_an_error_that_names_the_run():
    runs = dense(30)
    broken = replace(runs[0], loss_standard_errors=np.full(29, 0.1))
    with pytest.raises(InvalidRunError, match="loss_standard_errors and losses differ in length"):
        fit_laws([broken, *runs[1:]], OPTIONS)


def test_a_single_evaluation_of_every_run_is_said_to_leave_open_what_tokens_change():
    """The surface and the law at a given batch size then conclude it from different things."""
    grid = replace(GRID, sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.2e10, 2e10))
    runs = planted_runs(SURFACE, grid, np.random.default_rng(0), 0.001)
    last = [replace(run, tokens=run.tokens[-1:], losses=run.losses[-1:]) for run in runs]
    for given, is_said in ((runs, False), (last, True)):
        laws = fit_laws(given, OPTIONS)
        assert laws.surface.planes is not None
        assert laws.rate_at_batch.curve is not None
        said = [w for w in laws.warnings if w.startswith("Every size was evaluated at a single")]
        assert bool(said) is is_said
