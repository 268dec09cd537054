"""Runs whose losses are read on the way and at the end: a probe is the beginning of a longer run.

The learning rate is constant after its warm-up, so that a run which is continued is, to the bit, the one that had
wanted all tokens from the start. The trainer replaces the result of a run that is continued; here each is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.point_trainer import PointTrainer
from isoloss.laws import Run
from isoloss.runs import Weights
from isoloss_contract.records import PointConfig, PointResult
from isoloss_trainer.termination import Interrupted


@dataclass(frozen=True)
class Course:
    """A point, and the tokens after which its loss is read, ascending; it is trained to the last."""

    name: str
    point: PointConfig
    stops: tuple[int, ...]


class Courses:
    """Trains courses, and reads them as runs by the losses of `weights`."""

    def __init__(self, trainer: PointTrainer, weights: Weights) -> None:
        self._trainer, self._weights = trainer, weights

    def train(self, course: Course) -> bool:
        """Train to each stop that has no result yet; False if a stop was requested, the state being saved."""
        store = self._trainer.store
        for tokens in course.stops:
            path = _kept(course.point, tokens)
            if store.exists(path):
                continue
            goes_on = tokens != course.stops[-1]
            try:
                trained = self._trainer.trained(course.point, tokens, kept=goes_on)
            except Interrupted:
                return False
            store.write_record(path, trained.result)
        return True

    def is_trained(self, course: Course) -> bool:
        """Whether every stop has a result."""
        paths = (_kept(course.point, tokens) for tokens in course.stops)
        return all(self._trainer.store.exists(path) for path in paths)

    def runs(self, course: Course) -> list[Run]:
        """Of each stop of a trained course."""
        return [self._run(course, tokens) for tokens in course.stops]

    def _run(self, course: Course, tokens: int) -> Run:
        result = self._trainer.store.read_record(_kept(course.point, tokens), PointResult)
        tokenizer = self._trainer.manifest.tokenizer_digest
        return self._trainer.read(course.point, result).run(course.name, self._weights, tokenizer)


def _kept(point: PointConfig, tokens: int) -> str:
    """Path of the result of a run that was trained to `tokens`."""
    return f"read/{point.key}-{tokens}.json"
