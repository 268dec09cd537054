"""One pass over a set of tasks: its stages in order, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from isoloss_contract.ledger import FAILED_FOR_GOOD, IntentAction, Ledger, PointRecord, PointState
from isoloss_operator.decide.observation import ObservedJob, ObservedTasks
from isoloss_operator.decide.plans import JobDeletion
from isoloss_operator.decide.tasks.account import Spending, account, exceeded
from isoloss_operator.decide.tasks.act import act, has_unrecorded
from isoloss_operator.decide.tasks.admit import Admission, Start, admit
from isoloss_operator.decide.tasks.intend import intend
from isoloss_operator.decide.tasks.ledgers import Recorded
from isoloss_operator.decide.tasks.record import Unread, record, stop_recorded, unread
from isoloss_operator.decide.tasks.task_set import Policy, TaskSet
from isoloss_operator.planning.points import PlannedPoint


@dataclass(frozen=True)
class TaskPass:
    """What a pass found out about a set of tasks, and what it does."""

    task_set: TaskSet
    recorded: Recorded
    """The ledger with everything observed in it, and what is intended."""
    spending: Spending
    """What all attempts have cost, running ones included."""
    budget_spent: str
    """Which part of the budget is spent; empty: there is some left."""
    unread: Unread
    failed: tuple[PointRecord, ...]
    """Tasks that failed for good."""
    admission: Admission
    """What parallelism, budget and delays admit."""
    starts: tuple[Start, ...]
    """What starts now."""
    is_quiet: bool
    """Whether no task is running and none will, unless more are chosen."""
    delete: tuple[JobDeletion, ...]
    written: Ledger
    """The ledger with the Jobs that this pass stops in it."""

    @property
    def ledger(self) -> Ledger:
        """With everything observed in it."""
        return self.recorded.ledger

    @property
    def world(self) -> ObservedTasks:
        """Its owner and its Jobs."""
        return self.task_set.world

    @property
    def points(self) -> Mapping[str, PlannedPoint]:
        """Every task by key, in planned order."""
        return self.task_set.points

    @property
    def active(self) -> tuple[ObservedJob, ...]:
        """Jobs of planned tasks that hold a slot."""
        return self.task_set.active

    @property
    def policy(self) -> Policy:
        """How they are run."""
        return self.task_set.policy

    @property
    def too_many_failed(self) -> bool:
        """Whether more tasks failed for good than the policy allows."""
        return len(self.failed) > self.policy.max_failed


def run(tasks: TaskSet) -> TaskPass:
    """The stages in order, each once."""
    observed = record(tasks)
    spending = account(tasks, observed)
    budget_spent = exceeded(tasks.policy.budget, spending)
    recorded = intend(tasks, observed, is_spent=bool(budget_spent))
    missing = unread(tasks, recorded.ledger)
    admission = admit(tasks, recorded, missing.all, spending)
    failed = tuple(r for r in recorded.ledger.points if r.state in FAILED_FOR_GOOD)
    is_blocked = (
        recorded.ledger.configuration_error is not None or len(failed) > tasks.policy.max_failed
    )
    delete, stopped = act(tasks, recorded)
    return TaskPass(
        task_set=tasks,
        recorded=recorded,
        spending=spending,
        budget_spent=budget_spent,
        unread=missing,
        failed=failed,
        admission=admission,
        starts=() if is_blocked or tasks.policy.suspend else admission.starts,
        is_quiet=not is_blocked and _is_quiet(tasks, recorded.ledger, admission, missing),
        delete=delete,
        written=stop_recorded(recorded.ledger, stopped, tasks),
    )


def _is_quiet(tasks: TaskSet, ledger: Ledger, admission: Admission, missing: Unread) -> bool:
    if tasks.active or tasks.world.orphaned_pods:
        return False
    if admission.starts or admission.waiting or missing.all:
        return False
    pending = (r for r in ledger.points if r.state is PointState.PENDING)
    running = sum(record.intent.action is IntentAction.RUN for record in pending)
    return running == len(admission.unaffordable)


def next_look(tasks: TaskPass) -> float:
    """Seconds until the next pass unless an event comes first; infinite: nothing is under way."""
    if tasks.unread.all:
        return 15.0
    if has_unrecorded(tasks.task_set):
        return 1.0
    due = tasks.admission.next_start
    if due is not None and not tasks.starts:
        return min(60.0, max(1.0, (due - tasks.world.now).total_seconds()))
    return 30.0 if any(job.holds_a_slot for job in tasks.world.jobs) else math.inf
