"""From runs to trajectories: what is merged, what is left out, what is refused, and the tokens to a loss."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import InvalidRunError, RefusalReason, Run
from isoloss.laws.data.cells import make_cells
from isoloss.laws.data.trajectories import collect
from isoloss.laws.iso_loss.levels import crossings


def run(name="r", tokens=(1e9, 2e9, 4e9), losses=(3.0, 2.8, 2.6), **others):
    values = {"params": 1e8, "batch_size": 64.0, "sequence_length": 2048, "learning_rate": 1e-3}
    values |= others
    return Run(name=name, tokens=np.array(tokens), losses=np.array(losses), **values)


def power_law(noise=0.0, seed=0, evaluations=40):
    tokens = np.geomspace(1e8, 1e10, evaluations)
    losses = 1.7 + 2000.0 * tokens**-0.35
    return tokens, losses + noise * np.random.default_rng(seed).standard_normal(evaluations)


def test_single_evaluations_of_one_configuration_are_one_trajectory():
    runs = [run(f"d{d:g}", (d,), (loss,)) for d, loss in ((4e9, 2.6), (1e9, 3.0), (2e9, 2.8))]
    (trajectory,) = collect(runs).trajectories
    np.testing.assert_allclose(np.exp(trajectory.log_tokens), [1e9, 2e9, 4e9])
    assert trajectory.names == ("d1e+09", "d2e+09", "d4e+09")


def test_the_same_run_twice_counts_once_and_is_reported():
    collected = collect([run("a"), run("b")])
    assert len(collected.trajectories) == 1
    assert [e.run for e in collected.excluded] == ["b"]
    assert not collected.refusals


def test_one_configuration_with_two_losses_is_refused_by_name():
    (refusal,) = collect([run("a"), run("b", losses=(3.0, 2.8, 2.5))]).refusals
    assert refusal.reason is RefusalReason.DUPLICATED_RUN
    assert "a" in refusal.message
    assert "b" in refusal.message


def test_what_a_run_shows_after_diverging_is_not_a_loss():
    tokens = np.geomspace(1e9, 8e9, 12)
    losses = np.concatenate([np.linspace(3.0, 2.7, 8), [3.5, 6.0, np.nan, np.nan]])
    (trajectory,) = collect([run("d", tokens, losses, diverged=True)]).trajectories
    assert np.exp(trajectory.log_losses).min() == pytest.approx(2.7)
    assert len(trajectory.log_tokens) == 8
    assert np.exp(trajectory.end) == pytest.approx(8e9)
    assert trajectory.diverged


def test_a_run_that_ends_far_above_its_lowest_loss_has_diverged_though_nobody_marked_it():
    """Made not increasing, its rise would look like a run that learns nothing more."""
    tokens = np.geomspace(1e8, 8e9, 12)
    losses = np.concatenate([np.linspace(11.78, 4.0, 6), np.linspace(5.0, 11.5, 6)])
    found = collect([run("risen", tokens, losses)])
    (trajectory,) = found.trajectories
    assert trajectory.diverged
    assert len(trajectory.log_tokens) == 6
    assert "evaluations after divergence are used as a bound: 6" in found.excluded[0].reason
    steady = np.concatenate([np.linspace(11.78, 4.0, 11), [4.9]])
    assert not collect([run("noisy", tokens, steady)]).trajectories[0].diverged


def test_a_final_loss_far_above_its_size_is_a_diverged_run():
    others = [
        run(f"r{i}", (1e9,), (2.6 + 0.01 * i,), learning_rate=1e-4 * (i + 1)) for i in range(9)
    ]
    lost = run("lost", (1e9,), (6.5,), learning_rate=0.1)
    found = {t.name: t for t in collect([*others, lost]).trajectories}
    assert found["lost"].diverged
    assert not found["lost"].usable


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"params": -1.0}, "params"),
        ({"params": np.inf}, "params"),
        ({"batch_size": 0.0}, "batch_size"),
        ({"learning_rate": np.nan}, "learning_rate"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"tokens": np.array([1e9, 2e9])}, "losses"),
        ({"tokens": np.array([2e9, 1e9, 4e9])}, "tokens"),
        ({"tokens": np.array([0.0, 1e9, 4e9])}, "tokens"),
        ({"losses": np.array([3.0, -2.8, 2.6])}, "losses"),
        ({"losses": np.array([3.0, np.nan, 2.6])}, "losses"),
        ({"flops_per_token": 0.0}, "flops_per_token"),
    ],
)
def test_an_impossible_number_is_named_with_its_run(change, field):
    with pytest.raises(InvalidRunError) as caught:
        collect([replace(run("culprit"), **change)])
    assert caught.value.run == "culprit"
    assert caught.value.field == field


def test_tokens_to_a_loss_are_exact_without_noise():
    tokens, losses = power_law(evaluations=80)
    (trajectory,) = collect([run("p", tokens, losses)]).trajectories
    level = np.log([2.6])
    exact = (np.exp(level) - 1.7) / 2000.0
    found = crossings(trajectory, level).log_tokens
    assert found[0] == pytest.approx(np.log(exact[0] ** (-1 / 0.35)), abs=0.01)


def test_smoothing_beats_the_first_crossing_under_noise():
    level = 2.6
    exact = -np.log((level - 1.7) / 2000.0) / 0.35
    ours, first = [], []
    for seed in range(60):
        tokens, losses = power_law(noise=0.01, seed=seed)
        (trajectory,) = collect([run("p", tokens, losses)]).trajectories
        ours.append(crossings(trajectory, np.log([level])).log_tokens[0] - exact)
        first.append(np.log(tokens[np.argmax(losses <= level)]) - exact)
    assert np.sqrt(np.mean(np.square(ours))) < 0.5 * np.sqrt(np.mean(np.square(first)))
    assert abs(np.mean(ours)) < 0.02


def test_a_loss_that_was_not_reached_has_no_tokens():
    tokens, losses = power_law()
    (trajectory,) = collect([run("p", tokens, losses)]).trajectories
    found = crossings(trajectory, np.log([losses.min() - 0.1, 20.0]))
    assert np.isnan(found.log_tokens).all()


def test_the_declared_weights_are_the_derivative_of_the_tokens():
    tokens, losses = power_law(noise=0.002, evaluations=20)
    level = np.log([2.6])
    (base,) = collect([run("p", tokens, losses)]).trajectories
    found = crossings(base, level)
    at = len(base.log_tokens) // 2
    shifted_losses = losses.copy()
    shifted_losses[len(losses) - len(base.log_tokens) + at] *= np.exp(1e-4)
    (shifted,) = collect([run("p", tokens, shifted_losses)]).trajectories
    moved = crossings(shifted, level).log_tokens[0] - found.log_tokens[0]
    expected = -found.weights[0, at] * 1e-4 / found.slope[0]
    assert moved == pytest.approx(expected, rel=0.15, abs=2e-6)


def test_one_run_with_many_evaluations_does_not_take_the_others_out_of_the_cells():
    shared = np.array([1e9, 2e9, 4e9, 6e9, 8e9])
    dense = np.geomspace(0.9e9, 9e9, 12)
    runs = [
        run(f"r{i}", tokens, 1.7 + 2000.0 * tokens**-0.35 + 0.01 * i, learning_rate=1e-4 * (i + 1))
        for i, tokens in enumerate([dense, *[shared] * 8])
    ]
    cells = make_cells(collect(runs).trajectories)
    np.testing.assert_allclose(np.exp([cell.log_tokens for cell in cells]), shared)
    assert [len(cell.runs) for cell in cells] == [9] * 5


def test_one_run_that_stopped_early_leaves_the_late_cells():
    tokens = np.geomspace(1e9, 9e9, 24)
    runs = [
        run(f"r{i}", tokens, 1.7 + 2000.0 * tokens**-0.35 + 0.01 * i, learning_rate=1e-4 * (i + 1))
        for i in range(8)
    ]
    runs[3] = replace(runs[3], tokens=tokens[:4], losses=runs[3].losses[:4])
    cells = make_cells(collect(runs).trajectories)
    assert np.exp(cells[-1].log_tokens) == pytest.approx(9e9)
    assert len([cell for cell in cells if cell.log_tokens > np.log(3e9)]) >= 3
    assert all(len(cell.runs) >= 7 for cell in cells)
