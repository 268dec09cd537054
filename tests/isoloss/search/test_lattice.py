"""Cells beside a cell: the grid's own, and beyond its edge."""

from dataclasses import replace

import pytest

from isoloss.search import Point, Seen, Size
from isoloss.search.lattice import larger_batches, nearest_cell, neighbours

PLAIN = Size("n", 1e8, 1e10, (64.0, 128.0, 256.0), (1e-4, 2e-4, 5e-4))
FINE = Size("n", 1e8, 1e10, (64.0, 90.0, 128.0, 181.0, 256.0), (1e-4, 1.4e-4, 2e-4, 2.8e-4, 4e-4))


def test_an_inner_cell_has_the_four_next_cells():
    found = neighbours(PLAIN, (), Point("n", 128.0, 2e-4))
    assert {(p.batch_size, p.learning_rate) for p in found} == {
        (256.0, 2e-4),
        (64.0, 2e-4),
        (128.0, 5e-4),
        (128.0, 1e-4),
    }


def test_beyond_an_edge_the_last_step_is_repeated_and_batches_stay_whole():
    found = neighbours(PLAIN, (), Point("n", 256.0, 5e-4))
    assert (512.0, 5e-4) in {(p.batch_size, p.learning_rate) for p in found}
    assert pytest.approx(1.25e-3) in [p.learning_rate for p in found]
    odd = Size("n", 1e8, 1e10, (65.0, 131.0), (1e-4,))
    assert {p.batch_size for p in neighbours(odd, (), Point("n", 65.0, 1e-4))} >= {32.0}


def test_lines_nearer_than_a_factor_of_1_8_are_stepped_over():
    """Two runs so near differ by less than their noise."""
    found = neighbours(FINE, (), Point("n", 128.0, 2e-4))
    assert {p.batch_size for p in found} == {64.0, 128.0, 256.0}
    assert {p.learning_rate for p in found} == {1e-4, 2e-4, 4e-4}


def test_an_added_line_is_part_of_the_grid():
    added = Seen(Point("n", 512.0, 2e-4), wanted=1.0)
    found = neighbours(PLAIN, (added,), Point("n", 512.0, 2e-4))
    assert 1024.0 in {p.batch_size for p in found}


def test_a_single_value_has_neighbours_a_factor_of_two_away():
    line = Size("n", 1e8, 1e10, (64.0,), (1e-4, 2e-4))
    assert {p.batch_size for p in neighbours(line, (), Point("n", 64.0, 1e-4))} >= {32.0, 128.0}


def test_the_larger_batch_neighbours_include_the_diagonal_ones():
    found = larger_batches(PLAIN, (), Point("n", 128.0, 2e-4))
    assert {(p.batch_size, p.learning_rate) for p in found} == {
        (256.0, 1e-4),
        (256.0, 2e-4),
        (256.0, 5e-4),
    }
    assert larger_batches(PLAIN, (), Point("n", 256.0, 2e-4)) == frozenset()


def test_a_place_outside_the_grid_has_its_nearest_cell_on_the_edge():
    assert nearest_cell(PLAIN, -20.0, 20.0) == Point("n", 256.0, 1e-4)


def test_no_batch_is_larger_than_may_be_added_but_the_grids_own():
    short = replace(PLAIN, largest_batch_size=511.0)
    edge = Point("n", 256.0, 2e-4)
    assert {p.batch_size for p in neighbours(short, (), edge)} == {128.0, 256.0}
    assert 512.0 in {
        p.batch_size for p in neighbours(replace(short, largest_batch_size=512.0), (), edge)
    }
    shorter = replace(PLAIN, largest_batch_size=100.0)
    assert 256.0 in {p.batch_size for p in neighbours(shorter, (), Point("n", 128.0, 2e-4))}
