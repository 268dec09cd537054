"""A law over few sizes and tokens may bend beyond them, and its intervals say so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from benchmarks.science.shapes import MANY, TWO, WIDE, PlantedJudge, runs_on, surface
from isoloss.laws import (
    FitOptions,
    Laws,
    Prediction,
    PredictionQuery,
    Refused,
    Run,
    fit_laws,
    predict,
    surface_residual,
)
from isoloss.laws.data.cells import CELLS_PER_SIZE, LATE, make_cells
from isoloss.laws.data.trajectories import collect
from isoloss.laws.model import Refusal
from isoloss.laws.results import Bend, TokenBend
from isoloss.laws.surface.bend import OwnBends, possible_bend, possible_token_bend
from isoloss.laws.surface.joint_fit import fit_surface
from isoloss.laws.surface.token_range import LATER, fit_late_if_bent
from isoloss.laws.surface.uncertainty import Uncertainty
from isoloss.usual import USUAL_BEND, USUAL_SCATTER, USUAL_TOKEN_BEND
from tests.support.planted import Bending, Valley

LOG_PARAMS = np.log([1e8, 2e8, 4e8])
TARGET, TOKENS = 8e9, 1.6e11


def bend(log_params: np.ndarray, shifts: np.ndarray, noise: float = 0.01) -> Bend:
    """Of one hyperparameter, whose optimum is off its law by `shifts` (sizes,), known to within `noise`."""
    return possible_bend(
        log_params,
        shifts[:, None],
        np.full((len(shifts), 1), noise**2),
        np.array([USUAL_SCATTER**2]),
    )


def bent(log_params: np.ndarray, by: float) -> np.ndarray:
    """What a line through (ln N)^2 times `by` leaves over."""
    squares = by * (log_params - log_params.mean()) ** 2
    return np.asarray(squares - np.polyval(np.polyfit(log_params, squares, 1), log_params))


def test_two_sizes_show_no_bend_so_that_it_may_be_as_usual() -> None:
    found = bend(LOG_PARAMS[:2], np.zeros(2))
    assert found.spread == pytest.approx(USUAL_BEND)
    for log_params in LOG_PARAMS[:2]:
        assert found.error(log_params) == pytest.approx(0.0)


def test_the_error_grows_with_the_square_of_the_distance() -> None:
    found = bend(LOG_PARAMS, np.zeros(3))
    near, far, farther = (float(found.error(LOG_PARAMS[1] + x)[0]) for x in (0.0, 3.0, 6.0))
    assert near < 0.02
    assert farther / far == pytest.approx(4.0, rel=0.15)


def test_sizes_on_a_line_leave_little_room_for_a_bend_and_more_of_them_leave_less() -> None:
    three = bend(LOG_PARAMS, np.zeros(3)).spread
    five = bend(np.log([5e7, 1e8, 2e8, 4e8, 8e8]), np.zeros(5)).spread
    assert five < 0.5 * three < 0.5 * USUAL_BEND


def test_noise_that_hides_a_bend_leaves_it_as_usual() -> None:
    assert bend(LOG_PARAMS, np.zeros(3), noise=0.3).spread == pytest.approx(USUAL_BEND, rel=0.1)


@pytest.mark.parametrize("by", [0.05, -0.05])
def test_a_bend_that_shows_is_allowed_for_in_either_direction(by: float) -> None:
    many = np.log([5e7, 1e8, 2e8, 4e8, 8e8])
    assert 0.03 < bend(many, bent(many, by)).spread < 0.06


def test_an_order_of_sizes_makes_no_difference() -> None:
    shifts = np.array([0.02, -0.05, 0.03])
    assert bend(LOG_PARAMS[::-1], shifts[::-1]).spread == pytest.approx(
        bend(LOG_PARAMS, shifts).spread
    )


def bending_laws(seed: int) -> Laws:
    return fit_laws(
        runs_on(surface("bending", seed), WIDE, seed), FitOptions(bootstrap_samples=60)
    )


@pytest.mark.slow
def test_five_sizes_that_show_an_unusual_bend_are_held_nearby_and_refused_far_away() -> None:
    """By 0.1 (ln N)^2, as of published sweeps one does. With what is usual alone, 0 of 5 nearby and 0 of 5 far away were held."""
    for seed in range(2):
        truth = Bending(surface("exact", seed), (0.1, 0.0))
        laws = fit_laws(runs_on(truth, MANY, seed), FitOptions(bootstrap_samples=100))
        n, d = 2.5 * MANY.sizes[-1], MANY.tokens[-1]
        near = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n))
        assert isinstance(near, Prediction)
        assert near.learning_rate.low <= truth.rate(n, d) <= near.learning_rate.high
        far = PredictionQuery(total_flops=6 * 64 * n * d, params=8 * n)
        assert isinstance(predict(laws, far), Refused)


def test_intervals_hold_a_law_that_bends_twenty_times_beyond_the_sizes() -> None:
    """ln LR bends by 0.05 (ln N)^2: within three sizes by 0.02, which is nothing, and at 8B by 0.66."""
    best = surface("bending", 0).rate(TARGET, TOKENS)
    for seed in range(3):
        laws = bending_laws(seed)
        query = PredictionQuery(total_flops=6 * TARGET * TOKENS, params=TARGET)
        rate = predict(laws, query).learning_rate
        assert rate.low <= best <= rate.high
        batch = predict(laws, query).batch_size_raw
        at_batch = predict(
            laws, PredictionQuery(total_flops=6 * TARGET * TOKENS, params=TARGET, batch_size=batch)
        ).learning_rate
        assert at_batch.low <= best <= at_batch.high


# ------------------------------------------------------------------------------------- over tokens


def token_bend(shown: np.ndarray, noise: float = 0.01) -> TokenBend:
    """Of one hyperparameter whose bends at three sizes are shown (sizes,), known to within `noise`."""
    log_params = np.repeat(LOG_PARAMS, 4)
    log_tokens = np.log(20.0) + log_params + np.tile(np.log([0.25, 0.4, 0.63, 1.0]), 3)
    return possible_token_bend(log_params, log_tokens, np.ones(12), own_bends(shown, noise))


def own_bends(shown: np.ndarray, noise: float = 0.01) -> OwnBends:
    return OwnBends(shown[:, None], np.full((len(shown), 1), noise**2))


def test_sizes_that_show_no_token_counts_leave_a_bend_over_tokens_as_usual() -> None:
    assert token_bend(np.zeros(0)).spread == pytest.approx(USUAL_TOKEN_BEND)


def test_sizes_without_a_bend_over_tokens_leave_little_room_for_one() -> None:
    assert token_bend(np.zeros(3)).spread < 0.3 * USUAL_TOKEN_BEND


def test_a_bend_over_tokens_that_sizes_share_is_allowed_for_and_grows_with_the_square_of_the_distance() -> (
    None
):
    found = token_bend(np.full(3, 0.04))
    assert found.spread == pytest.approx(0.04, abs=0.01)
    middle = np.log(20.0) + LOG_PARAMS[1]
    far, farther = (float(found.error(LOG_PARAMS[1], middle + x)[0]) for x in (4.0, 8.0))
    assert float(found.error(LOG_PARAMS[1], middle)[0]) < 0.02
    assert farther / far == pytest.approx(4.0, rel=0.25)


def test_the_error_of_a_law_with_a_bend_over_tokens_is_what_a_plane_leaves_of_it() -> None:
    """The plane through c (ln D)^2 at the sweep's own points is off by c times what `error` says, anywhere."""
    found = token_bend(np.full(3, 0.04))
    log_params = np.repeat(LOG_PARAMS, 4)
    log_tokens = np.log(20.0) + log_params + np.tile(np.log([0.25, 0.4, 0.63, 1.0]), 3)
    design = np.stack([np.ones(12), log_params, log_tokens], axis=1)
    plane = np.linalg.lstsq(design, log_tokens**2, rcond=None)[0]
    n, d = np.log(3e9), np.log(2e11)
    left = abs(d**2 - plane @ np.array([1.0, n, d]))
    assert found.error(n, d)[0] == pytest.approx(found.spread[0] * left)


@pytest.mark.parametrize(
    ("shown", "clear"),
    [
        ([0.005, -0.01, 0.01], False),
        ([0.03, 0.04, 0.03], True),
        ([-0.04, -0.04, -0.05], True),
        ([0.0, 0.07, 0.0], False),
        ([-0.06, 0.07, 0.0], False),
    ],
    ids=["none", "alike", "downwards", "at one size", "of two signs"],
)
def test_a_bend_is_clear_where_all_sizes_bend_alike(shown: list[float], clear: bool) -> None:
    assert own_bends(np.array(shown)).are_clear == clear


def test_noise_makes_no_bend_clear() -> None:
    assert not own_bends(np.array([0.06, 0.05, -0.02]), noise=0.06).are_clear


def first_cells(shape: str) -> list[float]:
    """Share of its tokens at which each size's first cell of the surface is."""
    trajectories = collect(runs_on(surface(shape, 0), WIDE, 0)).trajectories
    found = fit_late_if_bent(trajectories)
    assert not isinstance(found, Refusal)
    ends = dict(zip(np.log(WIDE.sizes), np.log(WIDE.tokens), strict=True))
    sizes = {cell.log_params for cell in found[1]}
    return [
        float(np.exp(min(c.log_tokens for c in found[1] if c.log_params == n) - ends[n]))
        for n in sorted(sizes)
    ]


@pytest.mark.parametrize("shape", ["turning", "saturating"])
def test_a_law_that_bends_over_tokens_is_read_off_the_last_part_of_runs(shape: str) -> None:
    """It still bends from LATE on."""
    assert first_cells(shape) == pytest.approx([LATER] * 3, rel=1e-6)


def test_the_interval_of_runs_that_were_cut_twice_keeps_the_bend_of_the_longer_part() -> None:
    """The short part knows its bend to 0.04, and its line errs by nearly as much as the longer part's."""
    trajectories = collect(runs_on(surface("turning", 0), WIDE, 0)).trajectories
    found = fit_late_if_bent(trajectories)
    assert not isinstance(found, Refusal)
    longer = fit_surface(trajectories, make_cells(trajectories, earliest=LATE))
    assert not isinstance(longer, Refusal)
    expected = Uncertainty(longer).token_bend
    assert expected.spread[0] == pytest.approx(0.04, abs=0.005)
    assert found[0].token_bend.error(np.log(TARGET), np.log(TOKENS)) == pytest.approx(
        expected.error(np.log(TARGET), np.log(TOKENS))
    )


@pytest.mark.parametrize("shape", ["exact", "scattered", "skewed"])
def test_any_other_law_is_read_off_whole_runs(shape: str) -> None:
    assert max(first_cells(shape)) < 0.2 * LATE


@cache
def laws_of(shape: str, planted: int, noise: int) -> Laws:
    """Of the planted surface of that seed, whose runs scatter by another."""
    return fit_laws(
        runs_on(surface(shape, planted), WIDE, noise), FitOptions(bootstrap_samples=60)
    )


@pytest.mark.slow
@pytest.mark.parametrize("beyond", [1.0, 4.0])
@pytest.mark.parametrize(
    ("shape", "regret"), [("turning", (0.0003, 0.003)), ("saturating", (0.0012, 0.006))]
)
def test_optima_that_bend_over_tokens_are_held_and_nearly_found(
    shape: str, regret: tuple[float, float], beyond: float
) -> None:
    """At the largest size's own tokens, and at four times size and tokens."""
    n, d = beyond * WIDE.sizes[-1], beyond * WIDE.tokens[-1]
    for seed in range(3):
        truth = PlantedJudge(surface(shape, seed), n, d)
        query = PredictionQuery(total_flops=6 * n * d, params=n)
        found = predict(laws_of(shape, seed, seed), query)
        rate, batch = np.exp(truth.vertex)
        assert found.learning_rate.low <= rate <= found.learning_rate.high
        assert found.batch_size.low <= batch <= found.batch_size.high
        lost = truth.regret(found.learning_rate.value, found.batch_size_raw)
        assert lost < regret[beyond > 1.0]


@pytest.mark.slow
def test_optima_that_follow_the_loss_are_held_beyond_the_sizes() -> None:
    """They move through the grid along every run, which hid their bend as long as all cells of a size shared one level."""
    for seed in range(3):
        truth = surface("following", seed)
        laws = fit_laws(runs_on(truth, WIDE, seed), FitOptions(bootstrap_samples=200))
        for beyond in (2.5, 4.0):
            n, d = beyond * WIDE.sizes[-1], beyond * WIDE.tokens[-1]
            found = predict(laws, PredictionQuery(total_flops=6 * n * d, params=n))
            rate, batch = np.exp(PlantedJudge(truth, n, d).vertex)
            assert found.learning_rate.low <= rate <= found.learning_rate.high
            assert found.batch_size.low <= batch <= found.batch_size.high


@pytest.mark.slow
@pytest.mark.parametrize("beyond", [1.0, 4.0])
@pytest.mark.parametrize("shape", ["turning", "saturating"])
def test_the_best_rate_at_a_batch_size_that_bends_over_tokens_is_held_and_nearly_found(
    shape: str, beyond: float
) -> None:
    """At half and twice the best batch size, where a line through whole runs is off by 0.1, and by 0.3 to 0.4 four times beyond."""
    n, d = beyond * WIDE.sizes[-1], beyond * WIDE.tokens[-1]
    truth = surface(shape, 0)
    for seed in range(2):
        laws = laws_of(shape, 0, seed)
        for factor in (0.5, 2.0):
            batch = round(factor * truth.batch(n, d))
            query = PredictionQuery(total_flops=6 * n * d, params=n, batch_size=batch)
            found = predict(laws, query).learning_rate
            best = minimize_scalar(
                lambda rate, batch=batch: truth.loss(n, d, batch, float(np.exp(rate))),
                bounds=np.log(truth.rate(n, d)) + np.array([-2.0, 2.0]),
                method="bounded",
            ).x
            assert np.log(found.low) <= best <= np.log(found.high)
            assert abs(np.log(found.value) - best) < (0.3 if beyond > 1.0 else 0.07)


def one_long_run(truth: Valley, params: float) -> list[Run]:
    """The sweep of two sizes, of whose larger one a run was trained five times the tokens of the others."""
    found = []
    for run in runs_on(truth, TWO, 0):
        if run.params == params and run.name.endswith("lr2-b2"):
            tokens = np.geomspace(run.tokens[0], 5.0 * run.tokens[-1], 40)
            losses = [truth.loss(params, d, run.batch_size, run.learning_rate) for d in tokens]
            found.append(replace(run, tokens=tokens, losses=np.array(losses)))
        else:
            found.append(run)
    return found


@pytest.mark.parametrize("shape", ["turning", "saturating"])
def test_the_last_part_of_runs_has_every_size_though_one_run_is_longer_than_its_peers(
    shape: str,
) -> None:
    """A law of one size knows nothing of the other, and answered at a given batch size for both."""
    n, d, truth = TWO.sizes[-1], TWO.tokens[-1], surface(shape, 0)
    laws = fit_laws(one_long_run(truth, n), FitOptions(bootstrap_samples=60))
    assert laws.surface.cells > CELLS_PER_SIZE
    query = PredictionQuery(total_flops=6 * n * d, params=n, batch_size=truth.batch(n, d))
    found = predict(laws, query).learning_rate
    assert found.low <= truth.rate(n, d) <= found.high


def test_sizes_are_kept_though_their_high_rates_diverged() -> None:
    """Too few learning rates of a size came to its last part: whole runs tell more."""
    n, d, truth = WIDE.sizes[-1], WIDE.tokens[-1], surface("saturating", 0)
    laws = fit_laws(runs_on(truth, WIDE, 0, cliff=0.1), FitOptions(bootstrap_samples=60))
    query = PredictionQuery(total_flops=6 * n * d, params=n, batch_size=truth.batch(n, d))
    found = predict(laws, query).learning_rate
    assert found.low <= truth.rate(n, d) <= found.high


def test_the_scatter_about_a_surface_of_late_cells_is_told_without_the_laws() -> None:
    runs = runs_on(surface("turning", 0), WIDE, 0)
    assert surface_residual(runs) == fit_laws(runs).surface.residual_rms
