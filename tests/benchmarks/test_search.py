"""The comparison of searches, briefly: one synthetic sweep and one window of a table, and what is printed of them."""

import numpy as np

from benchmarks.science.tables import Table
from benchmarks.search.__main__ import compare, table
from benchmarks.search.published import replay, replayed_sweeps
from benchmarks.search.sweeps import synthetic_sweep
from isoloss.laws import Run
from tests.support.synthetic import Synthetic

RATES = np.geomspace(3e-4, 1e-2, 11)
BATCHES = np.round(np.geomspace(16, 2048, 15))
TRUTH = Synthetic(batch_at=(128.0, -0.05, 0.40))


def published() -> Table:
    """A table as published: final losses only, every token count another run."""
    runs, cells = [], []
    for n, most in ((1e8, 8e9), (2.5e8, 1.6e10)):
        for d in (0.2 * most, 0.4 * most, most):
            for lr in RATES:
                for b in BATCHES:
                    loss = np.array([TRUTH.loss(n, d, b, lr)])
                    runs.append(Run(f"{n}{d}{lr}{b}", n, b, 2048, lr, np.array([d]), loss))
                    cells.append((n, d))
    return Table(tuple(runs), tuple(cells))


def test_a_search_is_carried_out_and_judged_beside_the_whole_grid() -> None:
    window = next(replayed_sweeps(replay("made up", published())))
    sweeps = (synthetic_sweep("scattered", 0.0015, 2, 0), window)
    compared = [compare(sweep, samples=5) for sweep in sweeps]
    for results in compared:
        exhaustive, searched = results
        assert exhaustive.share == 1.0
        assert 0 < searched.share < 1.5
    text = "\n".join(table(compared))
    assert "\nall  " in text
    assert "synthetic, Sequential: regret expected of grids / reported / measured" in text
