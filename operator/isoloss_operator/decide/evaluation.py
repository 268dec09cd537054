"""Measuring a checkpoint's initial loss: one evaluate Job at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from isoloss.formatting import loss
from isoloss.laws import Interval
from isoloss_contract import layout, reading
from isoloss_contract.ledger import Attempts, ConfigurationError, Ledger
from isoloss_contract.records import DataManifest, EvaluateConfig, EvaluationResult, content_key
from isoloss_operator import api
from isoloss_operator.api import statuses
from isoloss_operator.decide import requests
from isoloss_operator.decide.checks import known_ledger, outdated_fields
from isoloss_operator.decide.conditions import EVALUATED
from isoloss_operator.decide.law_status import interval_status
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import Quarantine
from isoloss_operator.decide.prediction_checks import AcceptedPrediction
from isoloss_operator.decide.reasons import Finding, Reason
from isoloss_operator.decide.single_task import Labels, SinglePass, SingleTask, run
from isoloss_operator.planning.points import PRECISIONS, mixture, template_digest

LABELS: Final = Labels(
    name="evaluate",
    condition=EVALUATED,
    doing="measuring the initial loss",
    active=Reason.EVALUATING,
    failed=Reason.EVALUATION_FAILED,
    unreadable=Reason.EVALUATING,
)
EIGHTY_PERCENT: Final = 1.2816
"""Standard errors to either side that hold 80% of a normal distribution."""


@dataclass(frozen=True)
class Measurement:
    """What is known of an initial loss, what to do about it, and what the condition Evaluated says."""

    finding: Finding
    """True once it is known."""
    result: EvaluationResult | None = None
    """The measured loss, once it is there and right; None also if the spec has it."""
    status: api.HyperparamPredictionStatus = field(default_factory=api.HyperparamPredictionStatus)
    """As the status shows it, without an answer."""
    ledger: Ledger | None = None
    """None: unchanged."""
    quarantined: tuple[Quarantine, ...] = ()
    stop: Sequence[ObservedJob] = ()
    """Jobs to delete unless they have ended and Kubernetes knows."""
    recorded: Sequence[ObservedJob] = ()
    """Jobs of which nothing is to be learned any more: they may expire."""
    starts: tuple[EvaluateConfig, int, str] | None = None
    """The attempt that starts now, by its number, with LABEL_TEMPLATE of its Job; None: none does."""
    requeue_after: float = 60.0


def measure(asked: AcceptedPrediction) -> Measurement:
    """Measure the initial loss, wait or explain."""
    observed, sweep, checkpoint = asked.observed, asked.sweep, asked.spec.checkpoint
    if checkpoint is None:
        return _given(asked.spec.initial_loss or "", observed.jobs)
    stamp, result = observed.checkpoint_stamp, observed.evaluation
    if asked.is_checkpoint_gone and isinstance(stamp, reading.Unreadable):
        # What was measured is no longer there, and so cannot be measured again.
        message = f"{stamp.message}: put them back, or give spec.initialLoss"
        found = Finding(Reason.NOT_A_CHECKPOINT, message)
        return Measurement(found, stop=observed.jobs)
    config = evaluate_config(sweep, asked.manifest, checkpoint, stamp)
    store = requests.store_label(requests.store_uri(sweep))
    own = requests.by_attempt(
        job for job in observed.jobs if (job.key, job.store) == (config.key, store)
    )
    # Of evaluations that are no longer asked for, or that write to the store of a former sweep.
    others = [job for job in observed.jobs if job not in own]
    if isinstance(result, EvaluationResult):
        if result.key == config.key:
            return _measured(result, sweep, own, others)
        result = reading.Unreadable(f"it is the result of {result.key}")
    if reading.is_unknown(observed.ledger):
        # Nothing may start: what failed for good or is in the ledger would be tried again.
        is_newer = isinstance(observed.ledger, reading.Newer)
        reason = Reason.LEDGER_NEWER if is_newer else Reason.STORAGE_UNREACHABLE
        unknown = Finding(reason, observed.ledger.message)
        return Measurement(unknown, stop=others)
    return _under_way(asked, checkpoint, config, result, own, others)


def evaluate_config(
    sweep: api.ScalingSweepSpec,
    manifest: DataManifest,
    checkpoint: api.Checkpoint,
    stamp: reading.Read[str],
) -> EvaluateConfig:
    """What determines the initial loss: the sweep's own validation sequences, weighted as there.

    `stamp` is of the checkpoint's files; without it their URI stands for them.
    """
    return EvaluateConfig(
        data_digest=manifest.digest,
        mixture=mixture(sweep),
        checkpoint=checkpoint.uri.rstrip("/"),
        checkpoint_stamp=reading.value_of(stamp) or "",
        sequence_length=sweep.data.sequence_length,
        sequences_per_domain=sweep.data.validation.sequences_per_domain,
        precision=PRECISIONS[sweep.training.precision],
    )


def _given(initial_loss: str, jobs: Sequence[ObservedJob]) -> Measurement:
    """Nothing to measure: the spec has the initial loss, which comes without an interval."""
    message = f"spec.initialLoss {initial_loss} is used as given; nothing is measured."
    return Measurement(
        Finding(Reason.INITIAL_LOSS_GIVEN, message, "True"),
        status=api.HyperparamPredictionStatus(
            initial_loss=statuses.IntervalStatus(value=initial_loss)
        ),
        stop=jobs,
        recorded=jobs,
    )


def _measured(
    result: EvaluationResult,
    sweep: api.ScalingSweepSpec,
    own: Sequence[ObservedJob],
    others: Sequence[ObservedJob],
) -> Measurement:
    """There is nothing left to measure."""
    message = f"Initial loss {result.loss:.4f} over {result.evaluated_tokens} tokens."
    margin = EIGHTY_PERCENT * result.loss_standard_error
    interval = Interval(result.loss, result.loss - margin, result.loss + margin)
    domains = {name: loss(domain.loss) for name, domain in sorted(result.domains.items())}
    return Measurement(
        Finding(Reason.EVALUATED, message, "True"),
        result,
        api.HyperparamPredictionStatus(
            initial_loss=interval_status(interval, loss),
            domain_losses=domains or None,
            evaluation_uri=f"{requests.store_uri(sweep)}/{layout.evaluation_result(result.key)}",
        ),
        stop=[*others, *(job for job in own if job.must_be_deleted)],
        recorded=[*own, *others],
    )


def _under_way(
    asked: AcceptedPrediction,
    checkpoint: api.Checkpoint,
    config: EvaluateConfig,
    stored: reading.Read[EvaluationResult],
    own: tuple[ObservedJob, ...],
    others: Sequence[ObservedJob],
) -> Measurement:
    """What follows from a pass over the Job that measures; `stored` is no result."""
    observed, sweep = asked.observed, asked.sweep
    template = _ledger_template(observed.operator_template, sweep)
    path = layout.ledger_in(layout.prediction_folder(observed.name, observed.uid))
    known = known_ledger(observed, observed.ledger, path, template, has_spent=False)
    max_failed = sweep.failure_policy.max_failed_points
    changes = outdated_fields(known.ledger, observed.generation, template, max_failed)
    before = known.ledger.replace(**changes) if changes else known.ledger
    task = _task(asked, checkpoint, config, stored, own, before)
    measuring = run(task)
    ledger = _with_attempts(before, measuring, config)
    # Only the Jobs of later attempts tell how those ended.
    ended = _attempts(known.ledger, config).ended
    recorded = [job for job in own if job.attempt <= ended]
    quarantined = known.quarantined if ledger != known.ledger else ()
    if isinstance(stored, reading.Unreadable) and not measuring.is_active:
        suffix = f"unreadable-{measuring.attempts.ended + 1}"
        quarantined += (Quarantine(layout.evaluation_result(config.key), suffix),)
    finding, starts = measuring.finding, measuring.starts
    if asked.removed_data and not measuring.is_active:
        message = f"{asked.removed_data}, or give spec.initialLoss."
        finding, starts = Finding(Reason.DATA_REMOVED, message, stalled=True), None
    return Measurement(
        finding,
        ledger=ledger if ledger != known.ledger else None,
        quarantined=quarantined,
        stop=[*others, *(job for job in recorded if job.must_be_deleted), *measuring.stop],
        recorded=[*others, *recorded],
        starts=None if starts is None else (config, starts, task.asked),
        requeue_after=30.0
        if measuring.is_active
        else max(30.0, measuring.seconds_until_due or 0.0),
    )


def _task(
    asked: AcceptedPrediction,
    checkpoint: api.Checkpoint,
    config: EvaluateConfig,
    stored: reading.Read[EvaluationResult],
    own: tuple[ObservedJob, ...],
    ledger: Ledger,
) -> SingleTask:
    """What is to be done by one Job at a time."""
    observed, sweep = asked.observed, asked.sweep
    template = template_digest(sweep, checkpoint.pod_template, secret=checkpoint.secret_name)
    store = requests.store_label(requests.store_uri(sweep))
    stopped = (job for job in observed.stopped if (job.key, job.store) == (config.key, store))
    label = requests.template_label(observed.operator_template, sweep, template)
    return SingleTask(
        labels=LABELS,
        observed=observed,
        jobs=own,
        stopped=tuple(stopped),
        attempts=_attempts(ledger, config),
        # What it refused about its configuration itself: that of other files is another one.
        refused=_own_error(ledger) if ledger.evaluate_key == config.key else None,
        # Changes with all that a person can change about the pod: charges under another one start at zero.
        template=f"{observed.generation}-{template}",
        asked=label,
        outdated=[job for job in own if requests.is_outdated(job, label)],
        domains=list(config.mixture),
        retries=sweep.failure_policy.retries_per_point,
        suspend=asked.spec.suspend,
        is_missing=isinstance(stored, reading.Absent),
        problem=stored.message if isinstance(stored, reading.Unreadable) else "",
        bad_data_counts=asked.question.is_answered,
    )


def _ledger_template(operator_template: str, sweep: api.ScalingSweepSpec) -> str:
    """Ledger.template as it is now: of the operator's configuration, and of what a prediction has of its sweep."""
    training = sweep.training.model_dump(mode="json", exclude_defaults=True)
    return content_key([operator_template, template_digest(sweep), training])[:16]


def _attempts(ledger: Ledger, config: EvaluateConfig) -> Attempts:
    return ledger.evaluation if ledger.evaluate_key == config.key else Attempts()


def _with_attempts(ledger: Ledger, measured: SinglePass, config: EvaluateConfig) -> Ledger:
    """Unchanged as long as no attempt has ended: a checkpoint that is measured at once needs no ledger."""
    if measured.attempts == _attempts(ledger, config):
        return ledger
    others = None if _own_error(ledger) else ledger.configuration_error
    return ledger.replace(
        evaluate_key=config.key,
        evaluation=measured.attempts,
        configuration_error=measured.refused or others,
    )


def _own_error(ledger: Ledger) -> ConfigurationError | None:
    error = ledger.configuration_error
    return error if error is not None and error.where == LABELS.name else None
