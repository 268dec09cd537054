"""What happens before the corpus is tokenised: one prepare Job at a time, its failures in words."""

from __future__ import annotations

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.records import DataManifest
from isoloss_contract.store import StoreError
from isoloss_operator.decide.admission import next_attempt, prepare_request, slots_taken
from isoloss_operator.decide.bookkeeping import charges, not_before
from isoloss_operator.decide.conditions import Finding, Reason, shortened
from isoloss_operator.decide.observation import JobRequest, ObservedJob, SetAside, SweepPlan
from isoloss_operator.decide.outcomes import FailureClass, pod_trouble
from isoloss_operator.decide.recording import (
    for_generation,
    known_ledger,
    record_preparation,
    record_stops,
)
from isoloss_operator.decide.sweep_status import SweepFacts, numbers
from isoloss_operator.decide.sweep_view import (
    ALL_ACCEPTED,
    Assessment,
    SweepView,
    deletions,
    expiries,
    plan,
    suspension,
)
from isoloss_operator.planning.points import plan_points, template_digest


def manifest_problem(view: SweepView) -> str:
    """Why what lies in the manifest's place is not this sweep's corpus; empty: it is, or nothing lies there."""
    manifest = view.observed.manifest
    if manifest is None:
        return ""
    if isinstance(manifest, StoreError):
        return str(manifest)
    wanted = {domain.name for domain in view.spec.data.domains}
    found = {domain.name for domain in manifest.domains}
    if manifest.prepare_key != view.config.key:
        return f"it is the manifest of {manifest.prepare_key}"
    if found != wanted or manifest.sequence_length != view.spec.data.sequence_length:
        return "its domains or sequence length are not those of the spec"
    return ""


def usable_manifest(view: SweepView) -> DataManifest | None:
    """The manifest of the tokenised corpus, once it is there and right."""
    manifest = view.observed.manifest
    if isinstance(manifest, DataManifest) and not manifest_problem(view):
        return manifest
    return None


def decide_preparation(view: SweepView) -> SweepPlan:
    """The plan while there is no usable manifest."""
    observed, spec = view.observed, view.spec
    template = template_digest(spec, spec.data.pod_template)
    ledger, set_aside = known_ledger(observed)
    ledger = for_generation(ledger, observed.generation, view.config.key)
    ledger = record_preparation(
        ledger,
        observed,
        view.prepare_jobs,
        template=template,
        domains=[domain.name for domain in spec.data.domains],
    )
    problem = manifest_problem(view)
    if problem:
        set_aside = (*set_aside, _manifest_aside(view, ledger, problem))
    obsolete = _obsolete(view)
    delete = deletions(obsolete, "the corpus it worked on is not the spec's any more")
    create: tuple[JobRequest, ...] = ()
    if spec.suspend:
        stopped = [job for job in view.prepare_jobs if not job.is_finished and not job.deleting]
        ledger = record_stops(ledger, stopped, observed)
        delete = (*delete, *deletions(stopped, "the sweep is suspended"))
    elif _may_start(view, ledger, template):
        attempt = next_attempt(ledger.preparation, view.prepare_jobs)
        create = (prepare_request(observed, spec, view.config, attempt),)
    durable = view.stored_ledger
    recorded = durable.preparation.ended if durable else 0
    return plan(
        observed,
        _assess(view, ledger, create, problem),
        ledger=ledger,
        set_aside=set_aside,
        delete=delete,
        expire=expiries(
            spec, [*obsolete, *(job for job in view.prepare_jobs if job.attempt <= recorded)]
        ),
        create=create,
        numbers=_numbers(view, ledger),
        requeue_after=_requeue_after(view, ledger, template),
    )


def _obsolete(view: SweepView) -> list[ObservedJob]:
    """Jobs on another corpus. Where only the manifest was damaged, points go on training."""
    durable = view.stored_ledger
    same_corpus = durable is not None and durable.prepare_key == view.config.key
    wanted = {job.uid for job in (view.own_jobs if same_corpus else view.prepare_jobs)}
    return [job for job in view.observed.jobs if job.uid not in wanted]


def _manifest_aside(view: SweepView, ledger: Ledger, problem: str) -> SetAside:
    path = layout.data_manifest(view.config.key)
    aside = f"{path}.unreadable-{ledger.preparation.ended + 1}"
    return SetAside(path=path, aside=aside, why=shortened(problem, 500))


def _may_start(view: SweepView, ledger: Ledger, template: str) -> bool:
    observed = view.observed
    if ledger.configuration_error or _has_failed(view, ledger, template):
        return False
    if (
        any(job.kind == "prepare" for job in view.running)
        or view.config.key in observed.loose_pods
    ):
        return False
    if slots_taken(observed) >= view.spec.parallelism:
        return False
    start = not_before(ledger.preparation, template)
    return start is None or start <= observed.now


def _has_failed(view: SweepView, ledger: Ledger, template: str) -> bool:
    """Whether the retries are used up. Bad data does not count: the corpus may be mended in the store."""
    attempts = ledger.preparation
    bad_data = attempts.charged.get(FailureClass.BAD_DATA, 0)
    counted = charges(attempts, template)
    return counted > 0 and counted - bad_data > view.spec.failure_policy.retries_per_point


def _numbers(view: SweepView, ledger: Ledger) -> dict[str, object]:
    """The points are counted already, although they have no keys yet."""
    points = plan_points(view.spec)
    facts = SweepFacts(view.store_uri, points, ledger, (), view.observed.fit, fit_is_final=False)
    found = numbers(view.observed, facts)
    counts = found["points"].model_copy(update={"total": len(points), "pending": len(points)})
    return {**found, "points": counts, "progress": f"0/{len(points)}"}


def _requeue_after(view: SweepView, ledger: Ledger, template: str) -> float:
    start = not_before(ledger.preparation, template)
    if start is None or view.running:
        return 30.0
    return min(300.0, max(1.0, (start - view.observed.now).total_seconds()))


# -------------------------------------------------------------------------------------- in words


def _assess(
    view: SweepView, ledger: Ledger, create: tuple[JobRequest, ...], problem: str
) -> Assessment:
    data, stalled = _data_finding(view, ledger, problem)
    accepted = ALL_ACCEPTED
    if ledger.configuration_error is not None:
        accepted = Finding.false(Reason.BAD_CONFIGURATION, data.message)
    elif view.observed.create_error:
        accepted = Finding.false(Reason.JOB_REFUSED, view.observed.create_error)
    return Assessment(
        accepted=accepted,
        data=data,
        progressing=Finding(
            "True" if data.reason == Reason.PREPARING_DATA else "False", data.reason, data.message
        ),
        suspended=suspension(view),
        stalled=stalled and not view.spec.suspend,
        converging="The prepare Job is being started." if create else "",
    )


def _data_finding(view: SweepView, ledger: Ledger, problem: str) -> tuple[Finding, bool]:
    """DataReady, and whether nothing will happen without someone's help."""
    error = ledger.configuration_error
    if error is not None:
        where = f"{error.field}: " if error.field else ""
        return Finding.false(Reason.BAD_CONFIGURATION, f"{where}{error.message}"), True
    if view.spec.suspend:
        return Finding.false(Reason.SUSPENDED, "spec.suspend is true: the corpus waits."), False
    if view.observed.create_error:
        return Finding.false(Reason.JOB_REFUSED, view.observed.create_error), True
    active = [job for job in view.prepare_jobs if job.holds_a_slot]
    if active:
        return _running_finding(active[-1]), False
    if _has_failed(view, ledger, template_digest(view.spec, view.spec.data.pod_template)):
        return Finding.false(Reason.PREPARATION_FAILED, _last_words(ledger)), True
    if ledger.preparation.last_failure:
        return _failed_finding(ledger)
    if problem:
        return Finding.false(
            Reason.MANIFEST_UNREADABLE, f"The corpus is prepared anew: {problem}"
        ), False
    return Finding.false(Reason.PREPARING_DATA, "The corpus is about to be tokenised."), False


def _running_finding(job: ObservedJob) -> Finding:
    if job.suspended:
        return Finding.false(Reason.QUEUED, f"Job {job.name} waits for Kueue to admit it.")
    if trouble := pod_trouble(job):
        return Finding.false(trouble.reason, f"Job {job.name}: {trouble.message}")
    return Finding.false(Reason.PREPARING_DATA, f"Job {job.name} tokenises the corpus.")


def _failed_finding(ledger: Ledger) -> tuple[Finding, bool]:
    attempts = ledger.preparation
    if attempts.last_failure == FailureClass.BAD_DATA:
        # The trainer's own code (TextFieldMissing, …) says more than ours, where it gave one.
        return Finding.false(attempts.last_code or Reason.BAD_DATA, _last_words(ledger)), True
    if attempts.last_failure in (FailureClass.INTERRUPTED, FailureClass.POD_VANISHED):
        message = "The prepare Job was interrupted and starts again."
    else:
        message = (
            f"The prepare Job starts again after attempt {attempts.ended}: {_last_words(ledger)}"
        )
    return Finding.false(Reason.WAITING_TO_RETRY, message), False


def _last_words(ledger: Ledger) -> str:
    return ledger.preparation.last_message or "no reason was given"
