"""A sweep of the demo's proxies, its answer, and the continued runs of its checkpoint that a validation asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.demo_sweep import DemoInFolder
from benchmarks.point_trainer import PointTrainer
from benchmarks.study import Say
from benchmarks.validation.courses import Course, Courses
from demo.inputs import provide_checkpoint, provide_corpus
from isoloss.laws import Laws, Prediction, PredictionQuery, Refused, fit_laws, predict
from isoloss.validation import Place
from isoloss_contract.reading import ABSENT
from isoloss_contract.records import EvaluationResult
from isoloss_operator.api import AnswerValidation, Checkpoint
from isoloss_operator.decide.evaluation import evaluate_config
from isoloss_operator.decide.fit_requests import WEIGHTS, fit_options
from isoloss_operator.decide.prediction_status import question
from isoloss_operator.planning.points import plan_points
from isoloss_operator.planning.probes import (
    plan_probes,
    probe_model,
    probe_places,
    probe_sweep,
    probe_tokens,
)
from isoloss_operator.planning.specs import parse_prediction_spec, parse_sweep_spec
from isoloss_trainer.termination import Interruption

SHARES = (0.3, 0.6)
"""Of the budget's tokens: lengths of probes that are compared with whole runs, as the demo's are."""


@dataclass(frozen=True)
class Asked:
    """The laws, what they were asked, and what they answered."""

    laws: Laws
    query: PredictionQuery
    answer: Prediction
    evaluation: EvaluationResult


@dataclass(frozen=True)
class ProbePlan:
    """How long the probes are."""

    tokens: int
    flops: float
    """Of one."""


class NoAnswer(Exception):
    """The laws refuse, so that there is nothing to validate."""


class Workshop:
    """Trains in this process and keeps everything in `folder`."""

    def __init__(
        self, folder: Path, interruption: Interruption, say: Say = lambda _line: None
    ) -> None:
        """Make corpus and checkpoint unless they are there. Raises Interrupted."""
        demo, scratch = DemoInFolder(folder), folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        provide_corpus(demo.inputs, scratch, say)
        provide_checkpoint(demo.inputs, scratch, say)
        self.sweep = parse_sweep_spec(demo.sweep())
        self.prediction = parse_prediction_spec(demo.prediction())
        self._trainer = PointTrainer(
            "bench-validation", demo.corpus(self.sweep), scratch, interruption
        )
        self.courses = Courses(self._trainer, WEIGHTS[self.sweep.fit.weights])

    # ---------------------------------------------------------------------------------- the answer

    def sweep_courses(self) -> list[Course]:
        """The sweep's points."""
        points = plan_points(self.sweep, self._trainer.manifest)
        return [Course(point.name, point.config, (point.proxy.tokens,)) for point in points]

    def asked(self) -> Asked:
        """What the operator would answer, from a sweep that is trained. Raises NoAnswer, Interrupted."""
        laws = fit_laws(
            [self.courses.runs(course)[0] for course in self.sweep_courses()],
            fit_options(self.sweep),
        )
        evaluation = self.initial_loss()
        query = question(laws, self.prediction, self.sweep, evaluation)
        answer = predict(laws, query)
        if isinstance(answer, Refused):
            raise NoAnswer(" ".join(refusal.message for refusal in answer.refusals))
        return Asked(laws, query, answer, evaluation)

    def initial_loss(self) -> EvaluationResult:
        """Of the checkpoint, on the sweep's validation text."""
        config = evaluate_config(self.sweep, self._trainer.manifest, self._checkpoint, ABSENT)
        return self._trainer.evaluated(config)

    @property
    def _checkpoint(self) -> Checkpoint:
        assert self.prediction.checkpoint is not None  # the demo's manifest
        return self.prediction.checkpoint

    @property
    def _validation(self) -> AnswerValidation:
        assert self.prediction.validation is not None  # the demo's manifest
        return self.prediction.validation

    # ------------------------------------------------------------------------------ continued runs

    @property
    def budget_tokens(self) -> int:
        """Of the planned run."""
        assert self.prediction.budget.tokens is not None  # the demo's manifest
        return self.prediction.budget.tokens

    def probe_plans(self, asked: Asked) -> tuple[ProbePlan, ...]:
        """Probes shorter than the budget, shortest first."""
        return tuple(self._probe_plan(asked, share) for share in SHARES)

    @property
    def tolerance(self) -> float:
        """Nats that the answer may lose and still holds."""
        return float(self._validation.tolerance)

    def _probe_plan(self, asked: Asked, share: float) -> ProbePlan:
        """As the operator plans it for the laws' own answer; displaced answers have probes as long."""
        places = self.cross(asked.answer.learning_rate.value, asked.answer.batch_size.value)
        tokens = probe_tokens(
            self.budget_tokens,
            share,
            max(place.batch_size for place in places),
            self.sweep.data.sequence_length,
        )
        assert asked.answer.cpt_flops is not None  # the query has a budget
        return ProbePlan(tokens, tokens * asked.answer.cpt_flops / self.budget_tokens)

    @property
    def factor(self) -> float:
        """Between an answer and its neighbours."""
        return float(self._validation.factor)

    def cross(self, learning_rate: float, batch_size: float) -> tuple[Place, ...]:
        """The five places that the operator probes about an answer, the answer's first."""
        return probe_places(
            learning_rate,
            batch_size,
            self.factor,
            multiple_of=self.prediction.batch_size_multiple_of,
        )

    def continued(
        self, places: Sequence[Place], seed: int, stops: tuple[int, ...]
    ) -> list[Course]:
        """Continued runs of the checkpoint as the operator plans probes, each read at all `stops`."""
        model = probe_model(self._model(), self.initial_loss().parameters)
        sweep = self.sweep.model_copy(
            update={"training": self.sweep.training.model_copy(update={"seed": seed})}
        )
        spec = probe_sweep(sweep, self._validation, model, stops[-1], suspend=False)
        points = plan_probes(spec, self._trainer.manifest, places, self._checkpoint)
        return [Course(f"{point.name}-seed{seed}", point.config, stops) for point in points]

    def _model(self) -> dict[str, object]:
        uri = self._checkpoint.uri.removeprefix("file://")
        config: dict[str, object] = json.loads((Path(uri) / "config.json").read_text())
        return config
