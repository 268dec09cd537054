"""Where the first points of a size without a grid go."""

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isoloss.placement import LEAST_FACTOR, lattice, placed_by_law, rounded_place
from isoloss.published import NotApplicable
from isoloss.validation import Place

factors = st.floats(LEAST_FACTOR, 10.0)


def test_the_centre_is_the_published_optimum_at_two_digits() -> None:
    """1.797 N^-0.713 D^0.307 is 2.26e-3, 0.581 D^0.571 tokens are 80 sequences of 8192, for 4.29e8 and 4e10."""
    assert placed_by_law(4.29e8, 4e10, 8192) == Place(2.3e-3, 80)


def test_sequences_of_half_the_length_are_twice_as_many() -> None:
    assert placed_by_law(4.29e8, 4e10, 4096).batch_size == 160


def test_a_lattice_is_about_its_centre_with_two_digits_everywhere() -> None:
    found = lattice(Place(1.1e-3, 130), 3, 2.0, 2.0)
    assert found.learning_rates == (5.5e-4, 1.1e-3, 2.2e-3)
    assert found.batch_sizes == (65, 130, 260)


def test_an_even_number_of_lines_leaves_the_centre_between_two() -> None:
    assert lattice(Place(2e-3, 100), 4, 4.0, 4.0).learning_rates == (2.5e-4, 1e-3, 4e-3, 1.6e-2)


def test_about_a_small_batch_the_lattice_begins_at_one_sequence() -> None:
    assert lattice(Place(1e-3, 1), 3, 2.0, 2.0).batch_sizes == (1, 2, 4)


@given(st.floats(1e-7, 0.1), st.floats(0.01, 1e6), st.integers(2, 9), factors, factors)
@example(rate=1e-3, batch=1.0, lines=2, rate_factor=2.0, batch_factor=1.6875)  # 1.5 and 2.5
def test_lines_ascend_whatever_the_centre_and_the_factors(
    rate: float, batch: float, lines: int, rate_factor: float, batch_factor: float
) -> None:
    found = lattice(rounded_place(rate, batch), lines, rate_factor, batch_factor)
    assert len(found.learning_rates) == len(found.batch_sizes) == lines
    assert found.batch_sizes[0] >= 1
    assert all(a < b for a, b in pairwise(found.learning_rates))
    assert all(a < b for a, b in pairwise(found.batch_sizes))


@given(st.floats(1e-5, 0.1), st.integers(100, 10**6))
def test_rounding_moves_a_line_by_a_twentieth_at_most(rate: float, batch: int) -> None:
    centre = rounded_place(rate, batch)
    found = lattice(centre, 3, 2.0, 2.0)
    for value, exact in zip(found.learning_rates, (0.5, 1.0, 2.0), strict=True):
        assert abs(math.log(value / (exact * centre.learning_rate))) < 0.05


def test_a_size_for_which_the_law_gives_no_usable_values_is_refused() -> None:
    with pytest.raises(NotApplicable, match="step-law gives learning rate"):
        placed_by_law(1e3, 1e6, 128)


@pytest.mark.parametrize(("lines", "factor"), [(1, 2.0), (3, 1.4)])
def test_a_lattice_whose_lines_would_meet_is_refused(lines: int, factor: float) -> None:
    with pytest.raises(ValueError, match="a lattice has two lines or more"):
        lattice(Place(1e-3, 8), lines, 2.0, factor)
