"""A batch size that is given has a best learning rate, and others than the best one have a price."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from isoloss.laws import (
    FitOptions,
    Laws,
    Prediction,
    PredictionQuery,
    Refusal,
    RefusalReason,
    Refused,
    Run,
    fit_laws,
    laws_from_json,
    laws_to_json,
    predict,
)
from isoloss.laws.results import RateAtBatchLaw
from isoloss.laws.surface.rate_at_batch import _with_usual
from tests.support.synthetic import Deviating, Synthetic
from tests.support.synthetic_runs import answered, refusal_of

OPTIONS = FitOptions(bootstrap_samples=100)
SIZES = {1e8: 8e9, 2e8: 1.2e10, 4e8: 2e10}
TARGET, TOKENS = 8e8, 4e10
FLOPS = 6 * TARGET * TOKENS


def sweep(
    batches: tuple[float, ...],
    seed: int = 0,
    scatter: float = 0.0,
    plain: Synthetic = Synthetic(),  # noqa: B008  (frozen)
) -> list[Run]:
    """Five learning rates at each of these batch sizes, the same for every size."""
    world, rng = Deviating(plain, seed, scatter), np.random.default_rng(seed)
    runs = []
    for n, d in SIZES.items():
        tokens = np.geomspace(0.01 * d, d, 30)
        for b in batches:
            for i in range(5):
                rate = plain.rate(n, d / 2) * 2.0 ** (i - 2)
                loss = np.array([world.loss(n, t, b, rate) for t in tokens])
                loss = loss + 0.0005 * rng.standard_normal(30) + 0.001 * rng.standard_normal()
                runs.append(Run(f"n{n:g}-b{b:g}-{i}", n, b, 2048, rate, tokens, loss))
    return runs


def best_rate(world: Synthetic, batch: float, n: float = TARGET, d: float = TOKENS) -> float:
    """The vertex over ln LR at a batch size."""
    xx, xy, _ = world.curvature
    return float(world.rate(n, d) * np.exp(-xy / xx * np.log(batch / world.batch(n, d))))


@dataclass(frozen=True)
class Steeper(Synthetic):
    """Its valley is steeper above the best learning rate of a batch size than below it, or the other way round."""

    steeper: float = 1.0

    def loss(self, n: float, d: float, b: float, lr: float) -> float:
        xx, _, _ = self.curvature
        u = np.log(lr / best_rate(self, b, n, d))
        more = (np.exp(self.steeper * u) - self.steeper * u - 1.0) / self.steeper**2 - 0.5 * u**2
        return float(super().loss(n, d * np.exp(-xx * more), b, lr))


@pytest.fixture(scope="module")
def wide() -> Laws:
    return fit_laws(sweep((32.0, 64.0, 128.0, 256.0, 512.0)), OPTIONS)


@pytest.fixture(scope="module")
def single() -> Laws:
    return fit_laws(sweep((128.0,)), OPTIONS)


def answer(laws: Laws, **query: float) -> Prediction:
    return answered(laws, **{"params": TARGET, "total_flops": FLOPS, **query})


@pytest.mark.parametrize("batch", [64.0, 128.0, 400.0, 1024.0])
def test_the_learning_rate_at_a_batch_size_is_the_best_one_there(wide, batch):
    found = answer(wide, batch_size=batch)
    assert found.learning_rate.value == pytest.approx(best_rate(Synthetic(), batch), rel=0.1)
    assert (found.batch_size.value, found.batch_size_raw) == (batch, batch)
    assert found.batch_size_given
    assert found.route == "fixed-batch"


def test_what_a_batch_size_costs_is_what_the_valley_says(wide):
    world = Synthetic()
    for batch in (64.0, 1024.0):
        found = answer(wide, batch_size=batch)
        best = world.loss(TARGET, TOKENS, world.batch(TARGET, TOKENS), world.rate(TARGET, TOKENS))
        true = world.loss(TARGET, TOKENS, batch, best_rate(world, batch)) - best
        assert found.batch_size_cost.value == pytest.approx(true, rel=0.4)


def test_a_sweep_with_one_batch_size_answers_for_it(single):
    assert single.status == "refused"
    found = answer(single, batch_size=128.0)
    assert found.learning_rate.value == pytest.approx(best_rate(Synthetic(), 128.0), rel=0.1)
    assert found.batch_size_cost is None
    assert answer(laws_from_json(laws_to_json(single)), batch_size=128.0) == found


def test_a_sweep_with_one_batch_size_answers_for_a_checkpoint(single):
    """Its loss-compute law is that of its best runs, which lie on its learning rates' own grid."""
    equivalent = FLOPS / 2
    loss = float(single.loss_compute.curve.loss(np.log(equivalent)))
    found = answered(
        single,
        initial_loss=loss,
        cpt_flops=FLOPS / 2,
        params=TARGET,
        batch_size=128.0,
        composition="Paper",
    )
    assert found.equivalent_flops.value == pytest.approx(equivalent, rel=1e-3)
    assert found.learning_rate.value == pytest.approx(best_rate(Synthetic(), 128.0), rel=0.1)
    assert any("There is one batch size" in warning for warning in found.warnings)


def test_the_compute_that_one_batch_size_tells_is_near_that_of_all(wide, single):
    for flops in (1e19, 5e19, 1e20):
        loss = float(wide.loss_compute.curve.loss(np.log(flops)))
        assert abs(float(single.loss_compute.curve.log_x(loss)) - np.log(flops)) < 0.3


def test_a_sweep_with_one_batch_size_knows_of_no_other(single):
    found = refusal_of(single, PredictionQuery(total_flops=FLOPS, params=TARGET, batch_size=256.0))
    assert found.refusals[0].reason is RefusalReason.EXTRAPOLATION_TOO_FAR
    assert "single batch size" in found.refusals[0].message
    refusal_of(single, PredictionQuery(total_flops=FLOPS, params=TARGET))


def test_a_batch_size_far_from_those_tried_is_refused(wide):
    found = refusal_of(wide, PredictionQuery(total_flops=FLOPS, params=TARGET, batch_size=4096.0))
    assert found.refusals[0].reason is RefusalReason.EXTRAPOLATION_TOO_FAR


def test_the_nearest_batch_sizes_that_are_taken_are_named(wide):
    law = wide.rate_at_batch
    for limit, beyond, words in (
        (law.smallest_batch / 4, -1, "at least"),
        (law.largest_batch * 4, 1, "at most"),
    ):
        asked = PredictionQuery(total_flops=FLOPS, params=TARGET, batch_size=limit + beyond)
        found = refusal_of(wide, asked)
        assert f"{words} {limit:g}" in found.refusals[0].message
        assert answer(wide, batch_size=limit)


@pytest.fixture(scope="module")
def too_large() -> Laws:
    """The best batch size is below all that were tried."""
    return fit_laws(sweep((512.0, 1024.0, 2048.0)), OPTIONS)


def test_an_optimum_beyond_the_edge_of_the_batch_sizes_does_not_matter_to_the_learning_rate(
    too_large,
):
    assert too_large.status == "refused"
    found = answer(too_large, batch_size=512.0)
    assert found.learning_rate.value == pytest.approx(best_rate(Synthetic(), 512.0), rel=0.1)


def test_what_runs_nearly_leave_open_has_no_negative_variance():
    """Rounding errors made laws that could not be read again."""
    rng = np.random.default_rng(0)
    where, nearly_open = rng.standard_normal((30, 5)), rng.standard_normal(8)
    before = 0.01 * np.eye(8) + 4e11 * np.outer(nearly_open, nearly_open)
    _, moments, _ = _with_usual(np.zeros(6), before, where, np.arange(5), np.ones(30))
    values = np.linalg.eigvalsh(moments)
    assert values[0] >= -1e-12 * values[-1]
    np.testing.assert_allclose(moments, moments.T, rtol=0.0, atol=1e-12 * values[-1])


def test_a_rate_far_above_those_tried_at_its_batch_size_is_refused():
    """Of 20 such answers in skewed valleys 19 lost more than 0.005 nats."""
    laws = fit_laws([run for run in sweep((16.0, 128.0, 512.0)) if run.name[-1] in "012"], OPTIONS)
    refused = refusal_of(
        laws, PredictionQuery(total_flops=FLOPS, params=TARGET, batch_size=16.0)
    ).refusals[0]
    assert refused.figures["law_reason"] == RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE
    assert "parameters at 16 sequences" in refused.message
    assert "largest one tried there, 0.000877: train larger ones" in refused.message
    assert answer(laws, batch_size=512.0).learning_rate.value < 0.000877


@pytest.mark.parametrize(("length", "batch"), [(None, 1024.0), (4096, 512.0)])
def test_a_refusal_names_a_batch_size_at_which_there_is_an_answer(too_large, length, batch):
    """In sequences of the length that is asked for."""
    asked = PredictionQuery(params=TARGET, total_flops=FLOPS, sequence_length=length)
    refused = refusal_of(too_large, asked)
    assert refused.answered_at == batch
    assert refused.refusals[0].message.endswith(f"give one, such as {batch:g}.")
    assert isinstance(predict(too_large, replace(asked, batch_size=batch)), Prediction)


def test_no_batch_size_is_named_where_none_has_an_answer(too_large):
    far = predict(too_large, PredictionQuery(params=1e4 * TARGET, total_flops=1e8 * FLOPS))
    below = predict(too_large, PredictionQuery(params=TARGET, initial_loss=0.1, cpt_flops=FLOPS))
    for refused in (far, below):
        assert isinstance(refused, Refused)
        assert refused.answered_at is None
        assert "such as" not in refused.refusals[0].message


def test_two_learning_rates_at_a_batch_size_are_too_few():
    runs = [run for run in sweep((64.0, 128.0)) if run.name[-1] in "12"]
    found = refusal_of(
        fit_laws(runs, OPTIONS),
        PredictionQuery(total_flops=FLOPS, params=TARGET, batch_size=128.0),
    )
    assert found.refusals[0].figures["law_reason"] == RefusalReason.TOO_FEW_RUNS


@pytest.mark.parametrize("lowest", [3.0e-4, 3.5e-4, 4.0e-4, 4.5e-4])
def test_three_final_losses_of_one_size_show_the_best_learning_rate_between_them(
    lowest: float,
) -> None:
    """A parabola goes through them exactly: they show nothing of a cubic term but rounding errors."""
    plain, (n, d) = Synthetic(rate_at=(1e-3, 0.0, 0.0)), (2e8, 8e9)
    runs = []
    for rate in (lowest, 9e-4, 2e-3):
        loss = np.array([plain.loss(n, d, 128.0, rate)])
        runs.append(Run(f"lr{rate:g}", n, 128.0, 2048, rate, np.array([d]), loss))
    law = fit_laws(runs, OPTIONS).rate_at_batch
    assert law.curve is not None
    found = np.exp(law.curve.at(np.log(n), np.log(d), np.log(128.0)))
    assert found == pytest.approx(1e-3, rel=0.02)


def test_the_intervals_hold_the_best_learning_rate_where_sizes_scatter():
    held = []
    for seed in range(20):
        found = answer(fit_laws(sweep((128.0,), seed, 0.055), OPTIONS), batch_size=128.0)
        plain, moved = Synthetic(), Deviating(Synthetic(), seed, 0.055)
        rate = moved.rate(TARGET, TOKENS) / plain.rate(TARGET, TOKENS)
        batch = moved.batch(TARGET, TOKENS) / plain.batch(TARGET, TOKENS)
        xx, xy, _ = plain.curvature
        true = best_rate(plain, 128.0) * rate * batch ** (xy / xx)
        held.append(found.learning_rate.low <= true <= found.learning_rate.high)
    assert 0.65 <= np.mean(held) <= 0.95


@pytest.mark.parametrize("steeper", [1.0, -1.0])
@pytest.mark.parametrize("batches", [(32.0, 64.0, 128.0, 256.0, 512.0), (128.0,)])
def test_the_bottom_of_a_valley_steeper_on_one_side_is_held_and_nearly_found(batches, steeper):
    """A parabola errs by 0.1 to 0.15 of ln LR towards the flat side."""
    world, held = Steeper(steeper=steeper), []
    for seed in range(5):
        laws = fit_laws(sweep(batches, seed, 0.0, world), OPTIONS)
        n, d = 4e8, 2e10
        found = answer(laws, total_flops=6 * n * d, params=n, batch_size=128.0)
        true = best_rate(world, 128.0, n, d)
        assert abs(np.log(found.learning_rate.value / true)) < 0.09
        held.append(found.learning_rate.low <= true <= found.learning_rate.high)
    assert np.mean(held) >= 0.8


def with_exponent(of_tokens: float) -> Synthetic:
    """At one size and batch size its best learning rate goes as D to this power."""
    plain = Synthetic()
    value, of_n, _ = plain.rate_at
    ridge = plain.curvature[1] / plain.curvature[0] * plain.batch_at[2]
    return replace(plain, rate_at=(value, of_n, of_tokens - ridge))


def ends(world: Synthetic, seed: int) -> list[Run]:
    """Single evaluations, all of them after 50 tokens per parameter."""
    rng, found = np.random.default_rng(seed), []
    for n in (5e7, 1e8, 2e8, 4e8):
        for b in (64.0, 128.0, 256.0):
            for i in range(5):
                rate = best_rate(world, b, n, 50 * n) * 2.0 ** (i - 2)
                loss = world.loss(n, 50 * n, b, rate) + 0.001 * rng.standard_normal()
                name = f"n{n:g}-b{b:g}-{i}"
                found.append(Run(name, n, b, 2048, rate, np.array([50 * n]), np.array([loss])))
    return found


@pytest.mark.parametrize("of_tokens", [-0.3, 0.0, 0.3])
def test_at_other_tokens_than_any_size_was_trained_for_the_interval_holds_what_exponents_are_usual(
    of_tokens,
):
    n, world = 4e8, with_exponent(of_tokens)
    for seed in range(3):
        laws = fit_laws(ends(world, seed), OPTIONS)
        widths = []
        for d in (50 * n, 150 * n, 500 * n):
            found = answer(laws, total_flops=6 * n * d, params=n, batch_size=128.0).learning_rate
            widths.append(np.log(found.high / found.low))
            assert found.low <= best_rate(world, 128.0, n, d) <= found.high
        assert widths[0] < 0.5 < widths[1] < widths[2]


def test_batch_sizes_within_a_tolerance_cost_no_more_than_it(wide):
    world = Synthetic()
    found = answer(wide, batch_size_tolerance=0.005)
    within = found.affordable
    best = world.loss(TARGET, TOKENS, world.batch(TARGET, TOKENS), world.rate(TARGET, TOKENS))
    for batch in (within.smallest, within.largest):
        cost = world.loss(TARGET, TOKENS, batch, best_rate(world, batch)) - best
        assert 0.001 < cost <= 0.0065
    assert within.smallest < found.batch_size_raw < within.largest
    assert answer(wide, batch_size_tolerance=0.02).affordable.largest > within.largest


def test_the_steps_of_a_budget_are_those_of_the_rounded_batch_size(wide: Laws) -> None:
    query = PredictionQuery(initial_loss=3.0, cpt_tokens=40 * 2048 * 300.0, params=TARGET)
    answered(wide, query)
    for params in (TARGET, None):
        flops = 6 * min(wide.data.sizes if params is None else (TARGET,)) * (query.cpt_tokens or 0)
        asked = replace(query, params=params, cpt_tokens=None, cpt_flops=flops, round_to=1024)
        found = refusal_of(wide, asked)
        assert found.refusals[0].reason is RefusalReason.BUDGET_TOO_SMALL
        assert found.refusals[0].figures["steps"] == pytest.approx(40 * 300 / 1024)
        message = found.refusals[0].message
        assert "as a multiple of 1024: round to a smaller multiple" in message
        assert "Check its unit" not in message


def test_a_range_of_batch_sizes_ends_where_nothing_is_known_of_them(wide: Laws) -> None:
    """32 to 512 sequences were tried."""
    found = answer(wide, batch_size_tolerance=0.5)
    within = found.affordable
    assert (within.smallest, within.largest) == pytest.approx((8.0, 2048.0))
    assert (within.is_open_below, within.is_open_above) == (True, True)
    assert any("reaches at least down to its smallest batch size and" in w for w in found.warnings)
    narrow = answer(wide, batch_size_tolerance=0.005)
    assert not narrow.affordable.is_open_below
    assert not any("reaches at least" in w for w in narrow.warnings)


def test_a_range_of_batch_sizes_leaves_a_budget_thirty_steps(wide: Laws) -> None:
    tokens = 40 * 2048 * 400.0
    query = PredictionQuery(
        initial_loss=3.0, cpt_tokens=tokens, params=TARGET, batch_size_tolerance=0.5
    )
    found = answered(wide, query)
    assert found.affordable is not None
    assert found.affordable.largest == pytest.approx(tokens / 2048 / 30)
    assert not found.affordable.is_open_above
    short = answered(wide, replace(query, sequence_length=2048 * 64, batch_size_tolerance=2.0))
    assert short.affordable is not None
    assert short.affordable.smallest >= 1.0


def test_a_batch_size_at_exactly_the_limit_is_answered(wide: Laws) -> None:
    """Four times 512, whose logarithm has made it a little less."""
    assert answer(wide, batch_size=2048.0).batch_size_given


def test_a_tolerance_below_what_is_known_is_said(wide):
    found = answer(wide, batch_size_tolerance=1e-6)
    assert found.affordable is None
    assert any("No batch size is known to cost at most" in w for w in found.warnings)


def test_a_batch_size_that_is_given_changes_no_other_answer(wide):
    plain = answer(wide)
    assert not plain.batch_size_given
    assert answer(wide, batch_size=128.0).best == plain.best


def test_a_batch_size_needs_a_size(wide):
    with pytest.raises(ValueError, match="batch_size needs params"):
        predict(wide, PredictionQuery(total_flops=FLOPS, batch_size=128.0))


def test_a_continued_run_at_a_batch_size_carries_the_error_of_the_composition(wide):
    query = PredictionQuery(initial_loss=3.0, cpt_flops=FLOPS, params=TARGET, batch_size=128.0)
    found = predict(wide, query)
    bare = predict(wide, replace(query, composition_error=(0.0, 0.0)))
    assert isinstance(found, Prediction)
    assert isinstance(bare, Prediction)
    assert found.batch_size.low == found.batch_size.high == 128.0
    assert found.learning_rate.high > bare.learning_rate.high


def scattered(seed: int = 3) -> list[Run]:
    """Runs at random places: no batch size has several learning rates."""
    world, rng, runs = Synthetic(), np.random.default_rng(seed), []
    for n, d in SIZES.items():
        tokens = np.geomspace(0.01 * d, d, 30)
        middle = np.log([world.rate(n, d / 2), world.batch(n, d / 2)])
        for i in range(25):
            rate, batch = np.exp(middle + rng.uniform(-1.4, 1.4, 2))
            loss = np.array([world.loss(n, t, round(batch), rate) for t in tokens])
            loss = loss + 0.0005 * rng.standard_normal(30) + 0.001 * rng.standard_normal()
            runs.append(Run(f"n{n:g}-{i}", n, round(batch), 2048, rate, tokens, loss))
    return runs


def test_the_learning_rate_of_another_batch_size_is_not_that_of_a_far_multiple() -> None:
    refused = Refusal(RefusalReason.TOO_FEW_RUNS, "No batch size has three learning rates.", {})
    law = RateAtBatchLaw("refused", refusal=refused)
    laws = replace(fit_laws(scattered(), OPTIONS), rate_at_batch=law)
    best = answer(laws)
    query = PredictionQuery(
        params=TARGET, total_flops=FLOPS, round_to=3 * round(best.batch_size_raw)
    )
    found = refusal_of(laws, query)
    assert found.refusals[0].reason is RefusalReason.LAW_REFUSED
    assert "The learning rate at the multiple is not known" in found.refusals[0].message


def test_a_multiple_outside_the_interval_of_the_best_batch_size_is_said(wide: Laws) -> None:
    best = answer(wide)
    multiple = round(1.02 * best.batch_size.high)
    assert multiple < 1.28 * best.batch_size_raw
    found = answer(wide, round_to=multiple)
    assert found.batch_size.value > found.batch_size.high
    assert f"Rounded to a multiple of {multiple}, the batch size is outside" in found.warnings[0]


def test_a_far_multiple_has_the_sentences_of_its_own_composition_alone(wide: Laws) -> None:
    assert wide.loss_compute.curve is not None
    loss = float(wide.loss_compute.curve.loss(np.log(FLOPS / 2)))
    query = PredictionQuery(initial_loss=loss, cpt_flops=FLOPS / 2, params=TARGET)
    best = answered(wide, query)
    assert any("batch size x" in w for w in best.warnings)
    far = answered(wide, replace(query, round_to=4 * round(best.batch_size_raw)))
    assert sum("Adjusted for continued training" in w for w in far.warnings) == 1
    assert not any("batch size x" in w for w in far.warnings)


def test_a_batch_size_that_is_given_has_the_variants_of_a_checkpoints_past_at_it(
    wide: Laws,
) -> None:
    assert wide.loss_compute.curve is not None
    loss = float(wide.loss_compute.curve.loss(np.log(FLOPS / 2)))
    asked = PredictionQuery(
        initial_loss=loss,
        cpt_flops=FLOPS / 2,
        params=TARGET,
        pretraining_tokens=TOKENS,
        batch_size=128,
    )
    found, alone = predict(wide, asked), answer(wide, batch_size=128.0)
    assert isinstance(found, Prediction)
    assert set(found.variants) == {"A", "B", "paper"}
    assert {each.batch_size.value for each in found.variants.values()} == {128.0}
    assert found.variants["B"].total_flops == pytest.approx(1.5 * FLOPS)
    scratch = answered(wide, total_flops=FLOPS / 2, params=TARGET, batch_size=128)
    assert found.variants["A"].learning_rate.value == pytest.approx(scratch.learning_rate.value)
    assert alone.variants == {}


def test_an_initial_loss_above_all_seen_is_said_at_a_given_batch_size_too(wide: Laws) -> None:
    unseen = PredictionQuery(initial_loss=8.0, cpt_flops=FLOPS, params=TARGET)
    for query in (unseen, replace(unseen, batch_size=128.0)):
        found = answered(wide, query)
        assert sum("is above every loss of the sweep" in w for w in found.warnings) == 1


def test_a_multiple_far_from_the_best_batch_size_is_answered_as_if_it_were_given(
    wide: Laws,
) -> None:
    """There the best learning rate is another."""
    best = answer(wide)
    multiple = 4 * round(best.batch_size_raw)
    rounded, given = answer(wide, round_to=multiple), answer(wide, batch_size=multiple)
    assert rounded.batch_size.value == multiple
    assert rounded.learning_rate == given.learning_rate
    assert rounded.learning_rate.value != best.learning_rate.value
    assert f"The nearest multiple of {multiple} is {multiple}" in rounded.warnings[0]
    other = {"sequence_length": 4096}
    rounded, given = (
        answer(wide, **{field: multiple / 2}, **other) for field in ("round_to", "batch_size")
    )
    assert (rounded.batch_size, rounded.learning_rate) == (given.batch_size, given.learning_rate)
    near = answer(wide, round_to=4)
    assert near.learning_rate == best.learning_rate
