"""How often a placed lattice holds a published optimum."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.science.tables import DENSE, MOE, data_folder
from benchmarks.search.placement import PLACINGS, Cell, cells, coverage, lines_outside
from isoloss.placement import placed_by_law
from isoloss.validation import Place

CENTRE = Place(1e-3, 100)


def cell(rate: float, batch: float) -> Cell:
    return Cell("dense", 2e8, 2e8, 1e10, np.log([rate, batch]))


@pytest.mark.parametrize(
    ("rate", "batch", "lines"),
    [(1e-3, 100, -1.0), (2e-3, 100, 0.0), (4e-3, 100, 1.0), (1e-3, 25, 1.0), (2.5e-4, 800, 2.0)],
)
def test_an_optimum_is_so_many_lines_outside(rate: float, batch: float, lines: float) -> None:
    assert lines_outside(cell(rate, batch), CENTRE) == pytest.approx(lines)


def test_the_first_placing_is_the_operators() -> None:
    found = Cell("mixtures", 2e8, 2e9, 1e10, np.log([1e-3, 128]))
    assert PLACINGS[0].centre(found) == placed_by_law(2e9, 1e10, 2048)


def test_every_placing_has_a_line_for_all_cells_and_for_each_table() -> None:
    assert len(list(coverage([cell(1e-3, 128)]))) == 1 + 2 * len(PLACINGS)


def test_nineteen_of_twenty_published_optima_are_inside_the_operators_lattice_or_a_line_away() -> (
    None
):
    folder = data_folder()
    if not all((folder / file).exists() for file in (DENSE, MOE)):
        pytest.skip("the published tables are not here")
    found = cells(folder)
    out = [lines_outside(each, PLACINGS[0].centre(each)) for each in found]
    assert len(found) == 33
    assert np.mean(np.array(out) <= 1.0) >= 0.95
