"""Least squares with a level for each group are those with a column for each level."""

import tracemalloc

import numpy as np
import pytest

from isoloss.laws.least_squares import Levelled, weighted_solver

RNG = np.random.default_rng(5)
GROUP = np.repeat(np.arange(4), [3, 5, 4, 8])
WEIGHTS = RNG.uniform(0.1, 2.0, len(GROUP))
DESIGN = RNG.standard_normal((len(GROUP), 3))
VALUES = RNG.standard_normal(len(GROUP))
LEVELS = np.eye(4)[GROUP]


def test_solver_and_residuals_are_those_of_a_fit_with_a_column_for_each_level() -> None:
    whole = np.concatenate([DESIGN, LEVELS], axis=1)
    expected = weighted_solver(whole, WEIGHTS)
    levelled = Levelled(GROUP, WEIGHTS)
    solver = levelled.solver(DESIGN)
    assert solver == pytest.approx(expected[:3], abs=1e-12)
    left = levelled.without_levels(VALUES - DESIGN @ (solver @ VALUES))
    assert left == pytest.approx(VALUES - whole @ (expected @ VALUES), abs=1e-12)


def test_columns_that_are_the_same_throughout_a_group_are_no_unknowns() -> None:
    """Such as terms of ln N in a sweep of one size; a coefficient that nothing shows is 0."""
    constant = np.column_stack([DESIGN, np.array([1.0, 2.0, -1.0, 0.5])[GROUP]])
    levelled = Levelled(GROUP, WEIGHTS)
    assert levelled.unknowns(DESIGN) == 3 + 4
    assert levelled.unknowns(constant) == 3 + 4
    assert levelled.solver(constant)[3] == pytest.approx(np.zeros(len(GROUP)), abs=1e-9)


@pytest.mark.parametrize("unseen", [0, 2])
def test_many_points_give_the_same_solver_and_take_memory_twice(unseen: int) -> None:
    """Once for columns without levels, once for the solver; `unseen` columns follow from the others."""
    points = 20_000
    group, weights = RNG.integers(0, 50, points), RNG.uniform(0.1, 2.0, points)
    design = RNG.standard_normal((points, 8))
    design = np.concatenate([design, design @ RNG.standard_normal((8, unseen))], axis=1)
    levelled, root = Levelled(group, weights), np.sqrt(weights)
    columns = levelled.without_levels(design) * root[:, None]
    tracemalloc.start()
    solver = levelled.solver(design[:, :3], design[:, 3:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * design.nbytes
    assert solver == pytest.approx(np.linalg.pinv(columns, rcond=1e-9) * root, rel=1e-9, abs=1e-14)
    assert levelled.unknowns(design) == 8 + 50
