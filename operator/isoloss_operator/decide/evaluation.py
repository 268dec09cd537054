"""Measuring a checkpoint's initial loss: one evaluate Job at a time.

A prediction keeps no ledger. Its failed Jobs are the memory: their endings are replayed in order, with the
same charges and delays as those of any other task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import Attempts
from isoloss_contract.reading import Absent, Read, Unreadable, value_of
from isoloss_contract.records import DataManifest, EvaluateConfig, EvaluationResult
from isoloss_operator.api import Checkpoint, ScalingSweepSpec
from isoloss_operator.decide.conditions import MAX_MESSAGE, Finding
from isoloss_operator.decide.jobs.attempts import after_failure, charged_as, next_attempt
from isoloss_operator.decide.jobs.failures import (
    Failure,
    FailureClass,
    awaits_result,
    classify,
    spec_field,
)
from isoloss_operator.decide.jobs.removal import (
    aside,
    by_attempt,
    deletions,
    expiries,
    lost_deletions,
)
from isoloss_operator.decide.jobs.requests import evaluate_request
from isoloss_operator.decide.jobs.single import SingleTask, Wording
from isoloss_operator.decide.observation import ObservedJob, ObservedPrediction
from isoloss_operator.decide.plans import JobDeletion, JobExpiry, JobRequest, SetAside
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.planning.points import PRECISIONS, mixture

WORDS: Final = Wording(
    name="evaluate",
    doing="measuring the initial loss",
    active=Reason.EVALUATING,
    failed=Reason.EVALUATION_FAILED,
    unreadable=Reason.EVALUATING,
)
FAILURES_KEPT = 8
"""Failed Jobs of a kind that stay as memory; by then every delay has met its limit. More stay where
failurePolicy.retriesPerPoint has to count further."""


@dataclass(frozen=True)
class EvaluationStep:
    """What to do about an evaluation now, and what the condition Evaluated says."""

    finding: Finding
    result: EvaluationResult | None = None
    """The measured loss, once it is there and right."""
    create: tuple[JobRequest, ...] = ()
    delete: tuple[JobDeletion, ...] = ()
    expire: tuple[JobExpiry, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    requeue_after: float = 60.0


def evaluate_config(
    sweep: ScalingSweepSpec, manifest: DataManifest, checkpoint: Checkpoint, stamp: Read[str]
) -> EvaluateConfig:
    """What determines the initial loss: the sweep's own validation sequences, weighted as there.

    `stamp` is of the checkpoint's files; without it their URI stands for them.
    """
    return EvaluateConfig(
        data_digest=manifest.digest,
        mixture=mixture(sweep),
        checkpoint=checkpoint.uri.rstrip("/"),
        checkpoint_stamp=value_of(stamp) or "",
        sequence_length=sweep.data.sequence_length,
        sequences_per_domain=sweep.data.validation.sequences_per_domain,
        precision=PRECISIONS[sweep.training.precision],
    )


def given_loss_step(
    observed: ObservedPrediction, sweep: ScalingSweepSpec, initial_loss: str
) -> EvaluationStep:
    """Nothing to measure: the spec states the initial loss."""
    message = f"spec.initialLoss {initial_loss} is used as given; nothing is measured."
    return EvaluationStep(
        Finding.true(Reason.INITIAL_LOSS_GIVEN, message),
        delete=deletions(observed.evaluate_jobs, "the spec states the initial loss"),
        expire=expiries(sweep, observed.evaluate_jobs),
    )


def evaluation_step(
    observed: ObservedPrediction,
    sweep: ScalingSweepSpec,
    manifest: DataManifest,
    checkpoint: Checkpoint,
    *,
    suspended: bool = False,
    removed_data: str = "",
) -> EvaluationStep:
    """Measure, wait or explain. `removed_data` says why there is nothing to measure on; empty: there is."""
    config = evaluate_config(sweep, manifest, checkpoint, observed.checkpoint_stamp)
    evaluation = _Evaluation(observed, sweep, config, suspended)
    others = [job for job in observed.evaluate_jobs if job.key != config.key]
    delete = deletions(others, "the spec names another checkpoint or corpus")
    delete += lost_deletions(evaluation.jobs)
    if (result := value_of(evaluation.result)) is not None:
        message = f"Initial loss {result.loss:.4f} over {result.evaluated_tokens} tokens."
        finding, expire = (
            Finding.true(Reason.EVALUATED, message),
            expiries(sweep, observed.evaluate_jobs),
        )
        return EvaluationStep(finding, result, delete=delete, expire=expire)
    task = evaluation.task
    if suspended:
        delete += deletions(task.jobs, "the prediction is suspended")
    if removed_data and not task.active:
        message = f"{removed_data}, or give spec.initialLoss."
        finding = Finding.false(Reason.DATA_REMOVED, message, stalled=True)
        return EvaluationStep(finding, delete=delete, expire=expiries(sweep, others))
    create: tuple[JobRequest, ...] = ()
    if task.is_due:
        attempt = next_attempt(task.attempts, task.jobs)
        create = (evaluate_request(observed, sweep, checkpoint, config, attempt),)
    return EvaluationStep(
        task.finding(),
        create=create,
        delete=delete,
        expire=expiries(sweep, [*others, *evaluation.superseded]),
        set_aside=evaluation.set_aside,
        requeue_after=30.0 if task.active else max(30.0, task.seconds_until_due),
    )


@dataclass(frozen=True)
class _Evaluation:
    """An evaluation and what is known of it."""

    observed: ObservedPrediction
    sweep: ScalingSweepSpec
    config: EvaluateConfig
    suspended: bool
    """spec.suspend of the prediction."""

    @cached_property
    def jobs(self) -> tuple[ObservedJob, ...]:
        """Its own Jobs in order of attempts."""
        return by_attempt(job for job in self.observed.evaluate_jobs if job.key == self.config.key)

    @cached_property
    def failures(self) -> tuple[tuple[ObservedJob, Failure], ...]:
        """Ended attempts in order (there is no result, and none is awaited of them)."""
        is_absent, now = isinstance(self.result, Absent), self.observed.now
        return tuple(
            (job, classify(job))
            for job in self.jobs
            if job.is_finished and not (is_absent and awaits_result(job, now))
        )

    @property
    def result(self) -> Read[EvaluationResult]:
        """What is stored as its result; Unreadable also where it is another evaluation's."""
        found = self.observed.evaluation
        if isinstance(found, EvaluationResult) and found.key != self.config.key:
            return Unreadable(f"it is the result of {found.key}")
        return found

    @cached_property
    def task(self) -> SingleTask:
        """The evaluation as any task of one Job."""
        template, attempts = str(self.observed.generation), self.attempts
        refused = charged_as(attempts, template, FailureClass.BAD_CONFIGURATION)
        return SingleTask(
            words=WORDS,
            now=self.observed.now,
            jobs=self.jobs,
            attempts=attempts,
            message=self._message(),
            template=template,
            retries=self.sweep.failure_policy.retries_per_point,
            suspended=self.suspended,
            configuration_error=self._message() if refused else "",
            create_error=self.observed.create_error,
            refusal_may_pass=self.observed.refusal_may_pass,
            problem=self.result.message if isinstance(self.result, Unreadable) else "",
        )

    @cached_property
    def attempts(self) -> Attempts:
        """The endings of its Jobs, replayed. A changed spec starts the charges at zero."""
        attempts = Attempts()
        for job, failure in self.failures:
            attempts = after_failure(
                attempts,
                job,
                failure,
                template=str(job.generation or self.observed.generation),
                now=job.ended or job.started or job.created,
            )
        return attempts

    @property
    def superseded(self) -> tuple[ObservedJob, ...]:
        """Failed Jobs that the memory no longer needs."""
        kept = max(FAILURES_KEPT, self.sweep.failure_policy.retries_per_point + 1)
        charged = [job for job, failure in self.failures if failure.is_charged]
        uncharged = [job for job, failure in self.failures if not failure.is_charged]
        return (*_older(charged, kept), *_older(uncharged, kept))

    @property
    def set_aside(self) -> tuple[SetAside, ...]:
        """Its result, where it cannot be used and no running attempt is about to overwrite it."""
        if isinstance(self.result, Absent) or not self.task.problem or self.task.active:
            return ()
        path = layout.evaluation_result(self.config.key)
        return (aside(path, f"unreadable-{len(self.failures) + 1}", self.task.problem),)

    def _message(self) -> str:
        if not self.failures:
            return ""
        _, failure = self.failures[-1]
        field = spec_field(failure.field, domains=list(self.config.mixture))
        return failure.in_words(field, MAX_MESSAGE)


def _older(jobs: Sequence[ObservedJob], kept: int) -> Sequence[ObservedJob]:
    """All but the newest `kept`."""
    return jobs[: max(0, len(jobs) - kept)]
