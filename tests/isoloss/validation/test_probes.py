"""Where probes are trained, and what runs come to as probes."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import Run, RunNoise
from isoloss.usual import USUAL_NOISE
from isoloss.validation import InvalidProbes, Place, probe_cross, probes_of_runs

TOKENS = np.array([1e6, 2e6, 4e6])


def run(name: str, rate: float = 1e-3, batch: float = 8, loss: float = 3.0) -> Run:
    losses = loss + np.array([0.2, 0.1, 0.0])
    return Run(name, 1e6, batch, 128, rate, TOKENS, losses)


def test_a_cross_is_the_answer_and_a_neighbour_on_each_side_of_both_axes() -> None:
    assert probe_cross(1e-3, 64, 2.0) == (
        Place(1e-3, 64),
        Place(0.5e-3, 64),
        Place(2e-3, 64),
        Place(1e-3, 32),
        Place(1e-3, 128),
    )


def test_batch_sizes_keep_their_multiple_and_what_rounding_makes_the_answer_is_left_out() -> None:
    assert {place.batch_size for place in probe_cross(1e-3, 70, 2.0, multiple_of=32)} == {
        32,
        64,
        128,
    }
    assert {place.batch_size for place in probe_cross(1e-3, 1, 2.0)} == {1, 2}


def test_a_factor_of_one_makes_no_neighbours() -> None:
    with pytest.raises(ValueError, match="must be above 1, not 1"):
        probe_cross(1e-3, 64, 1.0)


def test_seeds_of_one_place_are_one_probe_with_a_smaller_error() -> None:
    runs = [run("a"), run("b", loss=3.002), run("c", rate=2e-3)]
    (twice, once), tokens = probes_of_runs(runs, stated_noise=0.001)
    assert {twice.params, once.params} == {1e6}
    assert tokens == 4e6
    assert twice.loss == pytest.approx(3.001)
    assert once.loss == pytest.approx(3.0)
    assert twice.standard_error == pytest.approx(once.standard_error / np.sqrt(2))


def test_seeds_that_differ_more_than_assumed_raise_the_error() -> None:
    runs = [run("a"), run("b", loss=3.02), run("c", rate=2e-3)]
    (_, alike), _ = probes_of_runs([run("a"), run("c", rate=2e-3)], stated_noise=0.001)
    (_, apart), _ = probes_of_runs(runs, stated_noise=0.001)
    assert alike.standard_error == pytest.approx(0.001)
    assert apart.standard_error > 5 * alike.standard_error


def test_without_any_knowledge_of_noise_the_usual_is_assumed() -> None:
    (probe,), _ = probes_of_runs([run("a")])
    assert probe.standard_error == pytest.approx(USUAL_NOISE)


def test_where_nothing_measures_the_noise_it_is_between_the_usual_and_the_laws_residual() -> None:
    (probe,), _ = probes_of_runs([run("a")], residual=0.05)
    assert probe.standard_error == pytest.approx(0.05)
    assert probe.least_error == pytest.approx(USUAL_NOISE)


@pytest.mark.parametrize("residual", [0.001, 0.005])
def test_a_small_residual_measures_no_noise(residual: float) -> None:
    """Laws of few runs follow them closely, whatever their noise."""
    (probe,), _ = probes_of_runs([run("a")], residual=residual)
    assert probe.standard_error == pytest.approx(0.010)
    assert probe.least_error == pytest.approx(USUAL_NOISE)


def test_noise_that_the_sweep_measured_counts_instead_of_its_residual() -> None:
    measured = RunNoise(6 * 0.004**2, 6)
    (probe,), _ = probes_of_runs([run("a")], measured_noise=measured, residual=0.05)
    assert probe.standard_error == pytest.approx(measured.believed)
    assert probe.standard_error < 0.006
    assert probe.least_error is None


def test_seeds_of_the_probes_add_to_what_the_sweep_measured() -> None:
    measured = RunNoise(6 * 0.004**2, 6)
    runs = [run("a"), run("b", loss=3.02), run("c", rate=2e-3)]
    (_, once), _ = probes_of_runs(runs, measured_noise=measured)
    together = RunNoise(measured.squares + 2 * 0.01**2, 7)
    assert once.standard_error == pytest.approx(together.believed)


def test_seeds_of_the_probes_alone_count_instead_of_the_residual() -> None:
    runs = [run("a"), run("b", loss=3.002), run("c", rate=2e-3)]
    (_, once), _ = probes_of_runs(runs, residual=0.05)
    assert once.standard_error == pytest.approx(RunNoise(2 * 0.001**2, 1).believed)


def test_a_noise_that_is_stated_to_be_zero_is_none_that_is_not_known() -> None:
    (probe,), _ = probes_of_runs([run("a")], stated_noise=0.0, residual=0.05)
    assert probe.standard_error == 0.0
    assert probe.least_error is None


def test_a_stated_noise_counts_instead_of_all_others() -> None:
    (probe,), _ = probes_of_runs(
        [run("a")], stated_noise=0.001, measured_noise=RunNoise(1.0, 9), residual=0.05
    )
    assert probe.standard_error == pytest.approx(0.001)


def test_losses_are_taken_at_the_tokens_that_all_runs_reached() -> None:
    """Whole steps end a little apart; in between, losses are linear in ln tokens."""
    longer = replace(run("b", batch=16), tokens=TOKENS * 1.02)
    (short, long), tokens = probes_of_runs([run("a"), longer])
    assert tokens == 4e6
    assert short.loss == pytest.approx(3.0)
    assert long.loss == pytest.approx(3.0 + 0.1 * np.log(1.02) / np.log(2), abs=1e-4)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(run("b"), tokens=TOKENS * 2), "probe b is at 8e\\+06 tokens and a at 4e\\+06"),
        (replace(run("b"), params=2e6), "probes a and b differ in params"),
        (replace(run("b"), optimizer="Lion"), "probes a and b differ in optimizer"),
        (replace(run("b"), finished=False), "train all probes to the same tokens"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_by_name(other: Run, message: str) -> None:
    with pytest.raises(InvalidProbes, match=message):
        probes_of_runs([run("a"), other])


def test_a_place_at_which_any_seed_diverged_counts_as_diverged() -> None:
    runs = [run("a"), replace(run("b"), diverged=True), run("c", rate=2e-3)]
    (unsafe, safe), _ = probes_of_runs(runs)
    assert unsafe.diverged
    assert not safe.diverged


def test_probes_that_all_diverged_have_no_tokens_in_common() -> None:
    (probe,), tokens = probes_of_runs([replace(run("a"), diverged=True)])
    assert probe.diverged
    assert tokens == 0.0
