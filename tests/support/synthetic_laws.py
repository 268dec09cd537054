"""Laws fitted to synthetic runs, once per test session, and answers of laws: for tests that need them but not their making."""

from functools import cache
from typing import Any

from isoloss.laws import FitOptions, Laws, Prediction, PredictionQuery, Refused, fit_laws, predict
from tests.support.synthetic_runs import synthetic_runs


@cache
def fitted_laws(*, provisional: bool = False) -> Laws:
    """Laws of a sweep whose optimum lies inside its grid."""
    return fit_laws(synthetic_runs(), FitOptions(bootstrap_samples=20), provisional=provisional)


@cache
def one_batch_size_laws() -> Laws:
    """Laws of a sweep of one batch size, 128 sequences, whose best learning rate lies inside its grid."""
    return fit_laws(synthetic_runs(batches=(128,)), FitOptions(bootstrap_samples=20))


def answered(laws: Laws, query: PredictionQuery | None = None, **asked: Any) -> Prediction:
    """The answer to a query, or to one with these fields; fails where it is refused."""
    found = predict(laws, query or PredictionQuery(**asked))
    assert isinstance(found, Prediction)
    return found


def refusal_of(laws: Laws, query: PredictionQuery) -> Refused:
    """Why a query has no answer; fails where it has one."""
    found = predict(laws, query)
    assert isinstance(found, Refused)
    return found
