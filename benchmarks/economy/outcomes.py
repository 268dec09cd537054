"""A design on one sweep, and what came of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.science.cases import Truth
from isoloss.laws import Laws, PredictionQuery, Refused, predict

CAPS = (0.01, 0.02, 0.05, 0.10, 0.25, 0.50)
"""Of the cost, as shares of the target's FLOPs, whole grids counted."""
PUBLISHED_CAPS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The same on published sweeps."""


@dataclass(frozen=True)
class Outcome:
    """One answer of one design at one target."""

    design: int
    """Which one: answers of one design are not independent."""
    cost: float
    """FLOPs of all its runs over the target's."""
    expected: float
    """Nats, before a loss was known."""
    size: float
    """Parameters of its largest size, …"""
    spacing: float
    """… over those of its smallest."""
    reported: float | None = None
    """Nats that the answer itself says; None: it was refused."""
    measured: float | None = None
    """Nats above the least loss at the target."""


def asked(
    without_answer: Outcome, laws: Laws | None, target: tuple[float, float], truth: Truth
) -> Outcome:
    """With what the laws answer at (N, D); laws that could not be fitted are a refusal."""
    n, d = target
    query = PredictionQuery(total_flops=6.0 * n * d, params=n)
    answer = None if laws is None else predict(laws, query)
    if answer is None or isinstance(answer, Refused):
        return without_answer
    regret = truth.regret(answer.learning_rate.value, answer.batch_size_raw)
    return replace(without_answer, reported=answer.expected_regret, measured=regret)


def table(groups: Iterable[tuple[str, Sequence[Outcome]]]) -> list[str]:
    """Expected beside measured regret, thousandths of a nat, in the mean over answers."""
    lines = [
        "| sweeps | designs | answers | refused | measured | expected before | reported after | expected / measured |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, found in groups:
        answered = [each for each in found if each.measured is not None]
        if not answered:
            continue
        measured, expected, reported = (
            1e3 * float(np.mean([getattr(each, part) for each in answered]))
            for part in ("measured", "expected", "reported")
        )
        lines.append(
            f"| {name} | {len({each.design for each in found})} | {len(answered)} | {len(found) - len(answered)} "
            f"| {measured:.2f} | {expected:.2f} | {reported:.2f} | {expected / measured:.2f} |"
        )
    return lines


def best_within(found: Sequence[Outcome], cap: float) -> Outcome | None:
    """The design that is expected to lose least of those that cost no more, at one target."""
    allowed = [each for each in found if each.cost <= cap]
    return min(allowed, key=lambda each: each.expected, default=None)


def mean_line(name: str, chosen: Sequence[Outcome]) -> str:
    """A row of the frontier: mean cost, expected and measured regret over targets."""
    answered = [each for each in chosen if each.measured is not None]
    cost = float(np.mean([each.cost for each in chosen]))
    if not answered:
        return f"| {name} | {cost:.1%} | {len(chosen)} | {len(chosen)} | | | |"
    measured = np.array([each.measured for each in answered])
    expected = float(np.mean([each.expected for each in answered]))
    return (
        f"| {name} | {cost:.1%} | {len(chosen)} | {len(chosen) - len(answered)} | {1e3 * measured.mean():.2f} "
        f"| {1e3 * measured.max():.2f} | {1e3 * expected:.2f} |"
    )


FRONTIER_HEAD = "| design | cost | targets | refused | regret, mean | worst | expected |\n|---|---|---|---|---|---|---|"
