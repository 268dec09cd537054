"""A fit keeps no array of all its runs and draws, however many runs there are."""

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import FitOptions, Run, fit_laws
from isoloss.laws.data.trajectories import collect
from tests.support.synthetic import Grid, Synthetic, synthetic_runs

NOISE = 0.002


def peak_mib(work: Callable[[], object]) -> float:
    """Of what Python and numpy take while it works."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def at_tokens_of_their_own(runs: Sequence[Run]) -> list[Run]:
    """Each evaluated a little earlier than the one before it."""
    return [replace(run, tokens=run.tokens * 0.9999**i) for i, run in enumerate(runs)]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    grid = Grid(rates=12, batches=12, step=float(np.log(1.4)), evaluations=40)
    return synthetic_runs(Synthetic(), grid, np.random.default_rng(0), NOISE)


@pytest.mark.parametrize("change", [list, at_tokens_of_their_own])
def test_a_fit_of_288_runs_takes_a_few_mebibytes(
    runs: list[Run], change: Callable[[Sequence[Run]], list[Run]]
) -> None:
    """The draws of 144 runs of a size at 24 losses are 17 MiB, those of a floor's candidates 18, their smoothers 3."""
    changed = change(runs)
    assert peak_mib(lambda: fit_laws(changed, FitOptions())) < 9.0


def test_trajectories_that_are_collected_again_are_not_made_again(runs: list[Run]) -> None:
    first = collect(runs)
    again = collect(runs[1:], first)
    assert set(map(id, again.trajectories)) <= set(map(id, first.trajectories))
    assert [t.name for t in again.trajectories] == [t.name for t in collect(runs[1:]).trajectories]
