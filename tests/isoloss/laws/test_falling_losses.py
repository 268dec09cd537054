"""Losses that rise with tokens are no law of training, and answers say so."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from benchmarks.science.tables import DENSE, MOE, data_folder, load
from isoloss import datasets
from isoloss.laws import FitOptions, Laws, PredictionQuery, Run, fit_laws, predict
from isoloss.laws.arrays import Array
from isoloss.laws.data.trajectories import collect
from isoloss.laws.falling_losses import worse_sizes
from tests.support.synthetic_runs import synthetic_runs

RUNS = datasets.load_sample_runs().runs
WORSE = "losses of all sizes are of one unit"
RISE = "rise over the second half of their tokens"
NO_LAW = "no law of size does that"
JUMPS = "runs jump on the way"
TWO_TEXTS = "on one text alone"
MEANS = "means over the run so far"
SIZES = sorted({run.params for run in RUNS})


@cache
def fitted(change: Callable[[Run], Run] | None = None) -> Laws:
    runs = [change(run) for run in RUNS] if change else RUNS
    return fit_laws(runs, FitOptions(bootstrap_samples=20))


def repeated(run: Run) -> Run:
    """The text was repeated after 30% of the tokens, and learned by heart, the more so at high learning rates."""
    beyond = np.clip(np.log(run.tokens / run.tokens[-1] / 0.3), 0.0, None)
    return replace(run, losses=run.losses + 0.15 * beyond * np.sqrt(run.learning_rate / 5e-4))


def backwards(run: Run) -> Run:
    return replace(run, losses=run.losses[::-1].copy())


@pytest.mark.parametrize("change", [repeated, backwards])
def test_runs_whose_losses_rise_are_named_with_every_answer(change: Callable[[Run], Run]) -> None:
    laws = fitted(change)
    assert RISE in laws.warnings[0]
    found = predict(laws, PredictionQuery(total_flops=6e19, params=1e9))
    assert any(RISE in warning for warning in found.warnings)


def test_losses_that_depend_on_tokens_as_none_do_are_said() -> None:
    for scaled in (lambda loss: 0.05 * loss, lambda loss: 12.0 * (loss - 2.6)):
        laws = fitted(lambda run, scaled=scaled: replace(run, losses=scaled(run.losses)))
        assert any("0.01 to 1 are usual" in warning for warning in laws.warnings)


def test_a_size_whose_losses_are_in_another_unit_is_said() -> None:
    largest = max(run.params for run in RUNS)
    laws = fitted(lambda r: replace(r, losses=r.losses / np.log(2)) if r.params == largest else r)
    (warning,) = [each for each in laws.warnings if WORSE in each]
    assert f"the best loss of {largest:.3g} parameters" in warning


@pytest.mark.parametrize(
    ("size", "factor"),
    [(SIZES[0], 0.9), (SIZES[1], 0.9), (SIZES[1], 1.1), (SIZES[2], 0.9), (SIZES[2], 1.1)],
)
def test_a_size_with_the_losses_of_another_tokenizer_is_said(size: float, factor: float) -> None:
    """At the smallest size a factor of 1.1 is no sign: it moves the answer by 2%."""
    laws = fitted(lambda r: replace(r, losses=factor * r.losses) if r.params == size else r)
    (warning,) = [each for each in laws.warnings if NO_LAW in each]
    assert all(f"{each:.3g}" in warning for each in SIZES)


def test_a_size_whose_tokens_count_padding_leaves_no_irreducible_loss_and_that_is_said() -> None:
    padded = fitted(lambda r: replace(r, tokens=1.25 * r.tokens) if r.params == 1e8 else r)
    (warning,) = [each for each in padded.warnings if "irreducible" in each]
    assert "check tokens, without padding" in warning


def test_a_size_among_five_whose_sequences_are_twice_as_long_as_written_is_said() -> None:
    runs = synthetic_runs(sizes=(5e7, 1e8, 2e8, 4e8, 8e8), rates=(5e-4, 1e-3), batches=(64, 128))
    wrong = [replace(r, tokens=2.0 * r.tokens) if r.params == 2e8 else r for r in runs]
    assert list(worse_sizes(collect(runs).trajectories)) == []
    (warning,) = worse_sizes(collect(wrong).trajectories)
    assert "params, sequence_length and tokens of each" in warning


@pytest.mark.parametrize(
    ("rates", "provisional", "said"),
    [
        ((1e-3,), False, True),
        ((2.5e-4, 1e-3), False, True),
        ((), False, False),
        ((1e-3,), True, False),
    ],
)
def test_learning_rates_that_were_stopped_before_the_others_are_said(
    rates: tuple[float, ...], provisional: bool, said: bool
) -> None:
    def stopped(run: Run) -> Run:
        seen = run.tokens <= (0.29 if run.learning_rate in rates else 1.0) * run.tokens[-1]
        return replace(run, tokens=run.tokens[seen], losses=run.losses[seen])

    runs = [stopped(run) for run in RUNS if 2e-4 < run.learning_rate < 1.5e-3]
    found = fit_laws(runs, FitOptions(bootstrap_samples=20), provisional=provisional).warnings
    assert [each for each in found if "of the others' tokens" in each][1:] == []
    assert (
        any(", ".join(f"{rate:.3g}" for rate in rates) + " end at" in each for each in found)
        is said
    )


def test_sizes_that_share_no_tokens_are_not_compared() -> None:
    """One evaluation each, at tokens that grow with the size."""
    ends = [replace(r, tokens=r.tokens[-1:], losses=r.losses[-1:]) for r in RUNS]
    assert list(worse_sizes(collect(ends).trajectories)) == []


@pytest.mark.parametrize("dense", [DENSE, MOE])
def test_no_subset_of_published_sizes_is_accused(dense: str) -> None:
    path = data_folder() / dense
    if not path.exists():
        pytest.skip(f"{path} is not there")
    table = load(path)
    for some in (s for k in (3, len(table.sizes)) for s in combinations(table.sizes, k)):
        runs = collect([run for run in table.runs if run.params in some]).trajectories
        assert list(worse_sizes(runs)) == []


@pytest.mark.parametrize("weights", [np.ones_like, lambda tokens: np.diff(tokens, prepend=0.0)])
def test_means_over_the_run_so_far_are_said(weights: Callable[[Array], Array]) -> None:
    def means(run: Run) -> Run:
        share = weights(run.tokens)
        return replace(run, losses=np.cumsum(share * run.losses) / np.cumsum(share))

    assert any(MEANS in each for each in fitted(means).warnings)


@pytest.mark.parametrize("apart", [0.1, 0.3])
def test_losses_of_two_texts_in_turn_are_said(apart: float) -> None:
    laws = fitted(lambda r: replace(r, losses=r.losses + apart * (np.arange(len(r.losses)) % 2)))
    assert any(TWO_TEXTS in each for each in laws.warnings)


@pytest.mark.parametrize(("nats", "after"), [(0.05, 3e9), (-0.05, 2e9)])
def test_losses_of_another_text_from_some_tokens_on_are_said(nats: float, after: float) -> None:
    laws = fitted(lambda run: replace(run, losses=run.losses + nats * (run.tokens > after)))
    assert any(JUMPS in each for each in laws.warnings)


def test_most_runs_that_diverge_are_said_where_that_leaves_no_laws() -> None:
    """Losses in the wrong order of runs that fall by more than a nat look as if all had diverged at once."""
    runs = datasets.load_sample_runs().runs
    fallen = [replace(r, losses=r.losses * np.linspace(1.5, 1.0, len(r.losses))) for r in runs]
    laws = fit_laws([backwards(run) for run in fallen], FitOptions(bootstrap_samples=20))
    assert laws.status == "refused"
    assert laws.warnings[0].startswith(f"{len(runs)} of {len(runs)} runs are marked as diverged")
    assert "check that each loss belongs to its tokens" in laws.warnings[0]


@pytest.mark.parametrize("noise", [0.0015, 0.004, 0.01])
def test_healthy_runs_are_not_accused(noise: float) -> None:
    of_synthetic = fit_laws(synthetic_runs(noise=noise), FitOptions(bootstrap_samples=20))
    for laws in (fitted(), of_synthetic):
        for warning in laws.warnings:
            assert RISE not in warning
            assert "diverged" not in warning
            assert "are usual" not in warning
            assert WORSE not in warning
            assert NO_LAW not in warning
            assert MEANS not in warning
            assert TWO_TEXTS not in warning
            assert JUMPS not in warning
