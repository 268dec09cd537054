"""The page of what fits which GPU is the one that the trainer's own plan gives."""

import pytest

pytest.importorskip("torch")


from scripts.memory_table import PAGE, TABLE, fits_table


def test_the_reference_page_says_what_fits_now() -> None:
    """`python -m scripts.memory_table` writes it."""
    (table,) = TABLE.findall(PAGE.read_text())
    assert table.rstrip() == fits_table()
