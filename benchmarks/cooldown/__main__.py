"""Trains the demo's proxies with cooldowns of both shapes and compares what each kind of loss says is best.

    python -m benchmarks.cooldown [--share 0.2] [--size tiny] [--folder .bench/cooldown] [--markdown FILE]

Everything is trained with the trainer, one run after another on one core, and saved in the folder: a
second call continues where the first one ended.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.cooldown.comparison import Opinion, opinions, shared_tokens
from benchmarks.cooldown.training import SHAPES, TrainedPoint, Workshop
from benchmarks.study import Say, conduct, study_parser
from isoloss.laws import Run
from isoloss_operator.planning.points import PlannedPoint
from isoloss_trainer.termination import Interruption

REFERENCE = "Linear"
"""The kind that others are judged by: the cooled loss itself is what a decayed run ends with."""


def main() -> int:
    parser = study_parser((__doc__ or "").partition("\n")[0], "cooldown")
    parser.add_argument("--share", default="0.2", help="evaluation.cooldown.share")
    parser.add_argument("--size", help="train and compare this size of the demo's alone")
    options = parser.parse_args()

    def found(interruption: Interruption, say: Say) -> Iterator[str]:
        workshop = Workshop(options.folder, options.share, interruption, say)
        trained: list[TrainedPoint] = []
        for shape in SHAPES:
            for point in of_size(workshop.points(shape), options.size):
                trained.append(workshop.trained(point, shape))
                say(f"{point.name}, cooled down as {shape}")
        return tables(trained)

    try:
        return conduct(options, found)
    except UnknownSize as error:
        parser.error(str(error))


class UnknownSize(Exception):
    """No proxy of the demo has that name."""


def of_size(points: Sequence[PlannedPoint], size: str | None) -> list[PlannedPoint]:
    """The points of the proxy of that name; all without one. Raises UnknownSize."""
    sizes = dict.fromkeys(point.proxy.name for point in points)
    if size not in (None, *sizes):
        raise UnknownSize(f"--size {size}: the demo's sizes are {', '.join(sizes)}")
    return [point for point in points if size in (None, point.proxy.name)]


def tables(trained: Sequence[TrainedPoint]) -> Iterator[str]:
    """Of every size: what each kind of loss says is best, and what believing it costs."""
    yield "| size | tokens | loss | lowest at LR, B | its loss | paraboloid's LR, B | regret, nats |"
    yield "|---|---|---|---|---|---|---|"
    for size, kinds in _by_size(trained).items():
        tokens = shared_tokens(kinds)
        for opinion in opinions(kinds, REFERENCE, tokens):
            yield _row(size, tokens, opinion)
    own = sum(point.tokens for point in trained)
    cooling = sum(point.cooldown_tokens for point in trained)
    yield ""
    yield f"Cooldowns took {cooling / own:.0%} of the runs' own tokens beside them."


def _by_size(trained: Sequence[TrainedPoint]) -> Mapping[str, Mapping[str, Sequence[Run]]]:
    """Runs by size and kind, of each kind in the grid's order."""
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for shape in SHAPES:
        for point in (point for point in trained if shape in point.runs):
            # Raw and averaged losses are the same to the bit whatever cools down beside them.
            kinds = (shape,) if shape != SHAPES[0] else tuple(point.runs)
            for kind in kinds:
                found[point.size][kind].append(point.runs[kind])
    return found


def _row(size: str, tokens: float, opinion: Opinion) -> str:
    best, optimum = opinion.best, opinion.optimum
    bottom = (
        "outside the grid"
        if optimum is None
        else f"{optimum.learning_rate:.2e}, {optimum.batch_size:.1f}"
    )
    return (
        f"| {size} | {tokens:,.0f} | {opinion.kind} | {best.learning_rate:.2e}, {best.batch_size:.0f} "
        f"| {opinion.loss:.4f} | {bottom} | {opinion.regret:.4f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
