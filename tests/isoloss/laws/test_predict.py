"""The arithmetic of a prediction: inversion, composition, variants, rounding, and the paper's own numbers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from isoloss import laws as engine
from isoloss.datasets import load_sample_runs
from isoloss.laws.answer.optimum import best_pair
from isoloss.laws.answer.question import resolve
from isoloss.laws.results import LawError, RateAtBatchLaw
from tests.support.synthetic import Grid, Synthetic, synthetic_runs
from tests.support.synthetic_runs import answered, refusal_of

L0, ALPHA, GAMMA = 1.7, 2000.0, 0.15


def optimum(flops: float) -> tuple[float, float]:
    """(LR, B) of power_laws at a compute, whatever the size."""
    return 1e-3 * (flops / 1e21) ** -0.2, 100.0 * (flops / 1e21) ** 0.2


def power_laws(**changes) -> engine.Laws:  # type: ignore[no-untyped-def]
    """Laws with round coefficients: a joint surface whose optima follow `optimum`, and a loss-compute law with draws."""
    rng = np.random.default_rng(0)
    curve = np.array([L0, np.log(ALPHA), GAMMA])
    spread = 1e-4 * rng.standard_normal((100, 3))
    rate, batch = (float(np.log(value)) for value in optimum(6.0))
    trends = engine.OptimumTrends(
        engine.Trend(rate, -0.2, -0.2), engine.Trend(batch, 0.2, 0.2), 0.0, 0.0
    )
    error = LawError(
        moments=np.zeros((10, 10)),
        noise=np.zeros((6, 6)),
        scatter=1e-4 * np.eye(2),
        exponents=np.zeros(2),
        token_curvatures=np.zeros(2),
        log_params_centre=0.0,
        log_tokens_centre=0.0,
        end=np.zeros(2),
    )
    values = engine.Laws(
        status="fitted",
        learning_rate=engine.HyperparameterLaw("learning_rate", "refused", "PowerLawOfLoss"),
        batch_size=engine.HyperparameterLaw("batch_size", "refused", "PowerLawOfLoss"),
        loss_compute=engine.LossComputeLaw("fitted", L0, float(np.log(ALPHA)), GAMMA),
        surface=engine.SurfaceLaw("fitted", trends, error=error, frontier_log_ratio=3.0),
        rate_at_batch=RateAtBatchLaw("refused"),
        optima=(),
        frontier=(),
        contours=(),
        excluded=(),
        warnings=(),
        data=engine.DataRange(
            largest_flops=1e20, lowest_loss=2.5, highest_loss=6.0, sizes=(1e8, 5e8)
        ),
        draws=engine.Draws(loss_compute=engine.LossCurve(*(curve + spread).T)),
        sequence_length=2048,
        options=engine.FitOptions(),
    )
    return replace(values, **changes)


def answer(laws: engine.Laws, **query) -> engine.Prediction:  # type: ignore[no-untyped-def]
    return answered(laws, **query)


def test_inversion_and_composition_follow_the_papers_formulas():
    found = answer(power_laws(), initial_loss=2.8, cpt_flops=3e20, composition="Paper")
    before = (ALPHA / (2.8 - L0)) ** (1 / GAMMA)
    total = before + 3e20
    target = L0 + ALPHA * total**-GAMMA
    assert found.equivalent_flops.value == pytest.approx(before)
    assert found.total_flops.value == pytest.approx(total)
    assert found.target_loss.value == pytest.approx(target)
    rate, batch = optimum(total)
    assert found.learning_rate.value == pytest.approx(rate)
    assert found.batch_size_raw == pytest.approx(batch)
    assert found.extrapolation.compute_factor == pytest.approx(total / 1e20)
    assert found.extrapolation.loss_distance == pytest.approx(2.5 - target)


def test_variants_leave_out_or_replace_the_equivalent_compute():
    laws = power_laws()
    found = answer(laws, initial_loss=2.8, cpt_flops=3e20, params=1e9, pretraining_tokens=1e10)
    assert found.variants["A"].total_flops == pytest.approx(3e20)
    assert found.variants["B"].total_flops == pytest.approx(3e20 + 6e9 * 1e10)
    alone = answer(laws, total_flops=3e20)
    assert found.variants["A"].learning_rate.value == pytest.approx(alone.learning_rate.value)
    assert alone.variants == {}
    assert alone.equivalent_flops is None


def test_a_budget_in_tokens_costs_six_flops_per_parameter():
    by_tokens = answer(power_laws(), initial_loss=2.8, cpt_tokens=5e10, params=1e9)
    by_flops = answer(power_laws(), initial_loss=2.8, cpt_flops=3e20, params=1e9)
    assert by_tokens.learning_rate == by_flops.learning_rate
    own = answer(power_laws(), initial_loss=2.8, cpt_tokens=5e10, flops_per_token=1.2e10)
    assert own.cpt_flops == pytest.approx(6e20)


@pytest.mark.parametrize(("multiple", "wanted"), [(1, 198), (64, 192), (50, 200), (1000, 1000)])
def test_the_batch_size_is_rounded_once_at_the_end(multiple, wanted):
    asked = {"initial_loss": 2.55, "cpt_flops": 4e20, "composition": "Paper"}
    found = answer(power_laws(), **asked, round_to=multiple)
    assert found.batch_size_raw == pytest.approx(197.98, abs=0.05)
    assert found.batch_size.value == wanted
    assert any("multiple of" in w for w in found.warnings) == (multiple == 1000)
    assert found.batch_size_tokens.value == found.batch_size.value * 2048


def test_the_error_of_the_initial_loss_widens_the_answer():
    exact = answer(power_laws(), initial_loss=2.4, cpt_flops=1e19, max_extrapolation=1e6)
    rough = answer(
        power_laws(),
        initial_loss=2.4,
        initial_loss_standard_error=0.05,
        cpt_flops=1e19,
        max_extrapolation=1e6,
    )

    def width(i):  # type: ignore[no-untyped-def]
        return np.log(i.high / i.low)

    assert width(rough.equivalent_flops) > 5 * width(exact.equivalent_flops)
    assert width(rough.learning_rate) > width(exact.learning_rate)


def test_an_unidentified_irreducible_loss_is_carried_through_the_inversion():
    """Close to L0 the same spread of L0 blows the equivalent compute up, and the answer is refused."""
    laws = power_laws()
    curve = laws.draws.loss_compute
    noise = 0.05 * np.random.default_rng(1).standard_normal(curve.count)
    curve = replace(curve, irreducible=curve.irreducible + noise)
    laws = replace(laws, draws=replace(laws.draws, loss_compute=curve))
    far = answer(laws, initial_loss=3.5, cpt_flops=1e19)
    assert far.equivalent_flops.high / far.equivalent_flops.low < 5
    near = refusal_of(
        laws, engine.PredictionQuery(initial_loss=1.8, cpt_flops=1e19, max_extrapolation=1e30)
    )
    assert near.refusals[0].reason is engine.RefusalReason.IRREDUCIBLE_LOSS_NOT_IDENTIFIED


@pytest.mark.parametrize("error", [0.3, 5.0])
def test_an_initial_loss_that_was_measured_too_roughly_is_no_fault_of_the_laws(error):
    """Without its own error the equivalent compute is known, wherever the draws end up."""
    asked = {"initial_loss": 2.8, "cpt_flops": 1e19}
    answer(power_laws(), **asked, initial_loss_standard_error=0.01)
    rough = refusal_of(
        power_laws(), engine.PredictionQuery(**asked, initial_loss_standard_error=error)
    )
    (refusal,) = rough.refusals
    assert refusal.reason is engine.RefusalReason.INITIAL_LOSS_UNCERTAIN
    assert f"standard error of {error:g}" in refusal.message


@pytest.mark.parametrize(
    ("rate", "batch", "flops", "learning_rate", "batch_size"),
    [
        ((42.1357, -0.7476), (42.21, 0.0093), 2.8e21, 6.2e-5, 771),
        ((29.9737, -2.0137), (43.19, 0.0042), 1.87e21, 7.95e-5, 1378),
    ],
    ids=["dense", "mixture of experts"],
)
def test_the_papers_regressions(rate, batch, flops, learning_rate, batch_size):
    """ln C = a x + b with x = ln LR and x = B: the form of the paper's appendix."""
    form = "LinearInLogCompute"
    laws = power_laws(
        options=engine.FitOptions(form=form),
        surface=engine.SurfaceLaw("refused"),
        learning_rate=engine.HyperparameterLaw("learning_rate", "fitted", form, *rate),
        batch_size=engine.HyperparameterLaw("batch_size", "fitted", form, *batch),
        loss_compute=engine.LossComputeLaw("refused"),
        draws=engine.Draws(
            engine.HyperparameterCurve("learning_rate", form, *np.tile(rate, (50, 1)).T),
            engine.HyperparameterCurve("batch_size", form, *np.tile(batch, (50, 1)).T),
        ),
    )
    found = answer(laws, total_flops=flops)
    assert found.learning_rate.value == pytest.approx(learning_rate, rel=0.01)
    assert found.batch_size_raw == pytest.approx(batch_size, abs=1)
    assert found.target_loss is None


def test_a_difference_of_sequence_length_is_said():
    found = answer(power_laws(), initial_loss=2.8, cpt_flops=3e20, sequence_length=4096)
    assert any("sequence length" in w for w in found.warnings)


def test_laws_linear_in_log_compute_answer_where_that_form_is_asked_for():
    runs = synthetic_runs(Synthetic(), Grid(), np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(
        runs, engine.FitOptions(form="LinearInLogCompute", bootstrap_samples=50)
    )
    asked = {"total_flops": 3 * laws.data.largest_flops, "params": 1e9}
    assert answer(laws, **asked).route == "iso-loss"
    alone = replace(
        laws,
        learning_rate=engine.HyperparameterLaw("learning_rate", "refused", "LinearInLogCompute"),
        draws=replace(laws.draws, learning_rate=None),
    )
    found = answer(alone, **asked)
    assert found.route == "surface"
    assert any(
        "only they have the form LinearInLogCompute" in warning for warning in found.warnings
    )


def test_the_joint_surface_answers_or_nothing_does():
    runs = synthetic_runs(Synthetic(), Grid(), np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=50))
    flops = 3 * laws.data.largest_flops
    refused = replace(laws, surface=engine.SurfaceLaw("refused"))
    for params in (1e9, None):
        query = engine.PredictionQuery(total_flops=flops, params=params)
        assert answer(laws, total_flops=flops, params=params).route == "surface"
        assert isinstance(engine.predict(refused, query), engine.Refused)


def width(interval: engine.Interval) -> float:
    return float(np.log(interval.high / interval.low))


def test_without_a_target_size_the_answer_names_the_one_it_is_for_and_does_not_know_it_exactly():
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(4e9, 8e9, 1.6e10), rates=4, batches=4)
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=50))
    flops = 2.0 * laws.data.largest_flops
    guessed = answer(laws, total_flops=flops)
    assert guessed.route == "surface"
    (text,) = [w for w in guessed.warnings if "No target size was given" in w]
    params = float(np.exp(laws.surface.on_the_frontier(np.log(flops))[0]))
    assert f"for {params:.3g} parameters and {flops / 6 / params:.3g} tokens" in text
    named = answer(laws, total_flops=flops, params=params)
    assert guessed.learning_rate.value == pytest.approx(named.learning_rate.value)
    assert width(guessed.learning_rate) > 1.02 * width(named.learning_rate)
    assert width(guessed.batch_size) > 1.02 * width(named.batch_size)
    counted = answer(laws, total_flops=flops, flops_per_token=6 * 3e8)
    assert counted.learning_rate == guessed.learning_rate
    (text,) = [w for w in counted.warnings if "No target size was given" in w]
    own = f"fit about 3e+08 parameters, trained on {flops / (6 * 3e8):.3g} tokens"
    assert f"The given 1.8e+09 FLOPs per token {own}" in text


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"sizes": (1e3, 1.1e3)}, "as none is named"),
        ({"smallest_tokens": 1e4, "largest_tokens": 1.1e4}, "token count"),
    ],
)
def test_the_size_that_stands_in_for_one_has_the_limits_of_one_that_is_named(kept, words):
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(4e9, 8e9, 1.6e10), rates=4, batches=4)
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=20))
    flops = 2.0 * laws.data.largest_flops
    params = float(np.exp(laws.surface.on_the_frontier(np.log(flops))[0]))
    far = replace(laws, data=replace(laws.data, **kept))
    for size in (params, None):
        assert answer(laws, total_flops=flops, params=size).route == "surface"
        found = refusal_of(far, engine.PredictionQuery(total_flops=flops, params=size))
        assert found.refusals[0].reason is engine.RefusalReason.EXTRAPOLATION_TOO_FAR
    assert words in found.refusals[0].message


BITS, BYTES = np.log(2.0), 4.4
"""Nats in a bit, and bytes in a token."""


@pytest.mark.parametrize(
    ("of_laws", "initial_loss", "reason", "fits"),
    [
        (BITS, 2.75, "ExtrapolationTooFar", "and the laws in bits per token, it is 3.967 bits"),
        (BITS, 2.4, "IrreducibleLossNotIdentified", "laws in bits per token, it is 3.462 bits"),
        (
            BITS * BYTES,
            2.75,
            "InitialLossAboveAllSeen",
            "laws in bits per byte, it is 0.9017 bits",
        ),
        (
            BYTES,
            2.75,
            "InitialLossAboveAllSeen",
            "and the laws in nats per byte, it is 0.625 nats",
        ),
        (1.0, 2.75 / BITS / BYTES, "InitialLossBelowIrreducible", "is 2.75 nats per token"),
        (1.0, 2.75 / BYTES, "InitialLossBelowIrreducible", "it is 2.75 nats per token"),
    ],
)
def test_a_loss_in_another_unit_than_the_laws_is_told_the_number_in_theirs(
    of_laws, initial_loss, reason, fits
):
    runs = [replace(run, losses=run.losses / of_laws) for run in load_sample_runs().runs]
    laws = engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=20))
    asked = engine.PredictionQuery(initial_loss=initial_loss, cpt_tokens=5e9, params=1e9)
    (refusal,) = refusal_of(laws, asked).refusals
    assert refusal.reason == reason
    assert fits in refusal.message


def test_a_question_far_from_the_sweep_is_answered_if_little_is_expected_to_be_wasted():
    """A factor of thirty from two sizes that hardly differ: the interval has the distance. One that wastes much is refused for it."""
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(4e9, 8e9, 1.6e10), rates=4, batches=4)
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=20))
    far = replace(laws, data=replace(laws.data, sizes=(1e7, 1.1e7)))
    asked = engine.PredictionQuery(total_flops=2.0 * laws.data.largest_flops, params=3e8)
    found = answered(far, asked)
    error = laws.surface.error
    wide = replace(laws.surface, error=replace(error, scatter=error.scatter + np.eye(2)))
    found = refusal_of(replace(far, surface=wide), asked)
    assert found.refusals[0].reason is engine.RefusalReason.EXTRAPOLATION_TOO_FAR
    assert found.refusals[0].figures["expected_waste"] > 0.2


def test_the_compute_of_a_sweep_is_that_of_its_longest_runs_whatever_their_noise():
    """The frontier of least compute ends where noise lets it."""
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(2e9, 4e9, 8e9), rates=4, batches=4)
    for seed in range(3):
        runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(seed), 0.002, 0.004)
        laws = engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=20))
        assert laws.data.largest_flops == pytest.approx(6 * 4e8 * 8e9)
        found = answer(laws, total_flops=2 * 6 * 4e8 * 8e9, params=4e8)
        assert found.extrapolation.compute_factor == pytest.approx(2.0)


def test_one_longer_run_makes_no_sweep_of_more_compute():
    """It shows no optimum where it alone has come to."""
    runs = synthetic_runs(Synthetic(), Grid(), np.random.default_rng(0), 0.0005)
    longest = max(r.tokens[-1] for r in runs)
    alone = replace(runs[-1], tokens=20 * runs[-1].tokens)
    lone_size = replace(runs[-1], name="lone", params=3e9, tokens=20 * runs[-1].tokens)
    for changed in ([*runs[:-1], alone], [*runs, lone_size]):
        laws = engine.fit_laws(changed, engine.FitOptions(bootstrap_samples=20))
        assert laws.data.largest_flops == pytest.approx(6 * 3e8 * longest)


@pytest.mark.parametrize("form", ["PowerLawOfLoss", "LinearInLogCompute"])
def test_both_forms_agree_inside_the_data(form):
    runs = synthetic_runs(Synthetic(), Grid(), np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(runs, engine.FitOptions(form=form, bootstrap_samples=50))
    assert laws.learning_rate.form == form
    flops = 0.3 * laws.data.largest_flops
    n, d = Synthetic().best_size(flops)
    log_flops = np.log(flops)
    loss = laws.loss_compute.curve.loss(log_flops)
    for law, best in (
        (laws.learning_rate, Synthetic().rate(n, d)),
        (laws.batch_size, Synthetic().batch(n, d)),
    ):
        assert law.curve.value(loss, log_flops) == pytest.approx(best, rel=0.1)


@dataclass(frozen=True)
class LinearBatch(Synthetic):
    """The paper's law of the batch size: a step of 100 sequences per factor of e in C = 6 N D."""

    def batch(self, n: float, d: float) -> float:
        return float(500.0 + 100.0 * np.log(n * d / (2e8 * 8e9)))


def test_a_synthetic_batch_size_that_is_linear_in_log_compute_is_found():
    """Of three sizes; the power law through the same runs is off by more."""
    world = LinearBatch()
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(4e9, 1e10, 2.5e10), seen_from=0.2)
    runs = synthetic_runs(world, grid, np.random.default_rng(0), 0.0002)
    errors = {}
    for form in ("LinearInLogCompute", "PowerLawOfLoss"):
        laws = engine.fit_laws(runs, engine.FitOptions(form=form, bootstrap_samples=50))
        flops = 100 * laws.data.largest_flops
        n, d = world.best_size(flops)
        found = answer(laws, total_flops=flops, params=n)
        errors[form] = abs(np.log(found.batch_size_raw / world.batch(n, d)))
    assert errors["LinearInLogCompute"] < 0.05
    assert errors["PowerLawOfLoss"] > 0.15


def test_a_law_of_the_sizes_of_least_compute_allows_for_a_target_of_another_size():
    """The largest size at ten times its tokens: its learning rate is several times that of the size of least compute."""
    world = Synthetic(rate_at=(5e-4, -0.7, 0.3))
    grid = Grid(sizes=(1e8, 2e8, 4e8), tokens=(4e9, 8e9, 1.6e10))
    runs = synthetic_runs(world, grid, np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(
        runs, engine.FitOptions(form="LinearInLogCompute", bootstrap_samples=50)
    )
    params, tokens = 4e8, 1.6e11
    query = engine.PredictionQuery(total_flops=6 * params * tokens, params=params)
    found = best_pair(laws, resolve(laws, query)).point.learning_rate
    assert found.low < world.rate(params, tokens) < found.high
    assert abs(np.log(found.value / world.rate(params, tokens))) > 0.3


def test_a_fixed_irreducible_loss_is_used_and_said():
    runs = synthetic_runs(Synthetic(), Grid(), np.random.default_rng(0), 0.0005)
    laws = engine.fit_laws(runs, engine.FitOptions(irreducible_loss=1.69, bootstrap_samples=50))
    assert laws.loss_compute.irreducible_loss == pytest.approx(1.69)
    assert laws.loss_compute.irreducible_loss_fixed


@pytest.mark.parametrize(("irreducible", "contradicted"), [(1.6, False), (2.6, True)])
def test_a_given_irreducible_loss_that_the_runs_contradict_is_named_with_theirs(
    irreducible: float, contradicted: bool
) -> None:
    """With 2.6 a checkpoint at 2.75 seems to have three times the compute behind it that it has."""
    options = engine.FitOptions(irreducible_loss=irreducible, bootstrap_samples=20)
    reported = engine.fit_laws(load_sample_runs().runs, options).warnings
    text = [
        each
        for each in reported
        if f"set to {irreducible:g}, and these runs contradict it" in each
    ]
    assert len(text) == contradicted
    assert all("by 38%, for 0.7% with the one that fits best" in each for each in text)
