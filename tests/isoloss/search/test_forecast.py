"""How far above the leader a run ends, told from its beginning."""

from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import Run
from isoloss.search import Point
from isoloss.search.forecast import excess, leader_of
from tests.support.synthetic import Synthetic

TRUTH = Synthetic()
N, D = 2e8, 1e10
NOISE = 0.0015


def point(rate: float, batch: float) -> Point:
    """By factors of the optimum at the end."""
    return Point("n", TRUTH.batch(N, D) * batch, TRUTH.rate(N, D) * rate)


def run(at: Point, share: float, counts: int = 20) -> Run:
    tokens = np.geomspace(0.02 * D, share * D, counts)
    losses = [TRUTH.loss(N, t, at.batch_size, at.learning_rate) for t in tokens]
    return Run(str(at), N, at.batch_size, 2048, at.learning_rate, tokens, np.array(losses))


def last(whole: Run) -> Run:
    return replace(whole, tokens=whole.tokens[-1:], losses=whole.losses[-1:])


def final(at: Point) -> float:
    return TRUTH.loss(N, D, at.batch_size, at.learning_rate)


@pytest.mark.parametrize(
    ("rate", "batch"),
    [(2.0, 1.0), (0.5, 1.0), (1.0, 2.0), (1.0, 0.5), (2.0, 0.5), (4.0, 1.0), (0.25, 4.0)],
)
@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_the_lower_bound_holds_and_the_mean_is_within_the_error(rate, batch, share):
    best, other = point(1.0, 1.0), point(rate, batch)
    found = excess(other, run(other, share), best, run(best, share), D, NOISE)
    true = final(other) - final(best)
    assert found.low <= true
    assert abs(found.mean - true) <= 2.0 * found.deviation


def test_a_larger_batch_that_is_behind_early_may_lead_at_the_end():
    """Equal tokens favour small batches: at 30% of the tokens half the batch size is ahead."""
    small, large = point(1.0, 0.5), point(1.0, 1.2)
    runs = {p: run(p, 0.3) for p in (small, large)}
    assert runs[small].losses[-1] < runs[large].losses[-1]
    assert final(large) < final(small)
    assert leader_of(runs, D, NOISE)[0] == large


def test_one_evaluation_each_gives_a_wide_error_and_no_failure():
    best, other = point(1.0, 1.0), point(2.0, 1.0)
    single = excess(other, last(run(other, 0.3)), best, last(run(best, 0.3)), D, NOISE)
    assert single.low < final(other) - final(best)
    assert single.deviation > 2.0 * NOISE


def test_runs_without_a_common_range_are_not_compared():
    best, other = point(1.0, 1.0), point(2.0, 1.0)
    late = run(best, 1.0)
    late = Run(late.name, N, 64, 2048, 1e-3, late.tokens[-3:], late.losses[-3:])
    assert excess(other, run(other, 0.3), best, late, D, NOISE) is None


def test_no_runs_have_no_leader():
    with pytest.raises(ValueError, match="no run"):
        leader_of({}, D, NOISE)
