"""What a spec says of how its tasks are run, and what is written for them: where specs and task sets meet."""

from __future__ import annotations

from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.jobs.removal import expiries
from isoloss_operator.decide.jobs.requests import train_request
from isoloss_operator.decide.plans import PointWrites
from isoloss_operator.decide.tasks.act import recorded_jobs
from isoloss_operator.decide.tasks.task_pass import TaskPass
from isoloss_operator.decide.tasks.task_set import Budget, Policy


def policy_of(spec: ScalingSweepSpec) -> Policy:
    """How the points of a sweep are run, or the probes that are planned as one."""
    failures, budget = spec.failure_policy, spec.budget
    return Policy(
        parallelism=spec.parallelism,
        is_queued=spec.queue is not None,
        may_wait=spec.queue.max_waiting if spec.queue is not None else 0,
        budget=Budget(budget.flops or "", budget.accelerator_hours) if budget else None,
        retries=failures.retries_per_point,
        max_failed=failures.max_failed_points,
        stall_seconds=failures.stall_seconds,
        suspend=spec.suspend,
        searches=spec.searches,
    )


def model_fields(spec: ScalingSweepSpec) -> tuple[str, ...]:
    """preset, config or like of each size, as the manifest has it."""
    models = (proxy.model for proxy in spec.proxies)
    return tuple("like" if m.like else "config" if m.config else "preset" for m in models)


def task_writes(tasks: TaskPass, spec: ScalingSweepSpec) -> PointWrites:
    """What a pass writes for its tasks; `spec` is of the sweep that trains them."""
    before = tasks.task_set.stored.ledger
    return PointWrites(
        ledger=None if tasks.written == before else tasks.written,
        set_aside=tasks.recorded.set_aside,
        delete=tasks.delete,
        expire=expiries(spec, recorded_jobs(tasks.task_set)),
        create=tuple(
            train_request(tasks.world, spec, start.point, start.attempts, start.attempt)
            for start in tasks.starts
        ),
    )
