"""The judge of both routes: cells that neither was shown, each weighted by how well it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks.science.cases import planted_case
from benchmarks.science.shapes import WIDE
from isoloss.laws.arrays import Array
from isoloss.laws.data.trajectories import Trajectory, collect
from isoloss.laws.estimates import OptimumDraws, Target
from isoloss.laws.held_out import HeldOutCell, held_out_scores, judged_cells, split
from isoloss.laws.model import FitOptions, Refusal, RefusalReason, Route
from isoloss.usual import SEED_NOISE

OPTIONS = FitOptions(bootstrap_samples=20)


@dataclass(frozen=True)
class Told:
    """An estimate that misses the planted optimum by as much as it is told."""

    route: Route
    misses: float
    """In ln LR, everywhere; …"""
    misses_early: float | None = None
    """… or, where it is given, before a quarter of the largest size's tokens."""
    refusal: Refusal | None = None
    draws: int = 0

    def answer(self, target: Target) -> OptimumDraws:
        assert target.log_params is not None
        assert target.log_tokens is not None
        n, d = np.exp(float(target.log_params)), np.exp(float(target.log_tokens))
        early = self.misses_early is not None and d < 0.25 * WIDE.tokens[-1]
        off = self.misses_early if early else self.misses
        rate, batch = TRUTH.rate(n, d), TRUTH.batch(n, d)
        return OptimumDraws(np.array([np.log(rate) + off]), np.array([np.log(batch)]))

    def refit(self, trajectories: Sequence[Trajectory], options: FitOptions) -> Told:
        assert all(t.params < WIDE.sizes[-1] for t in trajectories), "the largest size is held out"
        return self


CASE = planted_case("exact", WIDE, 0)
TRUTH = CASE.targets[0][2].truth  # type: ignore[attr-defined]
TRAJECTORIES = collect(CASE.runs).trajectories


def test_early_cells_count_in_the_regret_and_not_in_the_stated_errors() -> None:
    surface = Told("surface", 0.0, misses_early=1.5)
    (score,) = held_out_scores(TRAJECTORIES, (surface,), OPTIONS)
    assert score.log_learning_rate_error < 0.3
    assert score.regret_max > 0.01
    assert score.regret_mean > SEED_NOISE


def test_a_route_that_could_not_be_fitted_is_not_judged() -> None:
    refusal = Refusal(RefusalReason.TOO_FEW_RUNS, "none", {})
    iso_loss = Told("iso-loss", 0.0, refusal=refusal)
    (score,) = held_out_scores(TRAJECTORIES, (iso_loss, Told("surface", 0.8)), OPTIONS)
    assert score.route == "surface"


def test_cells_are_judged_where_they_have_a_minimum_inside_their_grid() -> None:
    _, held_out = split(TRAJECTORIES)
    assert {t.params for t in held_out} == {WIDE.sizes[-1]}
    every, late = judged_cells(held_out)
    assert 0 < len(late) < len(every)
    assert min(c.log_tokens for c in late) > np.log(0.4 * WIDE.tokens[-1])
    for cell in late:
        n, d = np.exp(cell.log_params), np.exp(cell.log_tokens)
        true = np.log([TRUTH.rate(n, d), TRUTH.batch(n, d)])
        assert np.all(np.abs(cell.vertex - true) < 4.0 * np.sqrt(cell.variance) + 0.05)


def cost(cell: HeldOutCell, moved: Sequence[float]) -> float:
    at: Array = cell.vertex + np.array(moved)
    return cell.regret(float(at[0]), float(at[1]))


def test_a_judged_cell_charges_nothing_at_its_own_optimum_and_nats_elsewhere() -> None:
    cell = judged_cells(split(TRAJECTORIES)[1]).late[-1]
    assert cost(cell, (0.0, 0.0)) == pytest.approx(0.0, abs=1e-9)
    n, d = np.exp(cell.log_params), np.exp(cell.log_tokens)
    rate, batch = TRUTH.rate(n, d), TRUTH.batch(n, d)
    dearer = TRUTH.loss(n, d, batch, rate * np.exp(0.5)) - TRUTH.loss(n, d, batch, rate)
    assert cost(cell, (0.5, 0.0)) == pytest.approx(dearer, rel=0.4)
