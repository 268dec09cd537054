"""One size has a loss-compute law of its own; its best settings take two sizes."""

import numpy as np
import pytest

from benchmarks.science.cases import synthetic_case
from benchmarks.science.shapes import ONE, surface
from isoloss.laws import (
    FitOptions,
    PredictionQuery,
    RefusalReason,
    fit_laws,
)
from tests.support.synthetic_runs import refusal_of

OPTIONS = FitOptions(bootstrap_samples=60)
RUNS = synthetic_case("exact", ONE, 0).runs
TRUTH = surface("exact", 0)
SIZE, TOKENS = ONE.sizes[0], ONE.tokens[0]


def best_loss(tokens: float) -> float:
    return TRUTH.loss(SIZE, tokens, TRUTH.batch(SIZE, tokens), TRUTH.rate(SIZE, tokens))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_compute_that_a_loss_took_is_found_from_the_best_runs(share):
    laws = fit_laws(RUNS, OPTIONS)
    assert laws.loss_compute.status == "fitted"
    flops = float(np.exp(laws.loss_compute.curve.log_x(best_loss(share * TOKENS))))
    # The luckiest of 25 runs is below the least loss that one can expect.
    assert flops == pytest.approx(6 * SIZE * share * TOKENS, rel=0.06)


def test_settings_stay_refused_and_the_law_says_what_it_is_not():
    laws = fit_laws(RUNS, OPTIONS)
    assert laws.status == "refused"
    assert {r.reason for r in laws.refusals} == {RefusalReason.TOO_FEW_SIZES}
    assert any("longer training at this size" in w for w in laws.warnings)
    found = refusal_of(laws, PredictionQuery(total_flops=6 * SIZE * TOKENS, params=SIZE))
    assert "train another size" in found.refusals[0].message
    assert "--" not in found.refusals[0].message  # events and reports have no command line


def test_one_size_trained_for_one_token_count_tells_nothing():
    runs = [type(r)(**{**vars(r), "tokens": r.tokens[-1:], "losses": r.losses[-1:]}) for r in RUNS]
    laws = fit_laws(runs, OPTIONS)
    assert laws.status == "refused"
