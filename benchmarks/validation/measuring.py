"""Trains the sweep, the grid about its answer and the probes of displaced answers, as far as they are not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measured_optimum import Optimum
from benchmarks.study import Say
from benchmarks.transfer.design import Grid
from benchmarks.transfer.judging import widened
from benchmarks.validation.courses import Course
from benchmarks.validation.design import LINES, OWN, THRICE, Lattice, Shift
from benchmarks.validation.judging import Question, Runs, budget, losses_by_place, truth
from benchmarks.validation.running import TrainingPool
from benchmarks.validation.training import Asked, ProbePlan, Workshop
from isoloss.laws import Run
from isoloss.validation import Place


@dataclass(frozen=True)
class Probed:
    """Probes of one length."""

    plan: ProbePlan
    runs: Runs
    """Of the grid's places, and of those about displaced answers."""


@dataclass(frozen=True)
class Measured:
    """All runs."""

    question: Question
    """With the shortest probes."""
    grid: Grid
    probes: tuple[Probed, ...]
    """Shortest first."""
    ends: Runs
    """At the budget: of the grid's places."""
    crosses: tuple[tuple[Shift, tuple[Place, ...]], ...]
    """The five places about each answer."""
    inner: tuple[tuple[Shift, tuple[Place, ...]], ...]
    """The same about the other places of the grid that have all four neighbours."""


class Bench:
    """Trains what a question needs, in rounds."""

    def __init__(
        self, workshop: Workshop, pool: TrainingPool, seeds: Sequence[int], say: Say
    ) -> None:
        self._workshop, self._pool, self._seeds, self._say = workshop, pool, seeds, say

    def measure(self) -> Measured:
        """Raises Interrupted, after saving, once a stop is requested, and NoAnswer."""
        self._train(self._workshop.sweep_courses(), "sweep")
        asked = self._workshop.asked()
        answer, plans = asked.answer, self._workshop.probe_plans(asked)
        stops = tuple(plan.tokens for plan in plans)
        self._say(
            f"answer: learning rate {answer.learning_rate.value:.3g}, {answer.batch_size.value:.0f} sequences; "
            f"probes of {' and '.join(f'{tokens:,}' for tokens in stops)} tokens"
        )
        lattice = Lattice(self._cross(asked, OWN)[0], self._workshop.factor)
        grid, (*probes, ends) = self._grid(lattice, (*stops, self._workshop.budget_tokens))
        optimum = truth(ends, budget(ends))
        shifts = (OWN, _onto(asked, optimum), *THRICE)
        crosses = tuple((shift, self._cross(asked, shift)) for shift in shifts)
        places = list(dict.fromkeys(place for _, cross in crosses for place in cross))
        displaced = self._read(places, stops, "probes")
        probed = tuple(
            Probed(plan, {seed: runs[seed] | more[seed] for seed in runs})
            for plan, runs, more in zip(plans, probes, displaced, strict=True)
        )
        inner = ((_named(lattice, point.i, point.j), point) for point in lattice.interior(grid))
        return Measured(
            question=Question(
                asked.laws, asked.query, answer, plans[0].flops, self._workshop.tolerance
            ),
            grid=grid,
            probes=probed,
            ends=ends,
            crosses=crosses,
            inner=tuple((shift, lattice.cross(point)) for shift, point in inner),
        )

    def _cross(self, asked: Asked, shift: Shift) -> tuple[Place, ...]:
        answer = shift.of(asked.answer)
        return self._workshop.cross(answer.learning_rate.value, answer.batch_size.value)

    def _grid(
        self, lattice: Lattice, stops: tuple[int, ...]
    ) -> tuple[Grid, list[dict[int, dict[Place, Run]]]]:
        """A grid that has the optimum inside, its runs at each stop."""
        grid = lattice.first_grid()
        while True:
            places = [lattice.at(point.i, point.j) for point in grid.places()]
            ends = self._read(places, stops, "grid")[-1]
            larger = grown(grid, lattice, ends)
            if larger == grid:
                break
            grid = larger
            self._say("the lowest run lies on the grid's edge: one line more")
        finer = lattice.finer(truth(ends, budget(ends)).vertex)
        return grid, self._read(list(dict.fromkeys([*places, *finer])), stops, "finer grid")

    def _read(
        self, places: Sequence[Place], stops: tuple[int, ...], what: str
    ) -> list[dict[int, dict[Place, Run]]]:
        """Runs at each stop, by seed and place."""
        runs = self._runs(places, stops, what)
        return [
            {
                seed: {place: each[k] for place, each in found.items()}
                for seed, found in runs.items()
            }
            for k in range(len(stops))
        ]

    def _runs(
        self, places: Sequence[Place], stops: tuple[int, ...], what: str
    ) -> dict[int, dict[Place, list[Run]]]:
        """Runs at each stop, by seed and place."""
        courses = {seed: self._workshop.continued(places, seed, stops) for seed in self._seeds}
        self._train([course for each in courses.values() for course in each], what)
        return {
            seed: {
                place: self._workshop.courses.runs(course)
                for place, course in zip(places, each, strict=True)
            }
            for seed, each in courses.items()
        }

    def _train(self, courses: Iterable[Course], what: str) -> None:
        missing = [course for course in courses if not self._workshop.courses.is_trained(course)]
        if missing:
            self._pool.train(missing, what, self._say)


def grown(grid: Grid, lattice: Lattice, ends: Runs) -> Grid:
    """With a line more on each side where the lowest run lies on the edge."""
    losses = losses_by_place(ends, budget(ends))
    points = {lattice.at(point.i, point.j): point for point in grid.places()}
    best = min(losses, key=lambda place: float(losses[place].mean()))
    return widened(grid, [points[best]], LINES)


def _onto(asked: Asked, optimum: Optimum) -> Shift:
    """What makes the answer the measured optimum."""
    rate, batch = np.exp(optimum.vertex)
    answer = asked.answer
    return Shift(
        "the measured optimum",
        float(rate) / answer.learning_rate.value,
        float(batch) / answer.batch_size_raw,
    )


def _named(lattice: Lattice, i: int, j: int) -> Shift:
    rate, batch = lattice.factor**i, lattice.factor**j
    return Shift(f"{rate:g} x LR, {batch:g} x B", rate, batch)
