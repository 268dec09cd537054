"""What a search wants next. Pure: the same observations give the same step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from isoloss import laws as engine
from isoloss.search import model
from isoloss.search.belief import Belief
from isoloss.search.plan import Choice, default_target, plan
from isoloss.usual import FEWEST_RUNS, FEWEST_SIZES

FEWEST_AT_A_TIME, OF_JOBS = 3, 1 / 3
"""Points that go on where the laws refuse an answer, although none is worth its cost: so many, or this share of the Jobs. Three of 16
take 1.01 of the whole grid's time, five 0.94, for the same FLOPs."""

LEAST_SAVING = 0.1
"""Of its cost, that one of these points is expected to save, or the search is over: in 84 replays further ones gave two more laws, and a
grid far from its optima would be trained to its end in vain."""


def next_step(
    sizes: Sequence[model.Size], seen: Sequence[model.Seen], options: model.SearchOptions
) -> model.Step:
    """The next decisions, or why the search is over.

    Nothing is decided before everything that runs has reached its tokens. Points of the grid that were never wanted may be left out of
    `seen`; the others are of sizes among `sizes`, which have a name each. Raises ValueError for no size, and InvalidRunError if a run's numbers are impossible.
    """
    if not sizes:
        raise ValueError("sizes: at least one is needed")
    state = _State.of(sizes, seen, options)
    if any(not s.closed and s.tokens < model.REACHED * s.wanted for s in state.seen.values()):
        return model.Step()
    belief = Belief.of(state.sizes, list(state.seen.values()), options.fit)
    target = options.target or default_target(state.sizes)
    found = plan(belief, state.seen, state.additions_left, target)
    if not any(s.wanted for s in state.seen.values()) and (
        least := state.least((*found.worth, *found.rest))
    ):
        return least
    if state.all_diverged:
        # Where the cheapest size diverges, the others do.
        own = [choice for choice in found.worth if choice.point.size == state.sizes[0].name]
        most, stop = FEWEST_RUNS, model.StopReason.ALL_DIVERGED
        return state.step(own, most, model.Reason.LOWERS_REGRET) if own else model.Step(stop=stop)
    if found.worth:
        return state.step(found.worth, options.jobs, model.Reason.LOWERS_REGRET)
    # Laws of one size answer nothing, however far it is trained.
    if found.rest and (len(state.sizes) < FEWEST_SIZES or _answers(state)):
        reason, best = model.StopReason.NOT_WORTH_ITS_COST, found.rest[0]
        return model.Step(stop=reason, next_flops=state.cost(best)[0], next_saves=best.saves)
    if not any(choice.saves >= LEAST_SAVING * choice.flops for choice in found.rest):
        return model.Step(stop=model.StopReason.NOTHING_LEFT)
    most = max(FEWEST_AT_A_TIME, int(options.jobs * OF_JOBS))
    return state.step(found.rest, most, model.Reason.COMPLETES_LAWS)


@dataclass(frozen=True)
class _State:
    """A search at one moment."""

    sizes: tuple[model.Size, ...]
    """Cheapest first."""
    seen: dict[model.Point, model.Seen]
    """In the order of their points."""
    options: model.SearchOptions

    @staticmethod
    def of(
        sizes: Sequence[model.Size], seen: Sequence[model.Seen], options: model.SearchOptions
    ) -> _State:
        """Sorted, so that the order in which a caller gives things does not matter."""
        ordered = sorted(sizes, key=lambda size: (size.point_flops, size.name))
        known = {s.point: s for s in sorted(seen, key=lambda s: s.point)}
        return _State(tuple(ordered), known, options)

    @property
    def additions_left(self) -> int:
        """How many more points beyond the grids may be added."""
        grids = {point for size in self.sizes for point in size.points}
        return max(self.options.max_added_points - len(self.seen.keys() - grids), 0)

    @property
    def all_diverged(self) -> bool:
        """Whether every run did."""
        runs = [s for s in self.seen.values() if s.run is not None]
        return bool(runs) and all(s.diverged for s in runs)

    @property
    def runs(self) -> list[engine.Run]:
        """All trajectories; those of points that did not come to their end are marked so."""
        return [
            replace(s.run, finished=s.tokens >= model.REACHED * self._size_of(point).tokens)
            for point, s in self.seen.items()
            if s.run is not None and len(s.run.tokens)
        ]

    def step(self, choices: Iterable[Choice], most: int, reason: model.Reason) -> model.Step:
        """The first of these for which the budget leaves room, one of a point at the most: its later rungs are decided on once it
        has come to the first."""
        decided = dict[model.Point, model.Decision | None]()
        additions, budget = self.additions_left, self._budget
        for choice in choices:
            if sum(each is not None for each in decided.values()) == most:
                break
            if choice.point in decided or (choice.added and not additions):
                continue
            flops, seconds = self.cost(choice)
            if not budget.covers(flops, seconds):
                decided[choice.point] = None
                continue
            budget, additions = budget.without(flops, seconds), additions - choice.added
            decided[choice.point] = model.Decision(
                choice.point,
                choice.tokens,
                self._reason(reason, choice),
                choice.added,
                flops,
                choice.saves,
            )
        decisions = tuple(decision for decision in decided.values() if decision is not None)
        if not decisions:
            return model.Step(stop=model.StopReason.BUDGET_EXHAUSTED)
        return model.Step(decisions)

    def least(self, choices: Iterable[Choice]) -> model.Step | None:
        """That the search ends before it begins, as the budget does not cover what any law takes: runs that show a minimum, of sizes
        that show a trend. None: it does."""
        needed = dict.fromkeys((size.name for size in self.sizes), FEWEST_RUNS)
        sizes = min(FEWEST_SIZES, len(self.sizes))
        points = set[model.Point]()
        flops = seconds = 0.0
        for choice in choices:
            if choice.point in points:
                continue
            points.add(choice.point)
            needed[choice.point.size] -= 1
            more = self.cost(choice)
            flops, seconds = flops + more[0], seconds + more[1]
            if sum(count <= 0 for count in needed.values()) >= sizes:
                break
        if self._budget.covers(flops, seconds):
            return None
        return model.Step(
            stop=model.StopReason.BUDGET_EXHAUSTED,
            least_flops=flops,
            least_seconds=seconds if seconds > self._budget.seconds else None,
        )

    @property
    def _budget(self) -> _Budget:
        flops, seconds = self.options.budget_flops, self.options.seconds_left
        spent = sum(self._size_of(point).token_flops * s.tokens for point, s in self.seen.items())
        return _Budget(
            math.inf if flops is None else flops - spent, math.inf if seconds is None else seconds
        )

    def _reason(self, reason: model.Reason, choice: Choice) -> model.Reason:
        if not choice.added or reason is not model.Reason.LOWERS_REGRET:
            return reason
        return model.Reason.BELOW_DIVERGED if self.all_diverged else model.Reason.BEYOND_EDGE

    def cost(self, choice: Choice) -> tuple[float, float]:
        """FLOPs and accelerator seconds."""
        size, seen = self._size_of(choice.point), self.seen.get(choice.point)
        tokens = size.trained_tokens(choice.point.batch_size, choice.tokens)
        flops = size.token_flops * max(tokens - (seen.tokens if seen else 0.0), 0.0)
        return flops, flops * (size.seconds_per_flop or 0.0)

    def _size_of(self, point: model.Point) -> model.Size:
        return next(size for size in self.sizes if size.name == point.size)


@dataclass(frozen=True)
class _Budget:
    """What is left of it."""

    flops: float
    seconds: float

    def covers(self, flops: float, seconds: float) -> bool:
        """Whether so much may be spent."""
        return flops <= self.flops and seconds <= self.seconds

    def without(self, flops: float, seconds: float) -> _Budget:
        """After that."""
        return _Budget(self.flops - flops, self.seconds - seconds)


def _answers(state: _State) -> bool:
    """Whether the laws answer at the largest size and its tokens, and place a checkpoint."""
    runs, size = state.runs, state.sizes[-1]
    if not runs:
        return False
    laws = engine.fit_laws(runs, state.options.fit)
    # `Size.flops_per_token` is what budgets count; runs of a table may be counted otherwise.
    nearest = min(runs, key=lambda run: abs(math.log(run.params / size.params)))
    counted = nearest.flops_per_token or 6.0 * nearest.params
    per_token = counted * size.params / nearest.params
    query = engine.PredictionQuery(
        total_flops=per_token * size.tokens, params=size.params, flops_per_token=per_token
    )
    answer = engine.predict(laws, query)
    return isinstance(answer, engine.Prediction) and laws.loss_compute.refusal is None
