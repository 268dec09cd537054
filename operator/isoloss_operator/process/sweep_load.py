"""What a sweep occupies, how low its losses are and how its attempts end, beyond what its status says: for the
metrics alone."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from isoloss_contract.ledger import DONE, Ledger, PointState
from isoloss_contract.reading import value_of
from isoloss_operator.api import ScalingSweepStatus
from isoloss_operator.decide.jobs import waits_for
from isoloss_operator.decide.observation import ObservedJob, ObservedSweep
from isoloss_operator.decide.reasons import Reason
from isoloss_operator.decide.status import failed_between
from isoloss_operator.planning.specs import InvalidSpec

JOB_STATES: Final = ("running", "starting", "queued", "unschedulable", "blocked")
SUCCEEDED: Final = "Succeeded"


@dataclass(frozen=True)
class SweepLoad:
    """Jobs, accelerators and budget of a sweep at one moment."""

    jobs: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(JOB_STATES, 0))
    """Unfinished Jobs by state."""
    accelerators: int = 0
    """Devices that running pods hold; a pod that asks for none counts as one."""
    oldest_progress: datetime | None = None
    """When the training point that has been silent longest last advanced; None: nothing trains."""
    budget_used: Mapping[str, float] = field(default_factory=dict)
    """Spent over allowed, by what spec.budget limits."""
    lowest_losses: Mapping[str, float] = field(default_factory=dict)
    """Lowest loss of each size's points that succeeded, nats per token, keyed by size name."""


def sweep_load(observed: ObservedSweep, status: ScalingSweepStatus) -> SweepLoad:
    """The load of a sweep as a pass has observed it; `status` is what that pass decided."""
    unfinished = [job for job in observed.jobs if not job.is_finished]
    states = Counter(job_state(job) for job in unfinished)
    training = {job.uid for job in unfinished if job.kind == "train"}
    silent = [since for uid, since in observed.unchanged_since.items() if uid in training]
    return SweepLoad(
        jobs={state: states[state] for state in JOB_STATES},
        accelerators=sum(
            job.accelerators * job.pods_at_work for job in unfinished if job.working_since
        ),
        oldest_progress=min(silent, default=None),
        budget_used=_budget_used(observed, status),
        lowest_losses=_lowest_losses(value_of(observed.ledger)),
    )


def job_state(job: ObservedJob) -> str:
    """One of JOB_STATES, for an unfinished Job."""
    if job.is_at_work:
        return "running"
    wait = waits_for(job)
    if wait is None:
        return "starting"
    if wait.reason is Reason.QUEUED:
        return "queued"
    # Without a pod it is most often a quota that has no room, just as a full cluster.
    return "unschedulable" if wait.reason is Reason.UNSCHEDULABLE or job.pod is None else "blocked"


def attempts_ended(before: Ledger | None, after: Ledger) -> Counter[str]:
    """Attempts of points that ended between two ledgers, by FailureClass or SUCCEEDED."""
    ended = Counter(record.attempts.last_failure for record in failed_between(before, after))
    done = set() if before is None else {r.key for r in before.by_key.values() if r.state in DONE}
    results = (r for r in after.points if r.state in DONE and not r.adopted and r.key not in done)
    ended.update(SUCCEEDED for _ in results)
    return ended


def _lowest_losses(ledger: Ledger | None) -> dict[str, float]:
    """Those that the stored ledger knows: averaged weights if there are any, as the laws are fitted to."""
    lowest: dict[str, float] = {}
    for record in ledger.points if ledger is not None else ():
        loss = record.averaged_loss if record.averaged_loss is not None else record.loss
        if record.state is PointState.SUCCEEDED and loss is not None:
            lowest[record.proxy] = min(loss, lowest.get(record.proxy, loss))
    return lowest


def _budget_used(observed: ObservedSweep, status: ScalingSweepStatus) -> dict[str, float]:
    spec = observed.spec
    if isinstance(spec, InvalidSpec) or spec.budget is None:
        return {}
    limits = {"flops": spec.budget.flops, "acceleratorHours": spec.budget.accelerator_hours}
    spent = {"flops": status.spent_flops, "acceleratorHours": status.accelerator_hours}
    return {
        name: float(spent[name] or 0) / float(limit) for name, limit in limits.items() if limit
    }
