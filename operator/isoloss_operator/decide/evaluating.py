"""Measuring a checkpoint's initial loss: one evaluate Job at a time, tried again for as long as it takes.

A prediction keeps no ledger: its failed Jobs are the memory. It never gives up, since a checkpoint or a pod
template may be mended without its spec changing; after failures it only waits longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from isoloss_contract import layout
from isoloss_contract.records import DataManifest, EvaluateConfig, EvaluateTask, EvaluationResult
from isoloss_contract.store import StoreError
from isoloss_operator.api import Checkpoint, ScalingSweepSpec
from isoloss_operator.decide.admission import job_request
from isoloss_operator.decide.blame import in_words, spec_field
from isoloss_operator.decide.conditions import MAX_MESSAGE, Finding, Reason
from isoloss_operator.decide.observation import (
    JobDeletion,
    JobExpiry,
    JobRequest,
    ObservedJob,
    ObservedPrediction,
    SetAside,
)
from isoloss_operator.decide.outcomes import FailureClass, Verdict, classify, pod_trouble
from isoloss_operator.decide.recording import by_attempt
from isoloss_operator.decide.sweep_view import deletions, expiries
from isoloss_operator.planning.points import PRECISIONS, mixture
from isoloss_operator.planning.specs import prepare_config

LONGEST_WAIT = 600.0


@dataclass(frozen=True)
class Evaluation:
    """An evaluation and what is known of it."""

    observed: ObservedPrediction
    sweep: ScalingSweepSpec
    checkpoint: Checkpoint
    config: EvaluateConfig

    @cached_property
    def jobs(self) -> list[ObservedJob]:
        """Its own Jobs in order of attempts."""
        return by_attempt(job for job in self.observed.jobs if job.key == self.config.key)

    @property
    def active(self) -> ObservedJob | None:
        """The Job that may still run a pod."""
        return next((job for job in self.jobs if job.holds_a_slot), None)

    @cached_property
    def failures(self) -> list[tuple[ObservedJob, Verdict]]:
        """Ended attempts in order (there is no result)."""
        return [(job, classify(job)) for job in self.jobs if job.is_finished]

    @property
    def result(self) -> EvaluationResult | None:
        """The measured loss, where it is there and right."""
        found = self.observed.evaluation
        is_ours = isinstance(found, EvaluationResult) and found.key == self.config.key
        return found if isinstance(found, EvaluationResult) and is_ours else None

    @property
    def problem(self) -> str:
        """Why what lies in the result's place can not be used; empty: it can, or nothing lies there."""
        found = self.observed.evaluation
        if isinstance(found, StoreError):
            return str(found)
        if found is not None and found.key != self.config.key:
            return f"it is the result of {found.key}"
        return ""


@dataclass(frozen=True)
class EvaluationStep:
    """What to do about an evaluation now, and what the condition Evaluated says."""

    finding: Finding
    create: tuple[JobRequest, ...] = ()
    delete: tuple[JobDeletion, ...] = ()
    expire: tuple[JobExpiry, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    stalled: bool = False
    requeue_after: float = 60.0


def evaluate_config(
    sweep: ScalingSweepSpec, manifest: DataManifest, checkpoint: Checkpoint
) -> EvaluateConfig:
    """What determines the initial loss: the sweep's own validation sequences, weighted as there."""
    return EvaluateConfig(
        data_digest=manifest.digest,
        mixture=mixture(sweep),
        checkpoint=checkpoint.uri.rstrip("/"),
        sequence_length=sweep.data.sequence_length,
        sequences_per_domain=sweep.data.validation.sequences_per_domain,
        precision=PRECISIONS[sweep.training.precision],
    )


def evaluation_step(evaluation: Evaluation) -> EvaluationStep:
    """Measure, wait or explain."""
    observed = evaluation.observed
    others = [job for job in observed.jobs if job.key != evaluation.config.key]
    delete = deletions(others, "the spec names another checkpoint or corpus")
    if (result := evaluation.result) is not None:
        message = f"Initial loss {result.loss:.4f} over {result.evaluated_tokens} tokens."
        return EvaluationStep(
            finding=Finding.true(Reason.EVALUATED, message),
            delete=delete,
            expire=expiries(evaluation.sweep, observed.jobs),
        )
    if (job := evaluation.active) is not None:
        return EvaluationStep(_running(job), delete=delete, requeue_after=30.0)
    aside = _set_aside(evaluation)
    start = _not_before(evaluation.failures)
    if start is not None and start > observed.now:
        wait = (start - observed.now).total_seconds()
        finding, stalled = _waiting(evaluation)
        return EvaluationStep(
            finding, delete=delete, set_aside=aside, stalled=stalled, requeue_after=max(1.0, wait)
        )
    finding = Finding.false(Reason.EVALUATING, "The evaluate Job is being started.")
    stalled = False
    if observed.create_error:
        finding, stalled = Finding.false(Reason.JOB_REFUSED, observed.create_error), True
    elif evaluation.failures:
        finding, stalled = _waiting(evaluation)
    return EvaluationStep(
        finding,
        create=(evaluate_request(evaluation),),
        delete=delete,
        set_aside=aside,
        stalled=stalled,
    )


def evaluate_request(evaluation: Evaluation) -> JobRequest:
    """The Job of the next attempt."""
    observed, sweep = evaluation.observed, evaluation.sweep
    uri = sweep.storage.uri.rstrip("/")
    attempt = max((job.attempt for job in evaluation.jobs), default=0) + 1
    return job_request(
        observed,
        sweep,
        EvaluateTask(
            config=evaluation.config,
            store_uri=uri,
            data_uri=f"{uri}/{layout.data_folder(prepare_config(sweep).key)}",
        ),
        what="evaluate",
        key=evaluation.config.key,
        attempt=attempt,
        pod_templates=(sweep.pod_template, evaluation.checkpoint.pod_template),
        own_secret=evaluation.checkpoint.secret_name,
    )


def _set_aside(evaluation: Evaluation) -> tuple[SetAside, ...]:
    if not evaluation.problem:
        return ()
    path = layout.evaluation_result(evaluation.config.key)
    suffix = f"unreadable-{len(evaluation.failures) + 1}"
    return (SetAside(path, f"{path}.{suffix}", evaluation.problem[:500]),)


def _running(job: ObservedJob) -> Finding:
    if job.suspended:
        return Finding.false(Reason.QUEUED, f"Job {job.name} waits for Kueue to admit it.")
    if trouble := pod_trouble(job):
        return Finding.false(trouble.reason, f"Job {job.name}: {trouble.message}")
    return Finding.false(Reason.EVALUATING, f"Job {job.name} measures the initial loss.")


def _waiting(evaluation: Evaluation) -> tuple[Finding, bool]:
    """What the failures so far say, and whether someone had better look at them."""
    last_job, last = evaluation.failures[-1]
    charged = [verdict for _, verdict in evaluation.failures if verdict.is_charged]
    if not last.is_charged:
        message = "The evaluate Job was interrupted and starts again."
        return Finding.false(Reason.WAITING_TO_RETRY, message), False
    reason = last.code or (
        Reason.BAD_DATA if last.failure is FailureClass.BAD_DATA else Reason.EVALUATION_FAILED
    )
    is_hopeless = last.failure in (FailureClass.BAD_DATA, FailureClass.BAD_CONFIGURATION)
    stalled = is_hopeless or len(charged) > evaluation.sweep.failure_policy.retries_per_point
    field = spec_field(last.field, domains=list(evaluation.config.mixture))
    message = f"Attempt {last_job.attempt}: {in_words(last, field, MAX_MESSAGE)}"
    return Finding.false(reason, message), stalled


def _not_before(failures: Sequence[tuple[ObservedJob, Verdict]]) -> datetime | None:
    """When the next attempt may start: growing delays from the start of the last one."""
    if not failures:
        return None
    last_job, last = failures[-1]
    began = last_job.started or last_job.created
    alike = sum(verdict.is_charged == last.is_charged for _, verdict in failures)
    if not last.is_charged:
        return began + timedelta(
            seconds=0 if alike <= 1 else min(300.0, 10.0 * 2.0 ** (alike - 2))
        )
    first = 30.0 if last.failure is FailureClass.BAD_DATA else 10.0
    return began + timedelta(seconds=min(LONGEST_WAIT, first * 2.0 ** min(alike - 1, 16)))
