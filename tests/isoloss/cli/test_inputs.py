"""Counts of tokens and parameters as people write them, which several options take."""

import pytest

from isoloss.cli.inputs import count
from isoloss.errors import BadInput


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *(("5e9", 5e9), ("5.e9", 5e9), (".5e10", 5e9), ("+5e+09", 5e9), ("5000000000.0", 5e9)),
        *(("5B", 5e9), ("2.5T", 2.5e12), ("1,000M", 1e9), ("1_000M", 1e9)),
    ],
)
def test_counts_are_taken_as_floats_are_written_and_with_a_letter(
    text: str, tokens: float
) -> None:
    assert count("--cpt-tokens", text) == tokens


@pytest.mark.parametrize("text", ["55X", "0", "2,5B", "55,00B", "1234,567M", "five", "-1"])
def test_what_is_no_count_is_refused_by_its_option(text: str) -> None:
    """A comma as a decimal point would be a factor of ten."""
    with pytest.raises(BadInput) as refused:
        count("--cpt-tokens", text)
    hint = "write 55B, 2.5T, 800M or 55e9"
    assert str(refused.value) == f"--cpt-tokens: {text} is not a count: {hint}"


@pytest.mark.parametrize("text", ["1e400", "8e400", "9" * 400, "1e16", "99999T"])
def test_a_count_beyond_all_tokens_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=f"^--params: {text[:40]} is not a count of at most 9e15"):
        count("--params", text)
