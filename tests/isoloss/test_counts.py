"""What is said of numbers that people write and no option or field reads."""

import pytest

from isoloss.errors import hint


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
