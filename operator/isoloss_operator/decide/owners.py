"""What the owner of tasks brings to a pass over them, and takes from it: the ledger that it begins with, the policy of a
spec, and what is written for them. Here specs and task sets meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from isoloss_contract import layout
from isoloss_contract.ledger import (
    FAILED_FOR_GOOD,
    Attempts,
    IntentAction,
    Ledger,
    LostLedger,
    PointState,
)
from isoloss_contract.reading import Read, Unreadable
from isoloss_contract.records import DataManifest, content_key
from isoloss_operator.api import (
    ScalingSweepSpec,
)
from isoloss_operator.decide.conditions import shortened, timestamp
from isoloss_operator.decide.jobs.requests import (
    aside,
    asked,
    expiries,
    store_label,
    store_uri,
    train_request,
)
from isoloss_operator.decide.observation import (
    ObservedPrediction,
    ObservedSweep,
    ObservedTasks,
    StoredPoints,
)
from isoloss_operator.decide.plans import TaskWrites
from isoloss_operator.decide.tasks.task_pass import TaskPass, recorded_jobs
from isoloss_operator.decide.tasks.task_set import Budget, Policy, Recorded, TaskSet
from isoloss_operator.planning.points import PlannedPoint, template_digest, without_shards
from isoloss_operator.planning.specs import prepare_config

MAX_PROBLEM: Final = 600

# ---------------------------------------------------------------- the ledger that a pass begins with


def sweep_ledger(observed: ObservedSweep) -> Recorded:
    """Ledger of the points of a sweep."""
    folder = layout.sweep_folder(observed.name, observed.uid)
    return _known(observed, observed.ledger, folder, has_spent=_has_spent(observed.status))


def prediction_ledger(observed: ObservedPrediction) -> Recorded:
    """Ledger of the evaluation of a prediction."""
    folder = layout.prediction_folder(observed.name, observed.uid)
    return _known(observed, observed.ledger, folder, has_spent=False)


def _known(owner: ObservedTasks, stored: Read[Ledger], folder: str, has_spent: bool) -> Recorded:
    """The ledger stored in `folder`; a new one if there is none or if what is stored is not its owner's.

    A new one finds all results again. What the former knew of failures, decisions and spend is lost, which it says.
    """
    path = layout.ledger_in(folder)
    fresh = Ledger(
        sweep=owner.name, namespace=owner.namespace, uid=owner.uid, template=_shaping(owner)
    )
    match stored:
        case Ledger(uid=owner.uid) as ledger:
            return Recorded(ledger)
        case Ledger(uid=other):
            problem, suffix = f"It is the ledger of the resource with the uid {other}.", "foreign"
        case Unreadable(message):
            problem, suffix = message, "unreadable"
        case _ if has_spent:
            problem, suffix = f"There is no {path} any more.", ""
        case _:
            return Recorded(fresh)
    request = aside(path, f"{suffix}-{_stamp(owner)}") if suffix else None
    lost = LostLedger(
        timestamp(owner.now), shortened(problem, MAX_PROBLEM), request.aside if request else ""
    )
    return Recorded(fresh.replace(lost=lost), (request,) if request else ())


def _stamp(owner: ObservedTasks) -> str:
    """Distinguishes this ledger set aside from the last one, which must stay."""
    return owner.now.strftime("%Y%m%dT%H%M%SZ")


def _shaping(owner: ObservedTasks) -> str:
    """Ledger.template as it is now: of the operator's configuration, and of what a prediction has of its sweep."""
    if not isinstance(owner, ObservedPrediction):
        return owner.operator_template
    sweep = owner.sweep.spec if owner.sweep else None
    if not isinstance(sweep, ScalingSweepSpec):
        return ""
    training = sweep.training.model_dump(mode="json", exclude_defaults=True)
    return content_key([owner.operator_template, template_digest(sweep), training])[:16]


def under_present(ledger: Ledger, owner: ObservedTasks, spec: ScalingSweepSpec) -> Ledger:
    """The ledger without what was refused about an earlier spec of `owner`, or under other pods than those of now, whose
    failures start at zero. `spec` is of the sweep that trains its points."""
    error, shaping = ledger.configuration_error, _shaping(owner)
    if error is not None and error.generation != owner.generation:
        ledger = ledger.replace(configuration_error=None)
    if shaping == ledger.template or not (shaping and ledger.template):
        return ledger
    points = ledger.points
    if _is_under_way(ledger, spec.failure_policy.max_failed_points):
        points = tuple(replace(each, attempts=_afresh(each.attempts)) for each in points)
    return ledger.replace(
        template=shaping,
        configuration_error=None,
        preparation=_afresh(ledger.preparation),
        evaluation=_afresh(ledger.evaluation),
        points=points,
    )


def _is_under_way(ledger: Ledger, max_failed: int) -> bool:
    """Whether a point is still to train, or failures keep all from it: an upgrade of the operator must not begin a sweep
    again that has its laws."""
    failed = sum(record.state in FAILED_FOR_GOOD for record in ledger.points)
    if failed > max_failed or ledger.configuration_error is not None:
        return True
    pending = (record for record in ledger.points if record.state is PointState.PENDING)
    return any(record.intent.action is IntentAction.RUN for record in pending)


def _afresh(attempts: Attempts) -> Attempts:
    """Whatever was charged was so under another template."""
    return replace(attempts, template="")


def for_spec(
    ledger: Ledger,
    owner: ObservedTasks,
    spec: ScalingSweepSpec,
    corpus: DataManifest | None = None,
) -> Ledger:
    """The ledger without what an earlier spec left behind, with the corpus once that is known."""
    ledger, prepare_key = under_present(ledger, owner, spec), prepare_config(spec).key
    if ledger.prepare_key != prepare_key:
        ledger = ledger.replace(
            prepare_key=prepare_key, preparation=Attempts(), data_digest="", corpus=None
        )
    if corpus is None or (ledger.corpus is not None and ledger.corpus.digest == corpus.digest):
        return ledger
    return ledger.replace(corpus=without_shards(corpus))


def _has_spent(status: Mapping[str, Any]) -> bool:
    """Whether a status tells of attempts: there was a ledger then."""
    return any(str(status.get(name) or "0") != "0" for name in ("spentFlops", "acceleratorHours"))


# --------------------------------------------------------------------- policies, and what is written


def policy_of(spec: ScalingSweepSpec) -> Policy:
    """How the points of a sweep are run."""
    failures, budget = spec.failure_policy, spec.budget
    return Policy(
        parallelism=spec.parallelism,
        is_queued=spec.queue is not None,
        budget=Budget(budget.flops or "", budget.accelerator_hours) if budget else None,
        retries=failures.retries_per_point,
        max_failed=failures.max_failed_points,
        stall_seconds=failures.stall_seconds,
        suspend=spec.suspend,
        searches=spec.searches,
    )


def owned_tasks(
    owner: ObservedTasks,
    stored: StoredPoints,
    known: Recorded,
    spec: ScalingSweepSpec,
    manifest: DataManifest,
    points: Iterable[PlannedPoint],
) -> TaskSet:
    """The points that `owner` trains, planned as those of a sweep with this spec."""
    return TaskSet(
        world=owner,
        stored=stored,
        policy=policy_of(spec),
        models=_model_fields(spec),
        asked=cache(partial(asked, owner, spec)),
        store=store_label(store_uri(spec)),
        points={point.key: point for point in points},
        known=replace(known, ledger=for_spec(known.ledger, owner, spec, manifest)),
        data_digest=manifest.digest,
    )


def _model_fields(spec: ScalingSweepSpec) -> tuple[str, ...]:
    """What gives each size its model: config or checkpoint."""
    return tuple("config" if p.checkpoint is None else "checkpoint" for p in spec.proxies)


def task_writes(tasks: TaskPass, spec: ScalingSweepSpec) -> TaskWrites:
    """What a pass writes for its tasks; `spec` is of the sweep that trains them."""
    before = tasks.task_set.stored.ledger
    return TaskWrites(
        ledger=None if tasks.written == before else tasks.written,
        set_aside=tasks.set_aside,
        delete=tasks.delete,
        expire=expiries(spec, recorded_jobs(tasks.task_set)),
        create=tuple(
            train_request(tasks.world, spec, start.point, start.attempts, start.attempt)
            for start in tasks.starts
        ),
    )
