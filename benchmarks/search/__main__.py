"""Sequential search against training everything.

    python -m benchmarks.search [DATA_FOLDER] [--quick] [--sweeps N] [--jobs 1] [--seeds 2] [--draw 0] [--parallelism 16] [--targets]

Sweeps are windows of the published sweeps (found as bench-science finds them; without them the synthetic ones
remain) and synthetic surfaces with trajectories and noise. Both are charged for the tokens that they
ask for, over what the whole grids cost, and judged by the law engine's answer from what they trained: at the
largest size and its tokens, and beyond (synthetic: at 10 times the compute; published: the dearest cell of a
larger size, at most 10 times as dear). Exhaustive does not extend the grid.

Published sweeps have final losses only, one run per token count. Runs of one configuration on fewer tokens
stand in for its trajectory, which has thus two to four evaluations that scatter as runs do, and a point stops at
published token counts only: at the next one after what was asked for. Nothing between is made up. So a search sees
more than it is charged for, by up to 70% of a point's tokens, and a second column has what was trained: the truth is between
the two, and synthetic surfaces, where runs stop anywhere, show where. Cells that no table has are charged to all strategies as if
they had been trained. A size costs 1.8 times the one before or more, except where all sizes are taken.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.science.tables import DENSE, MOE, data_folder, load, tell_missing
from benchmarks.search import scores, strategies, targets
from benchmarks.search.published import replay, replayed_sweeps
from benchmarks.search.sweeps import KnownSweep, synthetic_sweeps
from isoloss.laws import FitOptions
from isoloss.search import SearchOptions

QUICK_EVERY = 24
"""Of the synthetic sweeps, how many a quick run skips to the next."""
ADDED_PER_SIZE = 6
"""Points that a search may add for each size: what sizes without a grid get by default."""
JOBS = 16
"""At a time."""


def all_sweeps(data: str | None, seeds: int, draw: int = 0) -> Iterator[KnownSweep]:
    """Published windows where the tables are at hand, then synthetic surfaces; another `draw` has other ones."""
    folder = data_folder(data)
    for name, file in (("dense", DENSE), ("mixtures", MOE)):
        if (folder / file).exists():
            yield from replayed_sweeps(replay(name, load(folder / file)), draw)
    yield from synthetic_sweeps(range(draw * seeds, (draw + 1) * seeds))


def compare(sweep: KnownSweep, jobs: int = JOBS, samples: int = 60) -> list[scores.Result]:
    """Both in one sweep."""
    fit = FitOptions(bootstrap_samples=samples)
    additions = ADDED_PER_SIZE * len(sweep.sizes)
    options = SearchOptions(max_added_points=additions, jobs=jobs, fit=fit)
    ways = {
        scores.EXHAUSTIVE: strategies.exhaustive(sweep),
        scores.SEQUENTIAL: strategies.sequential(options)(sweep),
    }
    return [scores.judge(sweep, name, way, fit) for name, way in ways.items()]


def table(results: Sequence[Sequence[scores.Result]]) -> Iterator[str]:
    """The lines: over all sweeps but those whose optimum is outside, then by kind."""
    yield scores.HEADER
    within = [r for r in results if r[0].place != "outside"]
    for group in ("dense", "mixtures", "synthetic", ""):
        yield from _line_of(group or "all", [r for r in within if group in r[0].sweep])
    answered = [r for r in results if r[0].here is not None]
    yield from _line_of("where Exhaustive answers", answered)
    yield from _line_of("where Exhaustive refuses", [r for r in results if r[0].here is None])
    for place in ("inside", "near", "edge", "outside"):
        yield from _line_of(f"optimum {place}", [r for r in results if r[0].place == place])
    for word in (*scores.GRIDS, *(f" {count} sizes" for count in (2, 3, 4, 5)), "0.0015", "0.004"):
        yield from _line_of(word.strip(), [r for r in within if word in r[0].sweep])
    for group in ("dense", "mixtures", "synthetic"):
        for at, strategy in enumerate((scores.EXHAUSTIVE, scores.SEQUENTIAL)):
            own = [r[at] for r in within if group in r[0].sweep]
            yield scores.expected(f"{group}, {strategy}", own)
    yield scores.mended([r[1] for r in results])
    yield scores.placing([r[0] for r in results], [r[1] for r in results])
    yield from scores.elapsed_table([r[0] for r in within], [r[1] for r in within])


def _line_of(name: str, results: Sequence[Sequence[scores.Result]]) -> Iterator[str]:
    if results:
        yield scores.line(name, [r[0] for r in results], [r[1] for r in results])


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--quick", action="store_true", help="a few synthetic sweeps, in seconds")
    parser.add_argument("--sweeps", type=int, help="only so many, drawn at random")
    parser.add_argument("--jobs", type=int, default=1, help="sweeps at a time")
    parser.add_argument("--seeds", type=int, default=2, help="synthetic sweeps of each kind")
    parser.add_argument("--draw", type=int, default=0, help="another draw of windows and seeds")
    parser.add_argument("--parallelism", type=int, default=JOBS, help="Jobs of a sweep at a time")
    parser.add_argument("--targets", action="store_true", help="what targets are worth, instead")
    given = parser.parse_args()
    if given.targets:
        with ProcessPoolExecutor(given.jobs) as pool:
            print("\n".join(targets.table(pool, given.seeds)))
        return 0
    judged = partial(compare, jobs=given.parallelism)
    code = tell_missing(given.data)
    if given.quick:
        chosen = islice(synthetic_sweeps(range(given.seeds)), 0, None, QUICK_EVERY)
        print("\n".join(table([judged(sweep) for sweep in chosen])))
        return code
    sweeps = list(all_sweeps(given.data, given.seeds, given.draw))
    random.Random(0).shuffle(sweeps)  # so that a part of them is a fair sample
    with ProcessPoolExecutor(given.jobs) as pool:
        results = list(pool.map(judged, sweeps[: given.sweeps]))
    print("\n".join(table(results)))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
