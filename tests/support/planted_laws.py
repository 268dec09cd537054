"""Laws fitted to planted runs, once per test session: for tests that need laws but not their fit."""

from __future__ import annotations

from functools import cache

from isoloss.laws import FitOptions, Laws, fit_laws
from tests.support.planted_runs import planted_runs


@cache
def fitted_laws(*, provisional: bool = False) -> Laws:
    """Laws of a sweep whose optimum lies inside its grid."""
    return fit_laws(planted_runs(), FitOptions(bootstrap_samples=20), provisional=provisional)


@cache
def one_batch_size_laws() -> Laws:
    """Laws of a sweep of one batch size, 128 sequences, whose best learning rate lies inside its grid."""
    return fit_laws(planted_runs(batches=(128,)), FitOptions(bootstrap_samples=20))
