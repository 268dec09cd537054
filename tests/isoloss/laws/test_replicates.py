"""Runs that differ only in their seed are averaged and tell the noise; other schedules are refused."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import (
    FitOptions,
    RefusalReason,
    RunNoise,
    fit_laws,
    screen,
)
from isoloss.laws.data.trajectories import collect
from isoloss.usual import USUAL_NOISE
from tests.support.synthetic import Grid, Synthetic, synthetic_runs
from tests.support.synthetic_runs import answered

OPTIONS = FitOptions(bootstrap_samples=60)
SURFACE = Synthetic()
GRID = Grid(sizes=(1e8, 2e8, 4e8), tokens=(1e10, 1.5e10, 2e10), rates=4, batches=4)
SEED_NOISE = 0.002


def seeds(count: int, noise: float = SEED_NOISE, first: int = 0):  # type: ignore[no-untyped-def]
    """The grid trained `count` times."""
    runs = []
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        found = synthetic_runs(SURFACE, GRID, rng, 0.0003, noise)
        runs += [replace(r, name=f"{r.name}-seed{seed}") for r in found]
    return runs


def error(laws) -> float:  # type: ignore[no-untyped-def]
    found = answered(laws, total_flops=6e9 * 4e10, params=1e9)
    rate = np.log(found.learning_rate.value / SURFACE.rate(1e9, 4e10))
    batch = np.log(found.batch_size_raw / SURFACE.batch(1e9, 4e10))
    return float(np.hypot(rate, batch))


def test_seeds_of_one_configuration_are_averaged():
    laws = fit_laws(seeds(3), OPTIONS)
    assert laws.status == "fitted"
    assert laws.data.runs == 3 * 3 * 16
    (warning,) = [w for w in laws.warnings if "averaged" in w]
    assert warning.startswith("48 configurations")
    alone = [error(fit_laws(seeds(1, first=seed), OPTIONS)) for seed in range(3)]
    assert error(laws) < np.mean(alone)


def test_the_seeds_differences_are_the_noise():
    """Of ln L: that of one run, less by the root of three for the average of three."""
    trajectories = collect(seeds(3)).trajectories
    freedom = sum(t.replicate_freedom for t in trajectories)
    variance = sum(t.replicate_squares for t in trajectories) / freedom
    loss = np.exp(np.mean([t.log_losses.mean() for t in trajectories]))
    assert freedom == 2 * 48
    assert np.sqrt(3 * variance) == pytest.approx(SEED_NOISE / loss, rel=0.2)


def test_laws_carry_the_noise_between_seeds_in_nats():
    """Of a run offset that lasts, and of single evaluations about it."""
    noise = fit_laws(seeds(3), OPTIONS).run_noise
    assert noise.freedom == 2 * 48
    assert noise.deviation == pytest.approx(np.hypot(SEED_NOISE, 0.0003), rel=0.2)
    assert screen(seeds(3), OPTIONS).noise_of_seeds == noise


def test_laws_of_single_seeds_carry_no_noise():
    assert fit_laws(seeds(1), OPTIONS).run_noise is None
    assert screen(seeds(1), OPTIONS).noise_of_seeds is None


def test_the_noise_is_that_of_the_last_third_of_the_shared_tokens():
    (run,) = synthetic_runs(SURFACE, Grid(), np.random.default_rng(0))[:1]
    count = len(run.tokens)
    late = np.where(np.arange(count) >= 2 * count // 3, 0.004, 0.0)
    one, other = replace(run, name="a"), replace(run, name="b", losses=run.losses + late)
    noise = screen([one, other], OPTIONS).noise_of_seeds
    assert noise.freedom == 1
    assert noise.deviation == pytest.approx(0.004 / np.sqrt(2.0), rel=1e-6)


def test_few_seeds_that_agree_by_chance_are_not_believed():
    agreeing = RunNoise(squares=0.0, freedom=1)
    assert agreeing.deviation == 0.0
    assert agreeing.believed == pytest.approx(USUAL_NOISE * np.sqrt(2.0))


def test_many_seeds_are_believed_as_measured():
    assert RunNoise(1000 * 0.01**2, 1000).believed == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(
    ("truth", "least"), [(0.0015, 0.97), (0.003, 0.95), (0.006, 0.92), (0.02, 0.88)]
)
def test_three_seeds_are_believed_with_care(truth, least):
    """How many of further runs are within 1.96 believed deviations: for a known deviation it would be 95%."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(4000):
        seeds = rng.normal(0.0, truth, 3)
        noise = RunNoise(float(((seeds - seeds.mean()) ** 2).sum()), 2)
        inside.append(abs(rng.normal(0.0, truth)) < 1.96 * noise.believed)
    assert np.mean(inside) >= least


def known_seeds(**changes):  # type: ignore[no-untyped-def]
    """Two seeds of one configuration that differ by 4% early on, among 16 runs; the second one `changes`."""
    runs = [replace(r, configuration=r.name, seed="0") for r in seeds(1)]
    first = runs[0]
    early = np.where(np.arange(len(first.losses)) < 10, 1.04, 1.0)
    other = replace(first, name="again", seed="1", losses=first.losses * early)
    return [*runs, replace(other, **changes)]


def test_known_seeds_are_averaged_however_much_they_differ():
    """Tiny models differ by 4% from seed to seed when they are young."""
    laws = fit_laws(known_seeds(), OPTIONS)
    assert laws.status == "fitted"
    assert laws.run_noise.freedom == 1


@pytest.mark.parametrize(
    "changes", [{"seed": None}, {"seed": "0"}, {"configuration": None}, {"configuration": "other"}]
)
def test_runs_that_differ_by_more_than_seeds_do_are_refused_where_they_may_be_no_seeds(changes):
    laws = fit_laws(known_seeds(**changes), OPTIONS)
    assert {r.reason for r in laws.refusals} == {RefusalReason.DUPLICATED_RUN}
    assert "name it in the column seed" in laws.refusals[0].message


def test_a_replicate_that_ended_early_leaves_no_step():
    one, other = (
        replace(run, name=name)
        for run, name in zip(
            synthetic_runs(SURFACE, Grid(), np.random.default_rng(0))[:1] * 2, "ab", strict=True
        )
    )
    half = len(other.tokens) // 2
    other = replace(other, tokens=other.tokens[:half], losses=other.losses[:half] + 0.01)
    (trajectory,) = collect([one, other]).trajectories
    steps = np.diff(trajectory.log_losses)
    assert np.all(steps < 0)
    used = np.isin(np.round(np.exp(trajectory.log_tokens)), np.round(one.tokens))
    shifts = np.exp(trajectory.log_losses) - one.losses[-int(used.sum()) :]
    assert np.allclose(shifts, 0.005, atol=2e-3)
    assert np.abs(np.diff(shifts)).max() < 0.001


def test_a_seed_that_diverged_is_left_out_by_name():
    runs = seeds(2)
    first = next(r for r in runs if r.name.endswith("seed1"))
    broken = replace(
        first, diverged=True, losses=np.where(np.arange(30) > 15, np.nan, first.losses)
    )
    laws = fit_laws([broken if r is first else r for r in runs], OPTIONS)
    assert laws.status == "fitted"
    (left_out,) = [e for e in laws.excluded if e.run == first.name]
    assert "did not" in left_out.reason


def test_seeds_may_share_a_name():
    """As in a table whose names are those of configurations."""
    runs = [replace(r, name=r.name.partition("-seed")[0]) for r in seeds(2)]
    laws = fit_laws(runs, OPTIONS)
    assert laws.status == "fitted"
    assert laws.run_noise.freedom == 48


def test_a_seed_that_diverged_may_have_the_name_of_one_that_did_not():
    runs = seeds(1)
    broken = replace(runs[0], diverged=True, losses=1.001 * runs[0].losses)
    laws = fit_laws([*runs, broken], OPTIONS)
    assert laws.status == "fitted"
    assert [e.run for e in laws.excluded] == [runs[0].name]


@pytest.mark.parametrize("runs", [seeds(2), seeds(1)], ids=["with seeds", "without"])
def test_an_annealed_twin_is_no_seed(runs):
    first = runs[0]
    annealed = np.where(np.arange(30) >= 20, 0.06, 0.0)
    laws = fit_laws([*runs, replace(first, name="twin", losses=first.losses - annealed)], OPTIONS)
    assert {r.reason for r in laws.refusals} == {RefusalReason.DUPLICATED_RUN}
    assert "twin" in laws.refusals[0].message
    assert laws.refusals[0].figures["difference"] == pytest.approx(0.06 / 3.0, rel=0.3)


def test_seeds_of_a_noisy_sweep_may_differ_more():
    """Five times the usual noise: differences of 1.2% are usual here."""
    laws = fit_laws(seeds(2, 0.01), OPTIONS)
    assert laws.data.runs == 96
    assert RefusalReason.DUPLICATED_RUN not in {r.reason for r in laws.refusals}


def test_a_run_that_repeats_another_wherever_both_have_a_loss_is_no_second_seed():
    """As where the first evaluation was dropped: noise between seeds would be zero."""
    (run,) = synthetic_runs(SURFACE, Grid(), np.random.default_rng(0))[:1]
    part = replace(run, name="a part", tokens=run.tokens[3:], losses=run.losses[3:])
    for group in ([part, run], [run, part]):
        found = collect(group)
        assert found.run_noise is None
        assert [each.run for each in found.excluded] == ["a part"]
        assert "same evaluations" in found.excluded[0].reason


@pytest.mark.parametrize("part", [slice(None), slice(5, 20)], ids=["whole", "a part"])
def test_a_float32_copy_of_a_run_is_no_second_seed(part):
    (run,) = synthetic_runs(SURFACE, Grid(), np.random.default_rng(0), 0.0003)[:1]
    rate = float(np.float32(run.learning_rate))
    tokens, losses = (values[part].astype(np.float32) for values in (run.tokens, run.losses))
    copy = replace(run, name="copy", learning_rate=rate, tokens=tokens, losses=losses)
    assert rate != run.learning_rate
    assert (losses != run.losses[part]).any()
    found = collect([run, copy])
    assert found.run_noise is None
    (left,) = found.excluded
    assert left.reason == "the same evaluations as run " + ({run.name, "copy"} - {left.run}).pop()


def test_runs_that_differ_in_the_sixth_digit_are_seeds():
    (run,) = synthetic_runs(SURFACE, Grid(), np.random.default_rng(0), 0.0003)[:1]
    other = replace(run, name="other", losses=run.losses * (1.0 + 1e-5))
    assert collect([run, other]).run_noise.freedom == 1


def test_seeds_that_are_equal_at_a_single_token_count_are_seeds():
    (run,) = synthetic_runs(SURFACE, Grid(), np.random.default_rng(0))[:1]
    other = replace(run, name="other", losses=run.losses + 0.001)
    other.losses[5] = run.losses[5]
    assert collect([run, other]).run_noise.freedom == 1
