"""How a sweep with known points stands, and how its conditions put that into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isoloss.laws import Laws
from isoloss_contract.ledger import DONE, Ledger, PointRecord, PointState
from isoloss_contract.records import DataManifest
from isoloss_operator.decide.admission import Admission, slots_taken
from isoloss_operator.decide.conditions import Finding, Reason
from isoloss_operator.decide.fit_requests import fit_inputs, is_fitted
from isoloss_operator.decide.observation import JobDeletion, ObservedJob
from isoloss_operator.decide.outcomes import PodTrouble, pod_trouble
from isoloss_operator.decide.recording import Books
from isoloss_operator.decide.sweep_status import failed_in_words
from isoloss_operator.decide.sweep_view import ALL_ACCEPTED, Assessment, SweepView, suspension
from isoloss_operator.planning.points import PlannedPoint, repeated_domains


@dataclass(frozen=True)
class Stage:
    """A sweep whose points are known and whose ledger is up to date."""

    view: SweepView
    manifest: DataManifest
    points: Mapping[str, PlannedPoint]
    books: Books
    admission: Admission
    failed: tuple[PointRecord, ...]

    @property
    def ledger(self) -> Ledger:
        """With everything observed in it."""
        return self.books.ledger

    @property
    def too_many_failed(self) -> bool:
        """Whether more points failed for good than the failure policy allows."""
        return len(self.failed) > self.view.spec.failure_policy.max_failed_points

    @property
    def active(self) -> tuple[ObservedJob, ...]:
        """Train Jobs of planned points that hold a slot."""
        return tuple(
            job for job in self.view.running if job.kind == "train" and job.key in self.points
        )

    @property
    def is_complete(self) -> bool:
        """Whether no point runs and none will, as things are."""
        left = self.admission.starts or self.admission.waiting or self.books.unknown
        pending = sum(r.state is PointState.PENDING for r in self.ledger.points)
        return (
            not self.active
            and not left
            and not self.view.observed.loose_pods
            and pending == len(self.admission.unaffordable)
        )


# -------------------------------------------------------------------------------------- in words


def assess(
    stage: Stage, starts: Sequence[PlannedPoint], delete: Sequence[JobDeletion], *, final: bool
) -> Assessment:
    """What the conditions say once the points are known; `starts` and `delete` are about to happen."""
    progressing, stalled = _progress_finding(stage, starts)
    fit = _fit_finding(stage, final=final)
    ready: Finding | None = None
    if final:
        ready, progressing, stalled = _final_findings(stage, fit, progressing)
    error = stage.ledger.configuration_error
    accepted = ALL_ACCEPTED
    if error is not None:
        accepted = Finding.false(Reason.BAD_CONFIGURATION, progressing.message)
    elif stage.view.observed.create_error:
        accepted = Finding.false(Reason.JOB_REFUSED, stage.view.observed.create_error)
    changes = [f"{len(starts)} Jobs are being started"] if starts else []
    changes += [f"{len(delete)} Jobs are being stopped"] if delete else []
    return Assessment(
        accepted=accepted,
        data=Finding.true(
            Reason.DATA_PREPARED, f"The tokenised corpus is {stage.manifest.digest[:16]}."
        ),
        progressing=progressing,
        fit=fit,
        ready=ready,
        suspended=suspension(stage.view),
        stalled=stalled,
        converging="; ".join(changes),
    )


def _progress_finding(stage: Stage, starts: Sequence[PlannedPoint]) -> tuple[Finding, bool]:
    """Progressing while the sweep is not complete, and whether it is stuck for good."""
    error, spec = stage.ledger.configuration_error, stage.view.spec
    if error is not None:
        where = f"{error.field}: " if error.field else ""
        message = f"{where}{error.message} (found by {error.where})"
        return Finding.false(Reason.BAD_CONFIGURATION, message), True
    if stage.too_many_failed:
        allowed = spec.failure_policy.max_failed_points
        message = (
            f"{len(stage.failed)} points failed for good, more than the {allowed} of "
            f"failurePolicy.maxFailedPoints: {failed_in_words(stage.failed)}"
        )
        return Finding.false(Reason.TOO_MANY_FAILED_POINTS, message), True
    if spec.suspend:
        finding = suspension(stage.view)
        return Finding.false(finding.reason, finding.message), False
    if stage.view.observed.create_error:
        return Finding.false(Reason.JOB_REFUSED, stage.view.observed.create_error), True
    return _running_finding(stage, starts), False


def _running_finding(stage: Stage, starts: Sequence[PlannedPoint]) -> Finding:
    active = [job for job in stage.active if not job.is_finished]
    troubles = [trouble for job in active if (trouble := pod_trouble(job))]
    queued = [job for job in active if job.suspended]
    done = sum(record.state in DONE for record in stage.ledger.points)
    total = len(stage.ledger.points)
    if active and not starts and len(troubles) + len(queued) == len(active):
        if troubles:
            return Finding.false(troubles[0].reason, _in_trouble(troubles, len(active)))
        return Finding.false(Reason.QUEUED, f"{len(queued)} Jobs wait for Kueue to admit them.")
    if not active and not starts and stage.admission.waiting:
        return Finding.true(
            Reason.WAITING_TO_RETRY,
            f"{done} of {total} points are done; {stage.admission.waiting} start again after a delay.",
        )
    message = f"{done} of {total} points are done, {len(active) + len(starts)} train."
    if troubles:
        message += f" {_in_trouble(troubles, len(active))}"
    return Finding.true(Reason.TRAINING, message)


def _in_trouble(troubles: Sequence[PodTrouble], active: int) -> str:
    return f"{len(troubles)} of {active} Jobs can not start: {troubles[0].message}"


def _final_findings(
    stage: Stage, fit: Finding, progressing: Finding
) -> tuple[Finding, Finding, bool]:
    """Ready, Progressing and whether it is stuck, once no point runs and none will."""
    laws = final_laws(stage)
    unaffordable = stage.admission.unaffordable
    if unaffordable:
        reason, rest = Reason.BUDGET_EXHAUSTED, f"{len(unaffordable)} points are not started: "
        progressing = Finding.false(reason, rest + stage.admission.budget_message)
    else:
        progressing = Finding.false(Reason.FINISHED, "Every point has its outcome.")
    if laws is not None and laws.status != "refused":
        return Finding.true(Reason.FITTED, fit.message), progressing, False
    is_over = laws is not None or fit.reason in (Reason.NO_RESULTS, Reason.FIT_FAILED)
    return Finding.false(fit.reason, fit.message), progressing, is_over


def final_laws(stage: Stage) -> Laws | None:
    """The laws of all points, once they are fitted."""
    fit = stage.view.observed.fit
    inputs = fit_inputs(stage.view.spec, stage.ledger.points, final=True)
    return fit.laws if fit is not None and is_fitted(fit, inputs) else None


def _fit_finding(stage: Stage, *, final: bool) -> Finding:
    fit = stage.view.observed.fit
    done = sum(record.state in DONE for record in stage.ledger.points)
    if not done:
        message = "No point has a result yet." if not final else "No point ever got a result."
        return Finding.false(Reason.NO_RESULTS, message)
    is_current = fit is not None and is_fitted(
        fit, fit_inputs(stage.view.spec, stage.ledger.points, final=final)
    )
    if final and not is_current:
        return Finding.false(Reason.FITTING, f"The laws are being fitted to {done} points.")
    if fit is None:
        return Finding.false(
            Reason.NO_RESULTS, f"{done} points are done: too few for a first fit."
        )
    if fit.laws is None:
        return Finding.false(Reason.FIT_FAILED, fit.error or "The fit could not run.")
    return _laws_finding(fit.laws, fit.points, final=final)


def _laws_finding(laws: Laws, points: int, *, final: bool) -> Finding:
    if laws.status == "refused":
        refusal = next(iter(laws.refusals), None)
        reason = refusal.reason.value if refusal else Reason.LAWS_REFUSED
        message = refusal.message if refusal else "The data do not support the laws."
        return Finding.false(reason, message if final else f"So far: {message}")
    if final:
        return Finding.true(Reason.FITTED, f"The laws are fitted to {points} points.{_but(laws)}")
    message = f"The laws are fitted to the first {points} points.{_but(laws)}"
    return Finding.true(Reason.PROVISIONAL, message)


def _but(laws: Laws) -> str:
    """Which laws are refused although another route answers; empty where none is."""
    named = {
        "learning rate": laws.learning_rate.status,
        "batch size": laws.batch_size.status,
        "loss over compute": laws.loss_compute.status,
    }
    refused = [name for name, status in named.items() if status == "refused"]
    if not refused:
        return ""
    reasons = " ".join(refusal.message for refusal in laws.refusals)
    return (
        f" Of the iso-loss laws, those of {', '.join(refused)} are refused: {reasons} "
        "Answers rest on the joint surface alone where they need them."
    )


def warnings(stage: Stage) -> tuple[str, ...]:
    """What to mind, beside what the fit warns of."""
    found = []
    if stage.failed:
        found.append(
            f"{len(stage.failed)} points failed and take no part: {failed_in_words(stage.failed)}"
        )
    if stage.admission.unaffordable:
        found.append(stage.admission.budget_message)
    repeated = repeated_domains(stage.view.spec, stage.manifest)
    if repeated:
        named = ", ".join(f"{name} {times:.1f} times" for name, times in repeated.items())
        found.append(f"The longest runs see some domains more than once: {named}.")
    over = slots_taken(stage.view.observed) - stage.view.spec.parallelism
    if over > 0:
        found.append(f"{over} Jobs more than spec.parallelism still run; none is started.")
    return tuple(found)
