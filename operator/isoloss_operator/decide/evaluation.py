"""Measuring a checkpoint's initial loss: one evaluate Job at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import Attempts, ConfigurationError, Ledger
from isoloss_contract.reading import Absent, Newer, Read, Unreadable, is_unknown, value_of
from isoloss_contract.records import DataManifest, EvaluateConfig, EvaluationResult, content_key
from isoloss_operator.api import Checkpoint, ScalingSweepSpec
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs.requests import (
    by_attempt,
    deletions,
    evaluate_request,
    evaluate_template,
    expiries,
    lost_deletions,
    quarantine,
    store_label,
    store_uri,
    template_label,
)
from isoloss_operator.decide.known_ledger import Recorded, known_ledger, under_present
from isoloss_operator.decide.observation import ObservedJob, ObservedPrediction
from isoloss_operator.decide.plans import JobRequest, Quarantine, TaskWrites
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.single_task import Labels, SinglePass, SingleTask, run
from isoloss_operator.planning.points import PRECISIONS, mixture, template_digest

LABELS: Final = Labels(
    name="evaluate",
    doing="measuring the initial loss",
    active=Reason.EVALUATING,
    failed=Reason.EVALUATION_FAILED,
    unreadable=Reason.EVALUATING,
)


@dataclass(frozen=True)
class EvaluationStep:
    """What to do about an evaluation now, and what the condition Evaluated says."""

    finding: Finding
    result: EvaluationResult | None = None
    """The measured loss, once it is there and right."""
    writes: TaskWrites = field(default_factory=TaskWrites)
    """The ledger among them if it has changed."""
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
    """Nothing to measure: the spec has the initial loss."""
    message = f"spec.initialLoss {initial_loss} is used as given; nothing is measured."
    return EvaluationStep(
        Finding.true(Reason.INITIAL_LOSS_GIVEN, message),
        writes=TaskWrites(
            delete=deletions(observed.jobs),
            expire=expiries(sweep, observed.jobs),
        ),
    )


def checkpoint_gone_step(observed: ObservedPrediction, message: str) -> EvaluationStep:
    """What was measured is no longer there, and so cannot be measured again."""
    found = Finding.false(Reason.NOT_A_CHECKPOINT, message)
    return EvaluationStep(found, writes=TaskWrites(delete=deletions(observed.jobs)))


def evaluation_step(
    observed: ObservedPrediction,
    sweep: ScalingSweepSpec,
    manifest: DataManifest,
    checkpoint: Checkpoint,
    *,
    suspended: bool = False,
    removed_data: str = "",
    is_answered: bool = False,
) -> EvaluationStep:
    """Measure, wait or explain. `removed_data` says why there is nothing to measure on; empty: there is."""
    config = evaluate_config(sweep, manifest, checkpoint, observed.checkpoint_stamp)
    seen = _Seen(observed, sweep, manifest, checkpoint, config)
    if (result := value_of(seen.found)) is not None:
        return seen.ended(result)
    if (unknown := ledger_unknown(observed)) is not None:
        return EvaluationStep(unknown, writes=TaskWrites(delete=deletions(seen.other_jobs)))
    measured = run(seen.task(suspended=suspended, bad_data_counts=is_answered))
    return seen.going_on(measured, removed_data)


@dataclass(frozen=True)
class _Seen:
    """An evaluation as the prediction's ledger knows it, and everything observed of it since."""

    observed: ObservedPrediction
    sweep: ScalingSweepSpec
    manifest: DataManifest
    checkpoint: Checkpoint
    config: EvaluateConfig

    @cached_property
    def jobs(self) -> tuple[ObservedJob, ...]:
        """Its own, in order of attempts."""
        return by_attempt(filter(self._is_own, self.observed.jobs))

    @cached_property
    def other_jobs(self) -> list[ObservedJob]:
        """Those of evaluations that are no longer asked for, or that write to the store of a former sweep."""
        return [job for job in self.observed.jobs if not self._is_own(job)]

    def _is_own(self, job: ObservedJob) -> bool:
        return (job.key, job.store) == (self.config.key, store_label(store_uri(self.sweep)))

    @cached_property
    def found(self) -> Read[EvaluationResult]:
        """What is stored as the result; Unreadable also if it is another evaluation's."""
        found = self.observed.evaluation
        if isinstance(found, EvaluationResult) and found.key != self.config.key:
            return Unreadable(f"it is the result of {found.key}")
        return found

    @cached_property
    def template(self) -> str:
        """Ledger.template as it is now: of the operator's configuration, and of what a prediction has of its sweep."""
        training = self.sweep.training.model_dump(mode="json", exclude_defaults=True)
        shapes = [self.observed.operator_template, template_digest(self.sweep), training]
        return content_key(shapes)[:16]

    @cached_property
    def known(self) -> Recorded:
        """The prediction's ledger as it is stored."""
        observed = self.observed
        path = layout.ledger_in(layout.prediction_folder(observed.name, observed.uid))
        return known_ledger(observed, observed.ledger, path, self.template, has_spent=False)

    @cached_property
    def ledger(self) -> Ledger:
        """The same without what was refused under another spec."""
        generation = self.observed.generation
        max_failed = self.sweep.failure_policy.max_failed_points
        return under_present(self.known.ledger, generation, self.template, max_failed)

    def ended(self, result: EvaluationResult) -> EvaluationStep:
        """There is nothing left to measure."""
        message = f"Initial loss {result.loss:.4f} over {result.evaluated_tokens} tokens."
        return EvaluationStep(
            Finding.true(Reason.EVALUATED, message),
            result,
            writes=TaskWrites(
                delete=deletions(self.other_jobs) + lost_deletions(self.jobs),
                expire=expiries(self.sweep, self.observed.jobs),
            ),
        )

    def task(self, *, suspended: bool, bad_data_counts: bool) -> SingleTask:
        """What is to be done by one Job at a time."""
        observed, sweep, ledger = self.observed, self.sweep, self.ledger
        template = evaluate_template(sweep, self.checkpoint)
        return SingleTask(
            labels=LABELS,
            observed=observed,
            jobs=self.jobs,
            stopped=tuple(filter(self._is_own, observed.stopped)),
            attempts=_attempts(ledger, self.config),
            # What it refused about its configuration itself: that of other files is another one.
            refused=_own_error(ledger) if ledger.evaluate_key == self.config.key else None,
            # Changes with all that a person can change about the pod: charges under another one start at zero.
            template=f"{observed.generation}-{template}",
            asked=template_label(observed.operator_template, sweep, template),
            domains=list(self.config.mixture),
            retries=sweep.failure_policy.retries_per_point,
            suspend=suspended,
            is_missing=isinstance(self.found, Absent),
            problem=self.found.message if isinstance(self.found, Unreadable) else "",
            bad_data_counts=bad_data_counts,
        )

    def going_on(self, measured: SinglePass, removed_data: str) -> EvaluationStep:
        """What follows from a pass over the task."""
        known, ledger = self.known, _with_attempts(self.ledger, measured, self.config)
        ended = _attempts(known.ledger, self.config).ended
        # Only the Jobs of later attempts tell how those ended.
        recorded = [job for job in self.jobs if job.attempt <= ended]
        is_changed = ledger != known.ledger
        create: tuple[JobRequest, ...] = ()
        finding, starts = measured.finding(), measured.starts
        if removed_data and not measured.active:
            message = f"{removed_data}, or give spec.initialLoss."
            finding = Finding.false(Reason.DATA_REMOVED, message, stalled=True)
        elif starts is not None:
            asked_for = (self.observed, self.sweep, self.checkpoint, self.config)
            create = (evaluate_request(*asked_for, starts, self.manifest),)
        return EvaluationStep(
            finding,
            writes=TaskWrites(
                ledger=ledger if is_changed else None,
                create=create,
                delete=deletions(self.other_jobs) + lost_deletions(recorded) + measured.delete,
                expire=expiries(self.sweep, [*self.other_jobs, *recorded]),
                quarantined=(
                    *(known.quarantined if is_changed else ()),
                    *_quarantined_result(measured, self.found, self.config),
                ),
            ),
            requeue_after=30.0 if measured.active else max(30.0, measured.seconds_until_due),
        )


def ledger_unknown(observed: ObservedPrediction) -> Finding | None:
    """Without the prediction's ledger nothing may start: what failed for good or is in it would be tried again."""
    stored = observed.ledger
    if not is_unknown(stored):
        return None
    reason = Reason.LEDGER_NEWER if isinstance(stored, Newer) else Reason.STORAGE_UNREACHABLE
    return Finding.false(reason, stored.message)


def _attempts(ledger: Ledger, config: EvaluateConfig) -> Attempts:
    return ledger.evaluation if ledger.evaluate_key == config.key else Attempts()


def _with_attempts(ledger: Ledger, measured: SinglePass, config: EvaluateConfig) -> Ledger:
    """Unchanged as long as no attempt has ended: a checkpoint that is measured at once needs no ledger."""
    if measured.attempts == _attempts(ledger, config):
        return ledger
    return ledger.replace(
        evaluate_key=config.key,
        evaluation=measured.attempts,
        configuration_error=measured.refused or _without_refusal(ledger).configuration_error,
    )


def _own_error(ledger: Ledger) -> ConfigurationError | None:
    error = ledger.configuration_error
    return error if error is not None and error.where == LABELS.name else None


def _without_refusal(ledger: Ledger) -> Ledger:
    return ledger if _own_error(ledger) is None else ledger.replace(configuration_error=None)


def _quarantined_result(
    measured: SinglePass, found: Read[EvaluationResult], config: EvaluateConfig
) -> tuple[Quarantine, ...]:
    """The result, if it cannot be used and no running attempt is about to overwrite it."""
    if not isinstance(found, Unreadable) or measured.active:
        return ()
    path, attempt = layout.evaluation_result(config.key), measured.attempts.ended + 1
    return (quarantine(path, f"unreadable-{attempt}"),)
