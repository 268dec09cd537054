"""What a sweep leaves open of its law: priors of what is usual, narrowed and widened by what its residuals show."""

import numpy as np
import pytest

from isoloss.laws.least_squares import Levelled
from isoloss.laws.surface.random_effects import LinearFit, Noise, Posterior, Usual, posterior

CURVATURE = 0.3
SIZE_CURVATURE, TOKEN_CURVATURE, SCATTER = 0.04, 0.05, 0.055
USUAL = Usual(
    scatter=np.array([[SCATTER**2]]),
    exponents=np.array([0.02]),
    token_curvatures=np.array([0.02]),
    size_curvature=SIZE_CURVATURE,
    token_curvature=TOKEN_CURVATURE,
)
THREE, FIVE = np.log([1e8, 2e8, 4e8]), np.log([5e7, 1e8, 2e8, 4e8, 8e8])
PARAMS_CURVATURE, TOKENS_CURVATURE = 3, 4
"""Of a posterior's terms, after a constant and the exponents of N and D."""


def sweep(
    log_params: np.ndarray,
    shifts: np.ndarray | float = 0.0,
    size_curvature: float = 0.0,
    token_curvatures: np.ndarray | float = 0.0,
    noise: float = 1e-3,
    rng: np.random.Generator | None = None,
    cuts: int = 6,
) -> LinearFit:
    """A fit of ln LR at one batch size: 7 runs of each size, whose optimum is off by `shifts` (sizes,), and by token_curvatures."""
    n = log_params - log_params.mean()
    size, run, cut = (a.ravel() for a in np.indices((len(n), 7, cuts)))
    x, d = 0.3 * (run - 3.0), n[size] + 0.35 * (cut - cuts + 1)
    past = d - n[size]
    optimum = np.broadcast_to(shifts, n.shape)[size] + size_curvature * n[size] ** 2
    optimum = optimum + np.broadcast_to(token_curvatures, n.shape)[size] * d**2
    z = 0.5 * CURVATURE * (x - optimum) ** 2
    runs = size * 7 + run
    if rng is not None:
        z = z + 0.7 * noise * rng.standard_normal(7 * len(n))[runs]
        z = z + 0.7 * noise * rng.standard_normal(len(z))
    levels = Levelled((size * cuts + cut).astype(np.intp), np.ones(len(z)))
    design = np.stack([0.5 * x**2, x, x * n[size], x * d], axis=1)
    solver = levels.solver(design)
    found = solver @ z
    to_law = np.zeros((3, 4))
    to_law[:, 1:] = -np.eye(3) / CURVATURE
    return LinearFit(
        solver=solver,
        design=design,
        levels=levels,
        residuals=levels.without_levels(z - design @ found),
        to_law=to_law,
        shifts=-CURVATURE * x[:, None],
        log_params=n[size],
        log_tokens=d,
        past_end=past,
        size=size.astype(np.intp),
        own_runs=False,
        unseen=np.zeros((len(z), 0)),
        unseen_variance=np.zeros(0),
        noise=Noise(runs.astype(np.intp), np.full(len(z), noise**2), 0.5),
        usual=USUAL,
    )


def spread(found: Posterior, term: int) -> float:
    """Root mean square of a coefficient."""
    return float(np.sqrt(found.moments[term, term]))


def left_by_a_line(log_params: np.ndarray, by: float) -> np.ndarray:
    """What a line leaves of (ln N)^2 times `by`."""
    squares = by * (log_params - log_params.mean()) ** 2
    return np.asarray(squares - np.polyval(np.polyfit(log_params, squares, 1), log_params))


def test_two_sizes_show_no_bend_over_sizes_so_that_it_may_be_as_usual() -> None:
    assert spread(posterior(sweep(THREE[:2])), PARAMS_CURVATURE) == pytest.approx(
        SIZE_CURVATURE, rel=0.02
    )


def test_sizes_on_a_line_are_evidence_against_a_bend_and_more_of_them_are_more() -> None:
    three, five = (spread(posterior(sweep(sizes)), PARAMS_CURVATURE) for sizes in (THREE, FIVE))
    assert five < 0.5 * three < 0.5 * SIZE_CURVATURE


def test_noise_that_hides_a_bend_leaves_it_as_usual() -> None:
    assert spread(posterior(sweep(THREE, noise=0.5)), PARAMS_CURVATURE) == pytest.approx(
        SIZE_CURVATURE, rel=0.1
    )


@pytest.mark.parametrize("by", [0.05, -0.05])
def test_a_bend_over_sizes_that_shows_is_allowed_for(by: float) -> None:
    assert 0.03 < spread(posterior(sweep(FIVE, left_by_a_line(FIVE, by))), PARAMS_CURVATURE) < 0.06


def test_sizes_that_scatter_more_or_less_than_is_usual_say_so() -> None:
    apart = np.array([1.0, -1.0, 0.0, 1.0, -1.0])
    quiet, usual, loud = (
        posterior(sweep(FIVE, scale * SCATTER * apart)).scale for scale in (0.0, 1.0, 3.0)
    )
    assert quiet < 0.3
    assert usual == pytest.approx(1.0, abs=0.4)
    assert loud > 1.7


def test_two_sizes_scatter_as_usual() -> None:
    assert posterior(sweep(THREE[:2])).scale == pytest.approx(1.0, abs=0.1)


def test_sizes_without_a_bend_over_tokens_leave_little_room_for_one() -> None:
    found = posterior(sweep(THREE))
    assert spread(found, TOKENS_CURVATURE) < 0.4 * TOKEN_CURVATURE


def test_runs_of_one_token_count_leave_a_bend_over_tokens_as_usual() -> None:
    found = posterior(sweep(THREE, cuts=1))
    assert spread(found, TOKENS_CURVATURE) > 0.5 * TOKEN_CURVATURE


@pytest.mark.parametrize(
    ("shown", "clear"),
    [
        ([0.005, -0.01, 0.01], False),
        ([0.04, 0.05, 0.04], True),
        ([-0.04, -0.04, -0.05], True),
        ([-0.03, 0.035, 0.0], False),
    ],
    ids=["none", "alike", "downwards", "of two signs"],
)
def test_a_bend_over_tokens_is_clear_where_all_sizes_bend_alike(
    shown: list[float], clear: bool
) -> None:
    found = posterior(sweep(THREE, token_curvatures=np.array(shown)))
    deviation = np.sqrt(found.covariance[TOKENS_CURVATURE, TOKENS_CURVATURE])
    assert (abs(found.mean[TOKENS_CURVATURE]) > 2.0 * deviation) == clear


def test_errors_of_sweeps_drawn_from_the_priors_are_as_large_as_is_said() -> None:
    """The law at three times the distance of the sizes, over its own root mean square: the standard normal's 80% within 1.28."""
    rng = np.random.default_rng(0)
    away = 3.0 * np.ptp(THREE)
    row = np.array([1.0, away, away, -(away**2), -(away**2)])
    ratios = []
    for _ in range(300):
        scale = abs(rng.standard_normal())
        shifts = scale * SCATTER * rng.standard_normal(3)
        size_curvature, token_curvature = (
            SIZE_CURVATURE * rng.standard_normal(),
            TOKEN_CURVATURE * rng.standard_normal(),
        )
        token_curvatures = token_curvature + 0.02 * rng.standard_normal(3)
        fit = sweep(THREE, shifts, size_curvature, token_curvatures, 2e-3, rng)
        found = posterior(fit)
        truth = size_curvature * away**2 + token_curvature * away**2
        answer = float(row[:3] @ law_of(fit, shifts, size_curvature, token_curvatures))
        ratios.append((answer - truth) / float(np.sqrt(row @ found.moments @ row)))
    held = np.mean(np.abs(ratios) < 1.2816)
    assert held == pytest.approx(0.8, abs=0.06)


def law_of(
    fit: LinearFit, shifts: np.ndarray, size_curvature: float, token_curvatures: np.ndarray
) -> np.ndarray:
    """(3,) what least squares make of these optima, without noise."""
    n, d, x = fit.log_params, fit.log_tokens, -fit.shifts[:, 0] / CURVATURE
    optimum = shifts[fit.size] + size_curvature * n**2 + token_curvatures[fit.size] * d**2
    coefficients = fit.solver @ (0.5 * CURVATURE * (x - optimum) ** 2)
    return np.asarray(-coefficients[1:] / coefficients[0])


def test_a_cell_with_runs_of_its_own_deviates_for_itself() -> None:
    """Half of the scatter is the cells', which many of them average out."""
    fit = sweep(FIVE)
    own = LinearFit(**{**vars(fit), "own_runs": True})
    assert len(own.priors(1.0)) == 2 + 5 + 30
    assert own.priors(2.0)[2, 2] == pytest.approx(4.0 * 0.5 * SCATTER**2)
