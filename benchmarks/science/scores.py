"""Regret, refusals, coverage and width of what the contenders answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.science.cases import Case, Row, Truth
from benchmarks.science.contenders import ENGINE, PLAIN, Answer, contenders
from isoloss.laws import FitOptions

GOOD = 0.002
"""Nats within which an answer of the plain regression is a good one."""
LEVEL = 0.80
NORMAL_80 = 1.2816
"""Half width of a normal distribution's central 80%, in standard deviations."""


@dataclass
class Score:
    """Of one contender on one row."""

    regrets: list[float] = field(default_factory=list)
    asked: int = 0
    errors: list[tuple[float, float]] = field(default_factory=list)
    """Per answered quantity: |error| over the interval's half width on that side, and the width in ln."""

    @property
    def refused(self) -> int:
        """Questions without an answer."""
        return self.asked - len(self.regrets)

    @property
    def coverage(self) -> float:
        """Share of true optima inside their intervals."""
        return float(np.mean([e <= 1.0 for e, _ in self.errors])) if self.errors else np.nan

    @property
    def needed(self) -> float:
        """By what factor the widths exceed those that would have held 80%."""
        if not self.errors:
            return np.nan
        return 1.0 / max(float(np.quantile([e for e, _ in self.errors], LEVEL)), 1e-9)


@dataclass
class RowScores:
    """Of all contenders, and on the questions that engine and plain regression both answered."""

    name: str
    scores: dict[str, Score]
    common: list[tuple[float, float]] = field(default_factory=list)
    """Regrets of both."""
    good: int = 0
    """Questions that the plain regression answers within 0.002 nats."""
    good_refused: int = 0

    @property
    def excess(self) -> float:
        """Mean regret of the engine above that of the plain regression, where both answer."""
        return float(np.mean([a - b for a, b in self.common])) if self.common else np.nan


def score_row(row: Row, options: FitOptions) -> RowScores:
    """Every contender on every case."""
    result = RowScores(row.name, {})
    for case in row.cases:
        _score_case(case, options, result)
    return result


def _score_case(case: Case, options: FitOptions, result: RowScores) -> None:
    for name, contender in contenders(case.runs, options).items():
        result.scores.setdefault(name, Score())
        answers = [contender(n, d) for n, d, _ in case.targets]
        regrets = [
            record(result.scores[name], a, t)
            for a, (_, _, t) in zip(answers, case.targets, strict=True)
        ]
        if name == ENGINE:
            ours = regrets
        if name == PLAIN:
            for a, b in zip(ours, regrets, strict=True):
                good = b is not None and b <= GOOD
                result.good += good
                result.good_refused += good and a is None
                if a is not None and b is not None:
                    result.common.append((a, b))


def record(score: Score, answer: Answer | None, truth: Truth) -> float | None:
    """The regret of an answer, entered with how far it is off; None: it was refused."""
    score.asked += 1
    if answer is None:
        return None
    regret = float(truth.regret(np.exp(answer.log_rate), np.exp(answer.log_batch)))
    score.regrets.append(regret)
    found = (answer.log_rate, answer.log_batch)
    intervals = (answer.rate_interval, answer.batch_interval)
    for value, interval, true, error in zip(
        found, intervals, truth.vertex, truth.vertex_error, strict=True
    ):
        if interval is not None:
            half = interval[1] - value if true > value else value - interval[0]
            # A cell's own optimum is noisy, too: the distance to it errs by both.
            half = float(np.hypot(half, NORMAL_80 * error))
            score.errors.append((abs(true - value) / max(half, 1e-9), interval[1] - interval[0]))
    return regret


HEADER = (
    f"{'row':32s} {'isoloss':>15s} {'plain':>15s} {'joint':>15s} {'quadratic':>15s} {'published':>15s} {'argmin':>15s} "
    f"{'excess':>8s} {'refused':>9s} {'of good':>8s} {'holds':>6s} {'width':>6s} {'x need':>6s}"
)


def line(found: RowScores) -> str:
    """The row as text: mean / worst regret in millinats per contender, then what concerns isoloss alone."""
    ours = found.scores[ENGINE]
    widths = [w for _, w in ours.errors]
    cells = " ".join(f"{_regret(score):>15s}" for score in found.scores.values())
    return (
        f"{found.name:32s} {cells} {1e3 * found.excess:8.2f} {ours.refused:4d}/{ours.asked:<4d} "
        f"{found.good_refused:3d}/{found.good:<4d} {ours.coverage:6.0%} "
        f"{np.exp(np.median(widths)) if widths else np.nan:6.2f} {ours.needed:6.2f}"
    )


def _regret(score: Score) -> str:
    if not score.regrets:
        return "-"
    missing = f" ({score.refused})" if score.refused else ""
    return f"{1e3 * np.mean(score.regrets):.2f}/{1e3 * np.max(score.regrets):.1f}{missing}"


def pooled(rows: Sequence[RowScores]) -> RowScores:
    """All rows as one."""
    total = RowScores(f"all {len(rows)} rows", {name: Score() for name in rows[0].scores})
    for row in rows:
        total.common += row.common
        total.good += row.good
        total.good_refused += row.good_refused
        for name, score in row.scores.items():
            total.scores[name].regrets += score.regrets
            total.scores[name].asked += score.asked
            total.scores[name].errors += score.errors
    return total
