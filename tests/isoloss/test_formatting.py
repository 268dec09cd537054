"""One formatter: the same number reads the same in a status, on a terminal and in a report."""

import math
from collections.abc import Callable

import pytest

from isoloss import formatting
from isoloss.laws import (
    Interval,
)
from isoloss.numbers import hint


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (math.nan, ""),
        (math.inf, "unbounded"),
        (0.0, "0"),
        (2.1e21, "2.1e21"),
        (2e21, "2e21"),
        (0.000234, "2.34e-4"),
        (1.5e-7, "1.5e-7"),
        (768.0, "768"),
        (1234567.0, "1.23e6"),
        (0.01234, "0.0123"),
        (999.96, "1000"),
        (123456.0, "123456"),
        (-3.14159, "-3.14"),
    ],
)
def test_numbers_have_three_digits_and_an_exponent_only_where_it_helps(
    value: float | None, text: str
) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (formatting.number(-0.7476, 4), "-0.7476"),
        (formatting.learning_rate(2e-4), "2e-4"),
        (formatting.learning_rate(6.157e-5), "6.16e-5"),
        (formatting.learning_rate(0.02), "2e-2"),
        (formatting.learning_rate(0.0), ""),
        (formatting.flops(2.8e21), "2.8e21"),
        (formatting.flops(123456), "1.23e5"),
        (formatting.loss(2.07951), "2.0795"),
        (formatting.loss(2.0), "2.0000"),
        (formatting.count(999_960_000), "1B"),
        (formatting.count(536_870_912), "537M"),
        (formatting.count(20e9), "20B"),
        (formatting.count(12), "12"),
        (formatting.batch_size(771.4), "771"),
        (formatting.batch_size(3.14), "3.1"),
        (formatting.batch_size(5.0), "5"),
        (formatting.batch_size(9.97), "10"),
        (formatting.batch_size(6_316_032), "6316032"),
        (formatting.batch_size(1e16), "1e16"),
        (formatting.percent(0.9201), "92.0%"),
        (formatting.percent(-0.5), "-50.0%"),
    ],
)
def test_each_quantity_has_its_own_format(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize(
    "write",
    [
        *(formatting.number, formatting.exponential, formatting.learning_rate, formatting.flops),
        *(formatting.loss, formatting.batch_size, formatting.count, formatting.percent),
    ],
)
def test_absent_values_are_empty_and_infinite_ones_unbounded(
    write: Callable[[float | None], str],
) -> None:
    assert [write(None), write(math.nan), write(math.inf)] == ["", "", "unbounded"]


def test_an_interval_is_in_the_format_of_its_quantity() -> None:
    batch = Interval(771.4, 703, 844)
    assert formatting.interval(batch, formatting.batch_size) == "771 [703, 844]"
    rate = Interval(1.59e-3, 1.3e-3, math.inf)
    assert formatting.interval(rate, formatting.learning_rate) == "1.59e-3 [1.3e-3, unbounded]"
    assert formatting.interval(None) == ""


# ------------------------------------------------------------------------------------ formulas


def test_sentences_are_wrapped_between_words_and_a_path_stays_whole() -> None:
    text = "written to /a/very/long-path/of-a/store and more"
    assert formatting.wrapped(text, 10) == [
        "written to",
        "/a/very/long-path/of-a/store",
        "and more",
    ]


@pytest.mark.parametrize(
    ("text", "number", "whole"),
    [
        ("2,75", ": write 2.75", ""),
        ("20B", ": write 20000000000", ": write 20000000000"),
        ("1,000", ": write 1000", ": write 1000"),
        ("0.0125%", ": write 0.000125", ""),
        ("30 %", ": write 0.3", ""),
        ("8k", "", ""),
        ("9e999B", "", ""),
        ("many", "", ""),
    ],
)
def test_a_hint_is_a_number_that_would_be_read(text: str, number: str, whole: str) -> None:
    assert (hint(text), hint(text, whole=True)) == (number, whole)
