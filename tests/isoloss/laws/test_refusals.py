"""Where the data support no answer, the engine says so: which reason, in words, with figures."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from isoloss.laws import (
    FitOptions,
    Laws,
    Prediction,
    PredictionQuery,
    RefusalReason,
    Refused,
    Run,
    fit_laws,
    predict,
    size_refusal,
)
from isoloss.laws.iso_loss.hyperparameter_laws import fit_hyperparameter_law
from isoloss.laws.iso_loss.levels import too_few_levels
from tests.support.synthetic import Deviating, Grid, Synthetic, synthetic_runs
from tests.support.synthetic_runs import answered, refusal_of

OPTIONS = FitOptions(bootstrap_samples=80)
WIDE = Grid(rates=4, batches=4, tokens=(1e10, 2e10))
NEAR = replace(WIDE, sizes=(2e8, 2.12e8, 2.25e8), tokens=(8e9, 8e9, 8e9))


def synthetic(grid: Grid = WIDE, noise: float = 0.0005, seed: int = 0, **shape) -> list[Run]:  # type: ignore[no-untyped-def]
    return synthetic_runs(Synthetic(**shape), grid, np.random.default_rng(seed), noise)


def fit(runs, options: FitOptions = OPTIONS) -> Laws:  # type: ignore[no-untyped-def]
    return fit_laws(runs, options)


@pytest.fixture(scope="module")
def laws() -> Laws:
    return fit(synthetic())


def reasons(laws: Laws) -> set[RefusalReason]:
    return {refusal.reason for refusal in laws.refusals}


def test_no_runs():
    laws = fit([])
    assert reasons(laws) == {RefusalReason.TOO_FEW_RUNS}
    assert laws.status == "refused"


def test_two_runs_of_each_of_many_sizes_need_more_runs_and_no_more_evaluations():
    """Two learning rates at one batch size of 22 shapes."""
    sizes = tuple(5e7 * 1.1**i for i in range(22))
    grid = Grid(sizes, tuple(40 * n for n in sizes), rates=2, batches=1, evaluations=24)
    found = fit(synthetic(grid))
    assert reasons(found) == {RefusalReason.TOO_FEW_RUNS}
    for refusal in found.refusals:
        assert "No size has more than 2 settings" in refusal.message
        assert "train more learning rates and batch sizes of each size" in refusal.message
        assert "valuate" not in refusal.message.partition("No size")[2]


def test_one_size_is_known_at_a_given_batch_size():
    """Trained alone, and asked about itself."""
    grid = Grid(sizes=(2e8,), tokens=(1.2e10,), rates=5)
    found = fit(synthetic(grid))
    batch = found.data.batch_sizes[1]
    asked = PredictionQuery(params=2e8, total_flops=6 * 2e8 * 1.2e10, batch_size=batch)
    assert isinstance(predict(found, asked), Prediction)


def test_two_pairs_of_a_size_and_a_token_count_are_told_that_three_are_needed():
    grid = Grid(tokens=(4e9, 8e9), rates=4, evaluations=1, seen_from=1.0)
    message = fit(synthetic(grid)).surface.refusal.message  # type: ignore[union-attr]
    assert "24 in 2 pairs of a size and a token count" in message
    assert "in 3 pairs are needed" in message


def test_runs_that_all_ended_at_one_loss_have_one_level():
    """As if each had been trained until it reached that loss, and evaluated there alone."""
    surface = Synthetic()

    def reaching(run: Run, loss: float) -> Run:
        shape = (run.batch_size, run.learning_rate)
        log_tokens = brentq(lambda d: surface.loss(run.params, np.exp(d), *shape) - loss, 18, 26)
        return replace(run, tokens=np.exp([log_tokens]), losses=np.array([loss]))

    laws = fit([reaching(run, 3.0) for run in synthetic(Grid(), noise=0.0)])
    assert laws.learning_rate.refusal == too_few_levels(1)
    assert laws.loss_compute.refusal == too_few_levels(1)
    assert "4 loss levels with an optimum; these runs have 1" in too_few_levels(1).message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer": "other"}, RefusalReason.MIXED_TOKENIZERS),
        ({"bytes_per_token": 3.1}, RefusalReason.MIXED_TOKENIZERS),
        ({"sequence_length": 4096}, RefusalReason.MIXED_SEQUENCE_LENGTHS),
        ({"loss_kind": "annealed"}, RefusalReason.MIXED_LOSS_KINDS),
        ({"optimizer": "Lion"}, RefusalReason.MIXED_OPTIMIZERS),
    ],
)
def test_losses_that_can_not_be_compared(change, reason):
    runs = [replace(r, tokenizer="t", bytes_per_token=4.2, loss_kind="raw") for r in synthetic()]
    runs[0] = replace(runs[0], **change)
    laws = fit(runs)
    assert reasons(laws) == {reason}
    assert laws.surface.status == "refused"


def test_one_size():
    laws = fit([r for r in synthetic() if r.params == 1e8])
    assert reasons(laws) == {RefusalReason.TOO_FEW_SIZES}
    assert laws.surface.refusal.reason is RefusalReason.TOO_FEW_SIZES
    assert laws.optima, "the size's own optima are still shown"


@pytest.mark.parametrize("batch_size", [None, 32.0])
def test_sizes_that_are_alike_answer_nothing_about_others(batch_size):
    """Three sizes 12% apart: iso-loss laws answered for six times the size, far from the truth and with a narrow interval."""
    laws = fit(synthetic(NEAR, rate_at=(5e-4, -0.7, 0.3)))
    assert reasons(laws) == {RefusalReason.TOO_FEW_SIZES}
    answer = refusal_of(
        laws, PredictionQuery(params=1.3e9, total_flops=6e19, batch_size=batch_size)
    )
    assert "2e+08 to 2.25e+08 parameters, 12.5% apart" in answer.refusals[0].message


def test_two_learning_rates_make_no_parabola():
    runs = synthetic()
    middle = {r.learning_rate for r in runs if r.name.split("-")[1] in ("lr1", "lr2")}
    laws = fit([r for r in runs if r.learning_rate in middle])
    assert RefusalReason.TOO_FEW_RUNS in {o.refusal.reason for o in laws.optima if o.refusal}
    assert laws.learning_rate.status == "refused"


def test_runs_in_one_row_and_one_column_make_no_parabola_and_the_refusal_says_what_is_missing():
    """Seven of them are enough by number: what is missing is one that differs from the best one in both."""
    runs = synthetic()
    largest = [r for r in runs if r.params == max(each.params for each in runs)]
    best = min(largest, key=lambda r: r.losses[-1])
    cross = [
        r
        for r in largest
        if best.learning_rate == r.learning_rate or best.batch_size == r.batch_size
    ]
    assert len(cross) >= 6
    laws = fit([*(r for r in runs if r.params != best.params), *cross])
    found = [o.refusal for o in laws.optima if o.refusal and "missing" in o.refusal.figures]
    assert found
    for refusal in found:
        assert refusal.reason is RefusalReason.TOO_FEW_RUNS
        assert refusal.figures["params"] == best.params
        assert "differs from the best one in both" in refusal.message


def test_runs_without_evaluations():
    empty = np.zeros(0)
    runs = [replace(r, tokens=empty, losses=empty) for r in synthetic()]
    laws = fit(runs)
    assert reasons(laws) <= {RefusalReason.TOO_FEW_RUNS, RefusalReason.TOO_FEW_EVALUATIONS}
    assert laws.status == "refused"


def test_single_evaluations_are_too_few_for_a_curve():
    runs = [replace(r, tokens=r.tokens[-1:], losses=r.losses[-1:]) for r in synthetic()]
    laws = fit(runs)
    assert laws.status == "refused"


def test_one_ratio_of_tokens_to_parameters_can_not_tell_them_apart():
    """Every size trained for 100 tokens per parameter, with one evaluation each."""
    sizes = (1e8, 2e8, 4e8)
    grid = replace(WIDE, sizes=sizes, tokens=tuple(100 * n for n in sizes))
    runs = [replace(r, tokens=r.tokens[-1:], losses=r.losses[-1:]) for r in synthetic(grid)]
    laws = fit(runs)
    assert laws.status == "refused"
    assert laws.surface.refusal.reason is RefusalReason.TOO_FEW_EVALUATIONS
    assert laws.refusals[0] == laws.surface.refusal, "what it says of loss levels mends nothing"
    assert "tokens that grow with the size as N^1.00" in laws.refusals[0].message
    found = predict(laws, PredictionQuery(total_flops=1e20, params=1e9))
    assert "train at least one size for more tokens" in found.refusals[0].message


@pytest.mark.parametrize(
    ("shift", "quantity", "direction", "reason"),
    [
        ((-2.2, 0.0), "learning_rate", "larger", RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE),
        ((2.2, 0.0), "learning_rate", "smaller", RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE),
        ((0.0, -2.6), "batch_size", "larger", RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE),
        ((0.0, 2.6), "batch_size", "smaller", RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE),
    ],
)
def test_an_optimum_on_the_edge_names_the_edge_and_the_direction(
    shift, quantity, direction, reason
):
    """The grid's centre is moved so far that the optimum lies beyond its last value."""
    laws = fit(synthetic(replace(WIDE, shift=shift, seen_from=0.3)))
    assert reasons(laws) == {reason}
    refusal = laws.refusals[0]
    assert refusal.figures["quantity"] == quantity
    assert refusal.figures["direction"] == direction
    assert f"extend the grid to {direction} values" in refusal.message
    assert laws.surface.refusal.reason is reason
    assert isinstance(predict(laws, PredictionQuery(total_flops=1e20, params=1e9)), Refused)


def test_no_confident_optimum_where_the_surface_is_flat():
    laws = fit(synthetic(noise=0.003, curvature=(1e-4, 0.0, 1e-4)))
    assert not [o for o in laws.frontier if o.status == "fitted"]
    assert laws.status == "refused"
    assert reasons(laws) <= {
        RefusalReason.SURFACE_NOT_CONVEX,
        RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE,
        RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE,
    }


def test_a_saddle_is_not_a_minimum():
    laws = fit(synthetic(noise=0.0005, curvature=(0.3, 0.0, -0.3)))
    assert laws.status == "refused"
    assert not [o for o in laws.optima if o.status == "fitted"]


@pytest.mark.parametrize(
    ("slope", "noise", "refused_"),
    [(0.3, 0.5, True), (3.0, 0.05, False), (0.0, 0.01, False)],
    ids=["either way", "clear", "clearly flat"],
)
def test_a_trend_is_refused_where_it_may_go_either_way(slope, noise, refused_):
    """A flat law is an answer where the data pin it down, and a refusal where they do not."""
    rng = np.random.default_rng(0)
    losses = np.linspace(3.2, 2.8, 8)
    log_flops = np.tile(40.0 - 6.0 * np.log(losses), (300, 1))
    # One error per draw at either end: levels of one sweep err together.
    tilt = np.linspace(-1.0, 1.0, 8) * rng.standard_normal((300, 1))
    tilt[0] = 0.0
    values = -7.0 + slope * np.log(losses) + noise * tilt
    law, draws = fit_hyperparameter_law(
        "learning_rate", losses, log_flops, values, OPTIONS, "fitted"
    )
    assert (law.status == "refused") == refused_
    assert (draws is None) == refused_
    if refused_:
        assert law.refusal.reason is RefusalReason.TREND_INDISTINGUISHABLE_FROM_NOISE
        assert law.refusal.figures["low"] < 0 < law.refusal.figures["high"]


def test_unfinished_and_diverged_runs_are_bounds():
    """The largest rate diverges: what remains falls towards it, and only the bound closes it."""
    runs = synthetic(replace(WIDE, shift=(-0.5, 0.0)))
    highest = {n: max(r.learning_rate for r in runs if r.params == n) for n in (1e8, 3e8)}
    short = [
        replace(r, diverged=True, tokens=r.tokens[:6], losses=r.losses[:6])
        if r.learning_rate == highest[r.params]
        else r
        for r in runs
    ]
    laws = fit(short)
    bounds = [c for c in laws.contours if any(c.bounds)]
    assert bounds, "the diverged runs stay in the contours, as bounds"
    bounded = {lr for c in bounds for lr, b in zip(c.learning_rates, c.bounds, strict=True) if b}
    assert set(highest.values()) <= bounded


def test_a_partial_sweep_is_provisional():
    laws = fit_laws(synthetic(), OPTIONS, provisional=True)
    assert laws.status == "provisional"
    assert laws.learning_rate.status == "provisional"
    found = answered(laws, initial_loss=3.0, cpt_flops=1e19)
    assert found.provisional


def refused(laws: Laws, **query) -> RefusalReason:  # type: ignore[no-untyped-def]
    found = refusal_of(laws, PredictionQuery(**query))
    assert all(r.message and r.figures for r in found.refusals)
    return found.refusals[0].reason


def test_initial_loss_below_the_irreducible(laws):
    below = laws.loss_compute.irreducible_loss_interval.low - 0.01
    reason = refused(laws, initial_loss=below, cpt_flops=1e20)
    assert reason is RefusalReason.INITIAL_LOSS_BELOW_IRREDUCIBLE


def test_initial_loss_within_the_interval_of_the_irreducible(laws):
    """Not "below": the irreducible loss itself is only known to an interval."""
    interval = laws.loss_compute.irreducible_loss_interval
    within = 0.5 * (interval.low + interval.value)
    reason = refused(laws, initial_loss=within, cpt_flops=1e20)
    assert reason is RefusalReason.IRREDUCIBLE_LOSS_NOT_IDENTIFIED


def test_initial_loss_just_above_the_irreducible_is_not_inverted(laws):
    near = laws.loss_compute.irreducible_loss + 0.02
    reason = refused(laws, initial_loss=near, cpt_flops=1e20, max_extrapolation=1e30)
    assert reason is RefusalReason.IRREDUCIBLE_LOSS_NOT_IDENTIFIED


def test_an_initial_loss_above_all_seen_is_refused_where_its_compute_may_matter(laws):
    reason = refused(laws, initial_loss=9.0, cpt_flops=1e-3 * laws.data.largest_flops)
    assert reason is RefusalReason.INITIAL_LOSS_ABOVE_ALL_SEEN


def test_an_initial_loss_above_all_seen_is_answered_where_its_compute_cannot_matter(laws):
    """Whatever the checkpoint is worth, it is less than what runs from scratch took to the highest loss seen."""
    cpt = laws.data.largest_flops
    found = answered(laws, initial_loss=7.0, cpt_flops=cpt, params=2e8)
    assert found.equivalent_flops.value < 0.05 * cpt
    (warning,) = [w for w in found.warnings if "is above every loss of the sweep" in w]
    assert "C_pre is at most" in warning
    without = predict(laws, PredictionQuery(total_flops=cpt, params=2e8))
    assert found.learning_rate.value == pytest.approx(without.learning_rate.value, rel=0.02)
    assert found.batch_size_raw == pytest.approx(without.batch_size_raw, rel=0.05)


def test_an_initial_loss_far_above_all_seen_is_refused_whatever_its_compute(laws):
    far, cpt = 1.6 * laws.data.highest_loss, laws.data.largest_flops
    found = refusal_of(laws, PredictionQuery(initial_loss=far, cpt_flops=cpt, params=2e8))
    (refusal,) = found.refusals
    assert refusal.reason is RefusalReason.INITIAL_LOSS_ABOVE_ALL_SEEN
    assert "even if it is in bits" in refusal.message
    assert "give the total compute instead" in refusal.message


def test_extrapolation_too_far(laws):
    """What it is expected to waste is named beside what a published law is; a limit that is given holds whatever that is."""
    largest = laws.data.largest_flops
    found = refusal_of(laws, PredictionQuery(total_flops=1e5 * largest))
    (refusal,) = found.refusals
    assert refusal.reason is RefusalReason.EXTRAPOLATION_TOO_FAR
    assert refusal.figures["expected_waste"] > 0.18
    assert "a published law, which costs nothing, 18%" in refusal.message
    assert (
        refused(laws, total_flops=11 * largest, max_extrapolation=10)
        is RefusalReason.EXTRAPOLATION_TOO_FAR
    )


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"params": 8000, "total_flops": 1e20}, "target size"),
        ({"params": 8, "total_flops": 1e20}, "8e9"),
        ({"params": 1e13, "total_flops": 1e20}, "target size"),
        ({"total_flops": 1e10}, "total compute"),
        ({"params": 3e7, "total_flops": 1e22}, "token count"),
        ({"params": 3e9, "total_flops": 1e16}, "token count"),
    ],
)
def test_a_question_too_far_from_the_data_on_either_side(laws, query, words):
    found = refusal_of(laws, PredictionQuery(**query))
    assert found.refusals[0].reason is RefusalReason.EXTRAPOLATION_TOO_FAR
    assert words in found.refusals[0].message


@pytest.mark.parametrize(
    ("params", "sizes", "train"),
    [
        (7.5e12, (1.37e8, 2.54e8), "larger proxy, of at least"),
        (7.5e12, (3e8, 3e8), "larger proxy, of at least"),
        (1e14, (1e8, 9e8), "larger proxy, of at least"),
        (4e5, (1.37e8, 2.54e8), "smaller proxy, of at most"),
        (2e5, (1e8, 9e8), "smaller proxy, of at most"),
    ],
)
def test_the_proxy_that_a_size_too_far_away_asks_for_is_near_enough(params, sizes, train):
    refusal = size_refusal(params, sizes)
    found = re.search(rf"Train a {train} (\S+) parameters, or check its unit", refusal.message)
    needed = float(found[1])
    assert size_refusal(params, (*sizes, needed)) is None
    short = 0.97 if params > max(sizes) else 1 / 0.97
    assert size_refusal(params, (*sizes, needed * short)) is not None


def test_a_budget_of_fewer_than_30_steps_of_its_own_answer_is_refused(laws):
    """The batch size is settled by the checkpoint's compute, which a budget this small hardly moves."""
    params = 3e8
    answered(laws, initial_loss=2.75, cpt_tokens=1e9, params=params)
    tiny = PredictionQuery(initial_loss=2.75, cpt_tokens=60, params=params)
    found = refusal_of(laws, tiny)
    assert found.refusals[0].reason is RefusalReason.BUDGET_TOO_SMALL
    assert "60e9" in found.refusals[0].message
    batch_tokens = found.refusals[0].figures["tokens"] / found.refusals[0].figures["steps"]
    for steps, kind in ((29.99, Refused), (32, Prediction)):
        asked = PredictionQuery(initial_loss=2.75, cpt_tokens=steps * batch_tokens, params=params)
        found = predict(laws, asked)
        assert isinstance(found, kind)
        if isinstance(found, Refused):
            # No rounded number that the budget seems to have.
            assert f"at least {30 * batch_tokens:,.0f} tokens" in found.refusals[0].message


def test_a_budget_without_a_size_is_refused_if_it_is_too_small_even_for_the_smallest(laws):
    """As 5e9 FLOPs are, which somebody meant as tokens."""
    found = refusal_of(laws, PredictionQuery(initial_loss=2.75, cpt_flops=5e9))
    (refusal,) = found.refusals
    assert refusal.reason is RefusalReason.BUDGET_TOO_SMALL
    assert refusal.figures["tokens"] == pytest.approx(5e9 / (6 * min(laws.data.sizes)))
    assert "5e+09 FLOPs" in refusal.message
    enough = 40 * 5e9 / refusal.figures["steps"]
    assert isinstance(
        predict(laws, PredictionQuery(initial_loss=2.75, cpt_flops=enough)), Prediction
    )


def test_targets_of_ordinary_reach_are_answered(laws):
    """From 1e8 and 3e8 parameters: a tenth of the smallest, and 25 times the largest."""
    for params in (1e7, 7.5e9):
        query = PredictionQuery(total_flops=6 * params * 2e10, params=params)
        assert isinstance(predict(laws, query), Prediction)


def test_a_learning_rate_that_no_run_uses_is_refused():
    runs = [
        replace(r, learning_rate=30 * r.learning_rate) for r in synthetic(replace(WIDE, rates=3))
    ]
    laws = fit(runs)
    found = refusal_of(laws, PredictionQuery(total_flops=1e18, params=2e7))
    assert "not plausible" in found.refusals[0].message
    assert found.refusals[0].figures["learning_rate"] > max(laws.data.learning_rates)


def test_another_tokenizer():
    laws = fit([replace(r, tokenizer="t") for r in synthetic()])
    query = {"initial_loss": 3.0, "cpt_flops": 1e19}
    assert refused(laws, tokenizer="u", **query) is RefusalReason.MIXED_TOKENIZERS
    assert isinstance(predict(laws, PredictionQuery(tokenizer="t", **query)), Prediction)


def test_refused_laws_predict_nothing():
    laws = fit([r for r in synthetic() if r.params == 1e8])
    found = refusal_of(laws, PredictionQuery(initial_loss=3.0, cpt_flops=1e19))
    assert found.refusals[0].reason is RefusalReason.LAW_REFUSED
    assert found.refusals[0].figures["law_reason"] == "TooFewSizes"


def test_a_fixed_irreducible_loss_above_the_data():
    laws = fit(synthetic(), replace(OPTIONS, irreducible_loss=2.9))
    assert laws.loss_compute.refusal.reason is RefusalReason.INITIAL_LOSS_BELOW_IRREDUCIBLE


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"initial_loss": 3.0}, "exactly one of cpt_flops, cpt_tokens and total_flops"),
        ({"initial_loss": 3.0, "cpt_flops": 1e20, "total_flops": 1e20}, "exactly one of"),
        ({"cpt_flops": 1e20}, "cpt_flops needs initial_loss"),
        ({"initial_loss": 3.0, "cpt_tokens": 1e9}, "cpt_tokens needs params"),
        ({"initial_loss": -3.0, "cpt_flops": 1e20}, "initial_loss: -3 is not"),
        ({"initial_loss": float("nan"), "cpt_flops": 1e20}, "initial_loss: nan is not"),
        ({"initial_loss": 3.0, "cpt_flops": 0.0}, "cpt_flops: 0 is not"),
        ({"initial_loss": 3.0, "cpt_flops": 1e20, "round_to": 0}, "round_to: 0 is not"),
        (
            {"initial_loss": 3.0, "cpt_flops": 1e20, "initial_loss_standard_error": -1.0},
            "initial_loss_standard_error: -1 is not",
        ),
    ],
)
def test_a_query_that_contradicts_itself_is_an_error_that_names_the_fields(laws, query, says):
    with pytest.raises(ValueError, match=says):
        predict(laws, PredictionQuery(**query))


EDGES = {
    (1.8, 0.0): (RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE, "smaller"),
    (-1.8, 0.0): (RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE, "larger"),
    (0.0, 1.8): (RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE, "smaller"),
    (0.0, -1.8): (RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE, "larger"),
}


@pytest.mark.parametrize("shift", EDGES)
def test_the_edge_that_is_named_first_is_the_one_that_the_optimum_is_beyond(shift):
    right = 0
    for seed in range(5):
        grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(8e9, 1.2e10, 2e10), shift=shift)
        world, rng = Deviating(Synthetic(), seed), np.random.default_rng(seed)
        laws = fit_laws(
            synthetic_runs(world, grid, rng, 0.0005, 0.0015), FitOptions(bootstrap_samples=20)
        )
        found = refusal_of(laws, PredictionQuery(total_flops=6 * 4e8 * 3e10, params=4e8))
        first = found.refusals[0]
        named = RefusalReason(first.figures.get("law_reason", first.reason))
        right += (named, first.figures.get("direction")) == EDGES[shift]
    assert right >= 4
