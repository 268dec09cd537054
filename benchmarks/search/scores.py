"""What each strategy cost in a sweep, what it answers there, and the lines of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.science.contenders import Answer, answering
from benchmarks.science.scores import GOOD, Score, record
from benchmarks.search.strategies import Searched
from benchmarks.search.sweeps import KnownSweep, Target
from isoloss.laws import FitOptions, Run, fit_laws
from isoloss_operator.planning.search_cost import MEASURED, PARALLELISM, MeasuredShare

EXHAUSTIVE, SEQUENTIAL = "Exhaustive", "Sequential"


@dataclass(frozen=True)
class Judged:
    """An answer at one target."""

    log_rate: float
    log_batch: float
    regret: float
    """Nats above the least loss."""
    held: tuple[bool, ...]
    """Of learning rate and batch size: whether the 80% interval, widened by the judge's own error, holds
    the optimum."""
    expected: float
    """Nats, of whole grids, before a loss was known."""
    reported: float
    """Nats, by the answer itself."""


@dataclass(frozen=True)
class Result:
    """Of one strategy in one sweep."""

    sweep: str
    place: str
    strategy: str
    share: float
    """FLOPs asked for, over those of the whole grids."""
    trained_share: float
    """FLOPs as far as the replayed runs went, over the same."""
    here: Judged | None
    """None: the laws refused."""
    beyond: Judged | None
    surrounded: bool
    """Whether points of the largest size lie on both sides of its optimum, in learning rate and in batch size."""
    places_checkpoints: bool
    """Whether there is a loss-compute law, by which a checkpoint's loss is turned into compute."""
    elapsed: tuple[float, ...] = ()
    """With each number of Jobs at a time of PARALLELISM, over the whole grids' with one; empty: not played in rounds."""


def judge(sweep: KnownSweep, strategy: str, searched: Searched, options: FitOptions) -> Result:
    """Fit what a strategy trained, and ask for the optimum at the largest size and beyond it."""
    laws = fit_laws(searched.runs, options)
    answer = answering(laws)
    beyond = sweep.beyond
    whole = sum(size.grid_flops for size in sweep.sizes)
    return Result(
        sweep.name,
        sweep.place,
        strategy,
        searched.flops / whole,
        searched.trained_flops / whole,
        _judged(answer, sweep, sweep.here),
        None if beyond is None else _judged(answer, sweep, beyond),
        _is_surrounded(sweep.here, searched.runs),
        laws.loss_compute.refusal is None,
        tuple(searched.elapsed(jobs) / whole for jobs in PARALLELISM) if searched.rounds else (),
    )


def _is_surrounded(target: Target, runs: Sequence[Run]) -> bool:
    tried = [
        (np.log(run.learning_rate), np.log(run.batch_size))
        for run in runs
        if run.params == target.params
    ]
    at = target.truth.vertex
    return bool(
        tried and np.all(np.min(tried, axis=0) < at) and np.all(at < np.max(tried, axis=0))
    )


def _judged(
    ask: Callable[[float, float], Answer | None], sweep: KnownSweep, target: Target
) -> Judged | None:
    answer = ask(target.params, target.tokens)
    if answer is None:
        return None
    score = Score()
    regret = record(score, answer, target.truth)
    assert regret is not None  # there is an answer
    held = tuple(bool(error <= 1.0) for error, _ in score.errors)
    before, after = sweep.expected_regret(target), answer.expected_regret
    return Judged(answer.log_rate, answer.log_batch, regret, held, before, after)


HEADER = (
    f"{'':38s} {'sweeps':>6s} {'FLOPs':>11s} {'trained':>7s} {'refused':>8s} {'instead':>8s} "
    f"{'added regret':>13s} {'beyond':>13s} {'d lnLR':>6s} {'d lnB':>6s} {'holds':>6s} {'elapsed':>9s} {'L(C)':>5s}"
)


def line(name: str, base: Sequence[Result], found: Sequence[Result]) -> str:
    """One strategy beside Exhaustive (`base`, the same sweeps in the same order).

    FLOPs as asked for are mean / worst, "trained" is the mean of those that the replay trained. "refused" counts sweeps that only Exhaustive answers, "instead" those that only this
    strategy answers. Added regrets are mean / worst in thousandths of a nat where both answer, at the largest
    size and beyond it; "d lnLR" and "d lnB" the mean distance of the answers; "holds" the share of optima
    inside the 80% intervals. "elapsed" is the time with the most Jobs of PARALLELISM over that of the whole grids, mean / worst, and
    "L(C)" counts sweeps with a loss-compute law.
    """
    here = [(a.here, b.here) for a, b in zip(base, found, strict=True) if a.here and b.here]
    beyond = [
        (a.beyond, b.beyond) for a, b in zip(base, found, strict=True) if a.beyond and b.beyond
    ]
    refused = sum(a.here is not None and b.here is None for a, b in zip(base, found, strict=True))
    instead = sum(a.here is None and b.here is not None for a, b in zip(base, found, strict=True))
    held = [held for b in found if b.here for held in b.here.held]
    shares = [result.share for result in found]
    times = [b.elapsed[-1] / a.elapsed[-1] for a, b in zip(base, found, strict=True)]
    return (
        f"{name:38s} {len(found):6d} {np.mean(shares):5.2f}/{np.max(shares):5.2f} "
        f"{np.mean([result.trained_share for result in found]):7.2f} {refused:8d} {instead:8d} {_added(here):>13s} {_added(beyond):>13s} "
        f"{_mean([abs(b.log_rate - a.log_rate) for a, b in here]):6.2f} "
        f"{_mean([abs(b.log_batch - a.log_batch) for a, b in here]):6.2f} {_mean(held):6.0%} "
        f"{np.mean(times):5.2f}/{np.max(times):.2f} {sum(b.places_checkpoints for b in found):5d}"
    )


def _added(pairs: Sequence[tuple[Judged, Judged]]) -> str:
    if not pairs:
        return "-"
    added = [1e3 * (b.regret - a.regret) for a, b in pairs]
    return f"{np.mean(added):.2f}/{np.max(added):.2f}"


def _mean(values: Sequence[float | bool]) -> float:
    return float(np.mean(values)) if values else float("nan")


def expected(name: str, found: Sequence[Result]) -> str:
    """Means of what whole grids were expected to lose, what answers say they lose and what they lose, thousandths of a nat, at the
    largest size and beyond it."""
    words = []
    for judged in ([r.here for r in found], [r.beyond for r in found]):
        nats = [
            (1e3 * each.expected, 1e3 * each.reported, 1e3 * each.regret)
            for each in judged
            if each
        ]
        words.append("{:.2f} / {:.2f} / {:.2f}".format(*np.mean(nats, axis=0)) if nats else "-")
    return f"{name}: regret expected of grids / reported / measured {words[0]}, beyond {words[1]}"


def mended(found: Sequence[Result]) -> str:
    """In how many windows whose optimum is on the edge or outside the search went past it, and how it then answers."""
    outside = [result for result in found if result.place in ("edge", "outside")]
    good = sum(result.here is not None and result.here.regret <= GOOD for result in outside)
    wrong = sum(result.here is not None and result.here.regret > GOOD for result in outside)
    surrounded = sum(result.surrounded for result in outside)
    return (
        f"optimum on the edge or beyond it, two lines at most: {surrounded} of {len(outside)} have points on "
        f"all sides of it in the end; {good} answered within {GOOD:g} nats, {wrong} answered worse, {len(outside) - good - wrong} refused"
    )


def placing(base: Sequence[Result], found: Sequence[Result]) -> str:
    """In how many sweeps the laws of a strategy can place checkpoints, beside Exhaustive (`base`)."""
    either = [
        (a.places_checkpoints, b.places_checkpoints) for a, b in zip(base, found, strict=True)
    ]
    return (
        f"loss-compute laws, by which checkpoints are placed: {sum(a for a, _ in either)} of {len(either)} of "
        f"{EXHAUSTIVE}, {sum(b for _, b in either)} of {SEQUENTIAL}, which lacks {either.count((True, False))} of those"
    )


# --------------------------------------------------------------------------------------- elapsed time


GRIDS: dict[str, MeasuredShare] = {f"{each.lines}x{each.lines}": each for each in MEASURED}
"""By the size of the grids, as sweeps are named."""


def elapsed_table(base: Sequence[Result], found: Sequence[Result]) -> Iterator[str]:
    """By grid size: Jobs at work on average, and elapsed time over that of the whole grids (`base`), mean / worst.

    Jobs at work are mean FLOPs over mean elapsed time, so that their quotient is the mean elapsed time again. The
    last line is the time that `isoloss plan` expects over the time taken: median and the middle 80%.
    """
    yield f"{'Jobs at a time':38s}" + "".join(f"{jobs:18d}" for jobs in PARALLELISM)
    for grids in (*GRIDS, ""):
        pairs = [(a, b) for a, b in zip(base, found, strict=True) if grids in b.sweep]
        if pairs:
            yield from _rows(grids or "all", [a for a, _ in pairs], [b for _, b in pairs])
    expected = [_expected(each) / np.array(each.elapsed) for each in found]
    yield _row(
        "all: expected over taken",
        [
            f"{middle:.2f} ({low:.2f}-{high:.2f})"
            for low, middle, high in np.percentile(expected, (10, 50, 90), axis=0).T
        ],
    )


def _rows(name: str, base: Sequence[Result], found: Sequence[Result]) -> Iterator[str]:
    took = np.array([each.elapsed for each in found])
    at_work = np.mean([each.share for each in found]) / took.mean(axis=0)
    yield _row(f"{name}: at work", [f"{each:.1f}" for each in at_work])
    ratios = took / np.array([each.elapsed for each in base])
    yield _row(
        f"{name}: elapsed over the whole grids'",
        [
            f"{mean:.2f}/{worst:.2f}"
            for mean, worst in zip(ratios.mean(axis=0), ratios.max(axis=0), strict=True)
        ],
    )


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:38s}" + "".join(f"{cell:>18s}" for cell in cells)


def _expected(search: Result) -> np.ndarray:
    """By PARALLELISM, over the whole grids' time with one Job at a time."""
    measured = next(GRIDS[name] for name in GRIDS if name in search.sweep)
    return np.array([measured.mean / measured.jobs_at_work(jobs) for jobs in PARALLELISM])
