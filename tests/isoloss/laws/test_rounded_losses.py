"""Losses that were rounded are named: bfloat16 moves the best values, and nothing else shows it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from isoloss.laws import FitOptions, Run, fit_laws
from isoloss.laws.arrays import Array
from isoloss.laws.rounded_losses import rounding_warnings
from tests.support.synthetic_runs import synthetic_runs

MESSAGE = "of the late losses repeat one another"


def bfloat16(values: Array) -> Array:
    """To eight bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def rounded(to: Callable[[Array], Array]) -> list[Run]:
    return [replace(run, losses=to(run.losses)) for run in synthetic_runs()]


@pytest.mark.parametrize(
    ("to", "step"),
    [
        (bfloat16, "in steps of 0.0156 and more"),
        (lambda losses: np.round(losses, 2), "in steps of 0.01 and more"),
        (lambda losses: bfloat16(losses / 3.05), "in steps of 0.0"),
    ],
    ids=["bfloat16", "two decimals", "bits per byte in bfloat16"],
)
def test_rounded_losses_are_named_with_their_steps(
    to: Callable[[Array], Array], step: str
) -> None:
    (warning,) = rounding_warnings(rounded(to))
    assert MESSAGE in warning
    assert step in warning


@pytest.mark.parametrize(
    "to",
    [
        lambda losses: losses,
        lambda losses: np.round(losses, 3),
        lambda losses: losses.astype(np.float16).astype(float),
        lambda losses: losses.astype(np.float32).astype(float),
        lambda losses: np.full_like(losses, 3.0),
    ],
    ids=["exact", "three decimals", "float16", "float32", "one value"],
)
def test_losses_whose_rounding_is_within_their_noise_are_not(to: Callable[[Array], Array]) -> None:
    assert rounding_warnings(rounded(to)) == []


@pytest.mark.parametrize("rows", [2, 4])
def test_losses_that_were_carried_on_are_named(rows: int) -> None:
    (warning,) = rounding_warnings(
        rounded(lambda losses: losses[np.arange(len(losses)) // rows * rows])
    )
    assert "are that of the row before" in warning


def test_a_size_whose_log_alone_is_rounded_is_named() -> None:
    runs = synthetic_runs()
    largest = max(run.params for run in runs)
    mixed = [replace(r, losses=bfloat16(r.losses)) if r.params == largest else r for r in runs]
    (warning,) = rounding_warnings(mixed)
    assert f"of the late losses at {largest:.3g} parameters repeat one another" in warning


@pytest.mark.parametrize("every", [2, 3])
def test_some_runs_of_each_size_in_bfloat16_are_named(every: int) -> None:
    runs = [replace(r, losses=np.round(r.losses, 5)) for r in synthetic_runs()]
    some = zip(runs, rounded(bfloat16), strict=True)
    mixed = [b if at % every == 0 else a for at, (a, b) in enumerate(some)]
    (warning,) = rounding_warnings(mixed)
    assert "in steps of 0.0156 and more" in warning


def test_a_run_that_was_not_rounded_hides_none_that_were() -> None:
    runs = rounded(bfloat16)
    (warning,) = rounding_warnings([synthetic_runs()[0], *runs[1:]])
    assert MESSAGE in warning


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_evaluations_say_nothing(count: int) -> None:
    few = [replace(run, tokens=run.tokens[:8], losses=run.losses[:8]) for run in rounded(bfloat16)]
    assert rounding_warnings(few[:count]) == []


def test_the_laws_say_so() -> None:
    options = FitOptions(bootstrap_samples=20)
    assert any(MESSAGE in each for each in fit_laws(rounded(bfloat16), options).warnings)
    assert not any(MESSAGE in each for each in fit_laws(synthetic_runs(), options).warnings)
