"""Measuring a checkpoint's initial loss: one evaluate Job at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from isoloss_contract import layout
from isoloss_contract.ledger import Attempts, ConfigurationError, Ledger
from isoloss_contract.reading import Absent, Newer, Read, Unreadable, is_unknown, value_of
from isoloss_contract.records import DataManifest, EvaluateConfig, EvaluationResult
from isoloss_operator.api import Checkpoint, ScalingSweepSpec
from isoloss_operator.decide.conditions import Finding
from isoloss_operator.decide.jobs.requests import (
    aside,
    asked,
    by_attempt,
    deletions,
    evaluate_request,
    evaluate_template,
    expiries,
    lost_deletions,
    store_label,
    store_uri,
)
from isoloss_operator.decide.observation import ObservedPrediction
from isoloss_operator.decide.owners import prediction_ledger, under_present
from isoloss_operator.decide.plans import JobRequest, SetAside, TaskWrites
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.tasks.single_task import SinglePass, SingleTask, Wording, run
from isoloss_operator.decide.tasks.task_set import Recorded
from isoloss_operator.planning.points import PRECISIONS, mixture

WORDS: Final = Wording(
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
    known: Recorded | None = None
    """The prediction's ledger with every end of its attempts, from which its probes go on; None: it was not looked
    at."""
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
            delete=deletions(observed.evaluate_jobs),
            expire=expiries(sweep, observed.evaluate_jobs),
        ),
    )


def checkpoint_gone_step(observed: ObservedPrediction, message: str) -> EvaluationStep:
    """What was measured is no longer there, and so cannot be measured again."""
    found = Finding.false(Reason.NOT_A_CHECKPOINT, message)
    return EvaluationStep(found, writes=TaskWrites(delete=deletions(observed.evaluate_jobs)))


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
    place = config.key, store_label(store_uri(sweep))
    own = by_attempt(job for job in observed.evaluate_jobs if (job.key, job.store) == place)
    others = [job for job in observed.evaluate_jobs if job not in own]
    delete = deletions(others)
    known = prediction_ledger(observed)
    ledger = under_present(known.ledger, observed, sweep)
    found = _usable(observed.evaluation, config)
    if (result := value_of(found)) is not None:
        message = f"Initial loss {result.loss:.4f} over {result.evaluated_tokens} tokens."
        return EvaluationStep(
            Finding.true(Reason.EVALUATED, message),
            result,
            known=replace(known, ledger=_without_refusal(ledger)),
            writes=TaskWrites(
                delete=delete + lost_deletions(own),
                expire=expiries(sweep, observed.evaluate_jobs),
            ),
        )
    if (unknown := ledger_unknown(observed)) is not None:
        return EvaluationStep(unknown, writes=TaskWrites(delete=delete))
    task = SingleTask(
        words=WORDS,
        world=observed,
        jobs=own,
        stopped=tuple(job for job in observed.stopped if (job.key, job.store) == place),
        attempts=_attempts(ledger, config),
        refused=_refused(ledger, config),
        template=_template(observed, sweep, checkpoint),
        asked=asked(observed, sweep, evaluate_template(sweep, checkpoint)),
        domains=list(config.mixture),
        retries=sweep.failure_policy.retries_per_point,
        suspend=suspended,
        is_missing=isinstance(found, Absent),
        problem=found.message if isinstance(found, Unreadable) else "",
        bad_data_counts=is_answered,
    )
    measured = run(task)
    ended = _attempts(known.ledger, config).ended
    recorded = [job for job in own if job.attempt <= ended]  # others alone know of their end
    ledger = _with_attempts(ledger, measured, config)
    is_changed = ledger != known.ledger
    create: tuple[JobRequest, ...] = ()
    finding, starts = measured.finding(), measured.starts
    if removed_data and not measured.active:
        message = f"{removed_data}, or give spec.initialLoss."
        finding = Finding.false(Reason.DATA_REMOVED, message, stalled=True)
    elif starts is not None:
        create = (evaluate_request(observed, sweep, checkpoint, config, starts),)
    return EvaluationStep(
        finding,
        known=replace(known, ledger=ledger, set_aside=() if is_changed else known.set_aside),
        writes=TaskWrites(
            ledger=ledger if is_changed else None,
            create=create,
            delete=delete + lost_deletions(recorded) + measured.delete,
            expire=expiries(sweep, [*others, *recorded]),
            set_aside=(
                *(known.set_aside if is_changed else ()),
                *_result_aside(measured, found, config),
            ),
        ),
        requeue_after=30.0 if measured.active else max(30.0, measured.seconds_until_due),
    )


def ledger_unknown(observed: ObservedPrediction) -> Finding | None:
    """Without the prediction's ledger nothing may start: what failed for good or is in it would be tried again."""
    stored = observed.probes.ledger
    if not is_unknown(stored):
        return None
    reason = Reason.LEDGER_NEWER if isinstance(stored, Newer) else Reason.STORAGE_UNREACHABLE
    return Finding.false(reason, stored.message)


def _usable(found: Read[EvaluationResult], config: EvaluateConfig) -> Read[EvaluationResult]:
    """What is stored as the result; Unreadable also if it is another evaluation's."""
    if isinstance(found, EvaluationResult) and found.key != config.key:
        return Unreadable(f"it is the result of {found.key}")
    return found


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


def _template(
    observed: ObservedPrediction, sweep: ScalingSweepSpec, checkpoint: Checkpoint
) -> str:
    """Changes with everything that a person can change about the pod: charges under another one start at zero."""
    return f"{observed.generation}-{evaluate_template(sweep, checkpoint)}"


def _refused(ledger: Ledger, config: EvaluateConfig) -> ConfigurationError | None:
    """What this very evaluation refused about its configuration: that of other files is another one."""
    return _own_error(ledger) if ledger.evaluate_key == config.key else None


def _own_error(ledger: Ledger) -> ConfigurationError | None:
    error = ledger.configuration_error
    return error if error is not None and error.where == WORDS.name else None


def _without_refusal(ledger: Ledger) -> Ledger:
    return ledger if _own_error(ledger) is None else ledger.replace(configuration_error=None)


def _result_aside(
    measured: SinglePass, found: Read[EvaluationResult], config: EvaluateConfig
) -> tuple[SetAside, ...]:
    """The result, if it cannot be used and no running attempt is about to overwrite it."""
    if not isinstance(found, Unreadable) or measured.active:
        return ()
    path, attempt = layout.evaluation_result(config.key), measured.attempts.ended + 1
    return (aside(path, f"unreadable-{attempt}"),)
