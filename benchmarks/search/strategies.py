"""The whole grid, and a search: each trains points of a sweep and returns what it has seen.

Both pay for what they ask for: 6 N times the tokens. What a replay trained is more where a published sweep has
no evaluation there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from benchmarks.search.sweeps import KnownSweep
from isoloss.laws import Run
from isoloss.search import Point, SearchOptions, Seen, Step, next_step
from isoloss_operator.planning.flops import elapsed

MOST_STEPS = 400
FINISHED = 0.99


@dataclass(frozen=True)
class Searched:
    """What a strategy trained."""

    runs: tuple[Run, ...]
    flops: float
    """As asked for."""
    trained_flops: float
    """As far as the runs went."""
    rounds: tuple[tuple[float, ...], ...] = ()
    """FLOPs asked for by each Job of each round, for a strategy that is played in rounds.

    A round is decided when everything of the round before has come as far as it was to: its slowest Job holds up
    the next.
    """

    def elapsed(self, jobs: int) -> float:
        """Time from the first Job's start to the last one's end with so many at a time, in FLOPs of one Job.

        Starting a Job, and fitting laws between rounds, takes no time here.
        """
        return sum(elapsed(flops, jobs) for flops in self.rounds)


Strategy = Callable[[KnownSweep], Searched]


class _Trained:
    """What has been trained of a sweep so far."""

    def __init__(self, sweep: KnownSweep) -> None:
        self.sweep = sweep
        self.runs: dict[Point, Run] = {}
        self.asked: dict[Point, float] = {}
        """Tokens; of runs that diverged, those that they reached. Cells that are not published are charged like
        any other, as they would be in a sweep."""

    def train(self, point: Point, share: float) -> bool:
        """Whether the point exists and has a usable run of this share of its size's tokens."""
        size = self.sweep.size_of(point)
        run = self.sweep.train(point, share * size.tokens)
        if run is None:
            self.asked[point] = share * size.tokens
            return False
        self.runs[point] = replace(run, finished=bool(run.tokens[-1] >= FINISHED * size.tokens))
        self.asked[point] = min(share * size.tokens, float(run.tokens[-1]))
        return not run.diverged

    def flops(self, point: Point) -> float:
        """Asked for so far; 0 of a point that was never trained."""
        return 6.0 * self.sweep.size_of(point).params * self.asked.get(point, 0.0)

    def result(self, rounds: Iterable[tuple[float, ...]] = ()) -> Searched:
        runs = tuple(self.runs[point] for point in sorted(self.runs))
        asked = sum(self.flops(point) for point in sorted(self.asked))
        unpublished = sum(self.flops(point) for point in sorted(self.asked.keys() - self.runs))
        trained = float(sum(6.0 * run.params * run.tokens[-1] for run in runs)) + unpublished
        return Searched(runs, asked, trained, tuple(rounds))


def exhaustive(sweep: KnownSweep) -> Searched:
    """Every point of the grids to its end."""
    trained = _Trained(sweep)
    points = [point for size in sweep.sizes for point in size.points]
    for point in points:
        trained.train(point, 1.0)
    return trained.result([tuple(trained.flops(point) for point in points)])


def sequential(options: SearchOptions) -> Strategy:
    """isoloss.search, every step carried out in full."""

    def search(sweep: KnownSweep) -> Searched:
        trained, seen = _Trained(sweep), dict[Point, Seen]()
        rounds: list[tuple[float, ...]] = []
        for _ in range(MOST_STEPS):
            step = next_step(sweep.sizes, list(seen.values()), options)
            if step.stop is not None:
                return trained.result(rounds)
            rounds.append(follow(step, trained, seen))
        raise RuntimeError(f"the search of {sweep.name} does not end")

    return search


def follow(step: Step, trained: _Trained, seen: dict[Point, Seen]) -> tuple[float, ...]:
    """Carry out a step, and return what each of its Jobs asked for, FLOPs: what cannot be trained has failed."""
    asked = []
    for decision in step.decisions:
        point = decision.point
        share = decision.tokens / trained.sweep.size_of(point).tokens
        earlier = trained.flops(point)
        trained.train(point, share)
        asked.append(trained.flops(point) - earlier)
        run = trained.runs.get(point)
        seen[point] = Seen(point, run, decision.tokens, failed=run is None)
    return tuple(asked)
