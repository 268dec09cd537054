"""What happens next with a sweep: the rows of the state table in operator/README.md, one to one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from isoloss.laws import FitOptions, Refusal, RefusalReason, refused_laws
from isoloss_contract.ledger import Attempts, IntentAction, Ledger, PointState
from isoloss_contract.reading import ABSENT, Newer, Unanswered, Unreadable
from isoloss_contract.records import ExitCode, Outcome, content_key
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.conditions import timestamp
from isoloss_operator.decide.fit_requests import fit_inputs
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.labels import LABEL_KEY
from isoloss_operator.decide.observation import ObservedPod, ObservedSweep, ObservedWorkload
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.decide.search_steps import PointDecision, SearchStep
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.decide.sweep_reads import first_reads, sweep_reads
from isoloss_operator.planning.points import PlannedPoint
from isoloss_operator.planning.specs import parse_sweep_spec, prepare_config
from tests.support.builders import (
    NOW,
    STORE,
    after,
    complete,
    condition,
    failed,
    job,
    manifest,
    names,
    observed,
    parsed,
    points,
    progress,
    result,
    sweep_spec,
    vanished,
    words,
)
from tests.support.ledgers import read_back
from tests.support.planted_laws import fitted_laws
from tests.support.published_configs import TOY_CHECKPOINT

README = Path(__file__).parents[3] / "operator" / "README.md"
POINTS = points()
FIRST = POINTS[0]
CHECKPOINT = "s3://bucket/models/target"
LIKE = {
    "name": "alike",
    "model": {"like": {"checkpoint": CHECKPOINT, "parameters": 1_000_000}},
    "tokens": 1_000_000,
}
SEQUENTIAL = {"strategy": "Sequential"}
PREPARE_KEY = prepare_config(parse_sweep_spec(sweep_spec())).key


def known(world: ObservedSweep, **changes: Any) -> ObservedSweep:
    """The world one pass later: ledger and status of that pass are written."""
    return after(world, decide_sweep(world), **changes)


def training(**changes: Any) -> ObservedSweep:
    """Three points train and the ledger knows all eight."""
    return known(observed(), **{"jobs": tuple(job(p) for p in POINTS[:3]), **changes})


def unprepared(*jobs: Any, **changes: Any) -> ObservedSweep:
    return known(observed(manifest=ABSENT), jobs=jobs, **changes)


def all_done(**changes: Any) -> ObservedSweep:
    """Every point has its result in the ledger."""
    world = observed(results={p.key: result(p) for p in POINTS})
    return known(world, results={}, **changes)


def test_fits_from_before_the_convention_of_flops_are_not_made_again() -> None:
    """At its default the field is no part of what a fit depends on; otherwise it is."""
    world = all_done()
    assert isinstance(world.ledger, Ledger)
    spec, records = spec_of(world), world.ledger.points
    done = [[r.key, r.name, r.trajectory_sha256, str(r.state), r.taken_back] for r in records]
    fit = spec.fit.model_dump(mode="json", exclude={"flops"})
    assert fit_inputs(spec, records, final=True) == content_key([done, fit, True])
    counted = spec.fit.model_copy(update={"flops": "WithAttention"})
    other = fit_inputs(spec.model_copy(update={"fit": counted}), records, final=True)
    assert other != fit_inputs(spec, records, final=True)


def with_fit(world: ObservedSweep, laws: Any, **changes: Any) -> ObservedSweep:
    """The final fit of the ledger's points is done."""
    assert isinstance(world.ledger, Ledger)
    inputs = fit_inputs(spec_of(world), world.ledger.points, final=True)
    fit = FitOutcome(inputs=inputs, laws=laws, laws_sha256="f" * 64, points=8, **changes)
    return replace(world, fit=fit)


def ready() -> ObservedSweep:
    """Its final laws are in the status."""
    return known(with_fit(all_done(), fitted_laws()))


def search_answered(**outcome: Any) -> ObservedSweep:
    """The first step of a search has its outcome."""
    world = known(observed(spec_with(search=SEQUENTIAL)))
    request = decide_sweep(world).fit
    assert request is not None
    return replace(world, fit=FitOutcome(inputs=request.inputs, laws=None, **outcome))


def chosen(point: PlannedPoint) -> PointDecision:
    """It is to run to the first rung."""
    return PointDecision(
        size=point.proxy.name,
        batch_size=point.batch_size,
        learning_rate=point.learning_rate,
        action=IntentAction.RUN,
        tokens=300_000,
        reason="SmallestSize",
        bound=None,
        flops=1e12,
        risk=0.0,
        added=False,
    )


def queued(workload: ObservedWorkload) -> ObservedSweep:
    """Three Jobs wait for Kueue, which says why."""
    waiting = {"suspended": True, "pod": None, "unfinished_pods": 0, "workload": workload}
    return training(jobs=tuple(job(p, **waiting) for p in POINTS[:3]))


def spec_of(world: ObservedSweep) -> ScalingSweepSpec:
    assert isinstance(world.spec, ScalingSweepSpec)
    return world.spec


def refused() -> Any:
    refusal = Refusal(RefusalReason.OPTIMUM_ON_LEARNING_RATE_EDGE, "Extend the learning rates.")
    return refused_laws(refusal, (), FitOptions())


def spec_with(**changes: Any) -> dict[str, Any]:
    return sweep_spec(**changes)


def waiting(reason: str, message: str) -> ObservedPod:
    return ObservedPod(phase="Pending", waiting_reason=reason, waiting_message=message)


def out_of_memory(count: int) -> ObservedSweep:
    """So many points ran out of memory for good."""
    ended = tuple(failed(p, ExitCode.OUT_OF_MEMORY) for p in POINTS[:count])
    return known(training(jobs=ended), jobs=())


def hung(seconds: float) -> ObservedSweep:
    """Three points train; the first has reported no progress for so long, and 600 s are allowed."""
    spec = spec_with(failurePolicy={"stallSeconds": 600})
    jobs = tuple(job(p, working_since=NOW - timedelta(hours=2)) for p in POINTS[:3])
    since = {jobs[0].uid: NOW - timedelta(seconds=seconds), jobs[1].uid: NOW}
    return known(observed(spec), jobs=jobs, unchanged_since=since)


@dataclass(frozen=True)
class Row:
    """One state: how the world looks, what is done about it and what the conditions say."""

    world: Callable[[], ObservedSweep]
    ready: tuple[str, str]
    starts: tuple[str, ...] = ()
    """Points, or prepare; with -a2 from the second attempt on."""
    deletes: int = 0
    sets_aside: int = 0
    fits: bool = False
    stalled: bool = False
    also: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    says: str = ""
    """Part of Ready's message."""


ROWS: dict[str, Row] = {
    "an invalid spec stalls, names the field and touches nothing": Row(
        lambda: observed(
            spec_with(grid={"batchSizes": [8, 16], "learningRates": [1e-3, 2e-3]}),
            manifest=manifest(),
        ),
        ("False", "InvalidSpec"),
        stalled=True,
        also={"Accepted": ("False", "InvalidSpec")},
        says="spec.grid.learningRates[0]: is a number and must be a string: quote it",
    ),
    "storage that the namespace may not use stalls": Row(
        lambda: observed(storage_refusal="namespace research may use s3://other/ only"),
        ("False", "StorageNotAllowed"),
        stalled=True,
        also={"Accepted": ("False", "StorageNotAllowed")},
    ),
    "a store that does not answer is waited for and running Jobs are left alone": Row(
        lambda: training(
            store_error="s3://bucket: connection refused", manifest=ABSENT, ledger=ABSENT
        ),
        ("False", "StorageUnreachable"),
        also={
            "Reconciling": ("True", "StorageUnreachable"),
            "Stalled": ("False", "NothingWrong"),
        },
    ),
    "a ready sweep stays ready while its store does not answer": Row(
        lambda: replace(ready(), store_error="s3://bucket: connection refused", manifest=ABSENT),
        ("True", "Fitted"),
        also={
            "Accepted": ("False", "StorageUnreachable"),
            "FitReady": ("True", "Fitted"),
            "Progressing": ("False", "Finished"),
        },
    ),
    "a ledger of a newer operator is left alone": Row(
        lambda: observed(ledger=Newer("ledger_version 3 is newer than the 2 known here")),
        ("False", "LedgerNewer"),
        stalled=True,
        says="upgrade the operator again",
    ),
    "a store that returns no result decides nothing": Row(
        lambda: training(
            jobs=(complete(FIRST), job(POINTS[1]), job(POINTS[2])),
            results={FIRST.key: Unanswered("result.json: timeout")},
        ),
        ("False", "StorageUnreachable"),
    ),
    "a manifest that a newer version wrote is not prepared again": Row(
        lambda: training(manifest=Newer("manifest.json: written by a newer isoloss")),
        ("False", "StorageUnreachable"),
    ),
    "a proxy like a checkpoint without a config.json stalls and names the field": Row(
        lambda: observed(
            spec_with(proxies=[LIKE]),
            manifest=manifest(),
            like_configs={CHECKPOINT: ABSENT},
        ),
        ("False", "InvalidSpec"),
        stalled=True,
        also={"Accepted": ("False", "InvalidSpec")},
        says=f"spec.proxies[0].model.like.checkpoint: {CHECKPOINT}/config.json: not found",
    ),
    "a model with a smaller vocabulary than the tokenizer is refused": Row(
        lambda: observed(manifest=manifest(vocabulary_size=2048), spec=parsed(_llama_spec())),
        ("False", "InvalidSpec"),
        stalled=True,
        says="smaller than the tokenizer's 2048",
    ),
    "a store that does not take a preparation's ledger is named": Row(
        lambda: observed(manifest=ABSENT, store_write_error="s3://bucket: QuotaExceeded"),
        ("False", "StorageNotWritable"),
        starts=("prepare",),
        also={
            "Accepted": ("False", "StorageNotWritable"),
            "DataReady": ("False", "PreparingData"),
            "Reconciling": ("True", "StorageNotWritable"),
        },
        says="QuotaExceeded",
    ),
    "while the prepare Job runs nothing else starts": Row(
        lambda: unprepared(job(PREPARE_KEY)),
        ("False", "PreparingData"),
    ),
    "a prepare pod without its secret says so and waits": Row(
        lambda: unprepared(
            job(
                PREPARE_KEY,
                pod=waiting("CreateContainerConfigError", 'secret "sweep-s3" not found'),
            )
        ),
        ("False", "SecretMissing"),
        says='secret "sweep-s3" not found',
    ),
    "a prepare Job that failed too often stalls": Row(
        lambda: unprepared(
            *(failed(PREPARE_KEY, 1, attempt=n) for n in (1, 2, 3, 4)),
        ),
        ("False", "PreparationFailed"),
        stalled=True,
    ),
    "an unusable corpus stalls with the trainer's message and is retried later": Row(
        lambda: unprepared(
            failed(
                PREPARE_KEY,
                ExitCode.BAD_DATA,
                pod_termination_message=words(
                    "TextFieldMissing", "no field body in a.jsonl:3", "domains.math.text_field"
                ),
            )
        ),
        ("False", "TextFieldMissing"),
        stalled=True,
        also={"DataReady": ("False", "TextFieldMissing")},
        says="spec.data.domains[1].textField: no field body in a.jsonl:3",
    ),
    "a damaged manifest is set aside and the corpus prepared again": Row(
        lambda: observed(manifest=Unreadable("manifest.json: digest: field required")),
        ("False", "ManifestUnreadable"),
        starts=("prepare",),
        sets_aside=1,
    ),
    "an unprepared corpus gets its prepare Job": Row(
        lambda: observed(manifest=ABSENT),
        ("False", "PreparingData"),
        starts=("prepare",),
        also={"DataReady": ("False", "PreparingData"), "Reconciling": ("True", "Converging")},
    ),
    "a store that does not take the ledger is named, and nothing is said to start": Row(
        lambda: observed(store_write_error="s3://bucket: QuotaExceeded"),
        ("False", "StorageNotWritable"),
        starts=("tiny-b8-lr1e-3", "tiny-b8-lr2e-3", "tiny-b16-lr1e-3"),
        also={
            "Accepted": ("False", "StorageNotWritable"),
            "Reconciling": ("True", "StorageNotWritable"),
        },
        says="QuotaExceeded",
    ),
    "a bad configuration stops the sweep and names the field": Row(
        lambda: training(
            jobs=(
                failed(
                    FIRST,
                    ExitCode.BAD_CONFIGURATION,
                    pod_termination_message=words("BadShape", "must divide 64", "model.num_heads"),
                ),
                job(POINTS[1]),
            )
        ),
        ("False", "BadConfiguration"),
        stalled=True,
        also={"Accepted": ("False", "BadConfiguration")},
        says="spec.proxies[0].model.preset: must divide 64",
    ),
    "more failed points than allowed fail the sweep, and nothing starts": Row(
        lambda: out_of_memory(3),
        ("False", "TooManyFailedPoints"),
        stalled=True,
        says="tiny-b8-lr1e-3 (OutOfMemory)",
    ),
    "with every point done the laws are fitted": Row(
        all_done,
        ("False", "Fitting"),
        fits=True,
        also={"Progressing": ("False", "Finished")},
    ),
    "while the fit runs no second one is asked for": Row(
        lambda: replace(all_done(), fit_running=decide_sweep(all_done()).fit),
        ("False", "Fitting"),
    ),
    "a sweep whose rest does not fit the budget is fitted to what is done": Row(
        lambda: replace(
            known(
                training(jobs=tuple(complete(p) for p in POINTS[:4])),
                jobs=(),
            ),
            results={p.key: result(p) for p in POINTS[:4]},
            spec=parsed(spec_with(budget={"flops": _flops_of(4)})),
        ),
        ("False", "Fitting"),
        fits=True,
        also={"Progressing": ("False", "BudgetExhausted")},
    ),
    "an unreadable ledger is set aside and results are found again": Row(
        lambda: observed(
            ledger=Unreadable("ledger.json: points: wrong"),
            results={p.key: result(p) for p in POINTS},
        ),
        ("False", "Fitting"),
        sets_aside=1,
        fits=True,
    ),
    "a fit that could not run stalls": Row(
        lambda: with_fit(all_done(), None, error="the fit's process died"),
        ("False", "FitFailed"),
        stalled=True,
    ),
    "refused laws stall with the engine's reason": Row(
        lambda: with_fit(all_done(), refused()),
        ("False", "OptimumOnLearningRateEdge"),
        stalled=True,
        says="Extend the learning rates.",
    ),
    "fitted laws make the sweep ready": Row(
        lambda: with_fit(all_done(), fitted_laws()),
        ("True", "Fitted"),
        also={"FitReady": ("True", "Fitted"), "Progressing": ("False", "Finished")},
    ),
    "laws are ready before their report is drawn": Row(
        lambda: replace(
            with_fit(all_done(), fitted_laws()), fit_running=decide_sweep(all_done()).fit
        ),
        ("True", "Fitted"),
        also={"Reconciling": ("True", "Converging")},
    ),
    "a suspended sweep that is done stays ready": Row(
        lambda: replace(
            with_fit(all_done(), fitted_laws()), spec=parsed(spec_with(suspend=True)), generation=2
        ),
        ("True", "Fitted"),
        also={"Suspended": ("True", "Suspended")},
    ),
    "a suspended sweep stops its Jobs, uncharged": Row(
        lambda: replace(training(), spec=parsed(spec_with(suspend=True)), generation=2),
        ("False", "Suspending"),
        deletes=3,
        also={"Suspended": ("True", "Suspending")},
    ),
    "a suspended sweep without Jobs waits": Row(
        lambda: replace(training(jobs=()), spec=parsed(spec_with(suspend=True)), generation=2),
        ("False", "Suspended"),
        also={"Suspended": ("True", "Suspended"), "Stalled": ("False", "NothingWrong")},
    ),
    "a spent budget stops what runs": Row(
        lambda: replace(
            training(progress={p.key: progress(p, p.tokens) for p in POINTS[:3]}),
            spec=parsed(spec_with(budget={"flops": _flops_of(2)})),
        ),
        ("False", "BudgetExhausted"),
        deletes=3,
        says="budget.flops",
    ),
    "a Job that the API server refuses stalls, and one at a time is tried": Row(
        lambda: observed(create_error='unknown field "spec.containerz"'),
        ("False", "JobRefused"),
        starts=("tiny-b8-lr1e-3",),
        stalled=True,
        also={"Accepted": ("False", "JobRefused")},
    ),
    "a Job refused for its quota is retried, one at a time": Row(
        lambda: observed(create_error="exceeded quota: gpus", refusal_may_pass=True),
        ("False", "JobRefused"),
        starts=("tiny-b8-lr1e-3",),
        also={"Accepted": ("False", "JobRefused"), "Reconciling": ("True", "Converging")},
    ),
    "pods that no node has room for are waited for": Row(
        lambda: training(
            jobs=tuple(
                job(p, pod=ObservedPod(unschedulable="0/3 nodes have nvidia.com/gpu"))
                for p in POINTS[:3]
            )
        ),
        ("False", "Unschedulable"),
        also={"Progressing": ("False", "Unschedulable"), "Stalled": ("False", "NothingWrong")},
        says="0/3 nodes have nvidia.com/gpu",
    ),
    "pods whose image cannot be pulled are waited for": Row(
        lambda: training(
            jobs=tuple(
                job(p, pod=waiting("ImagePullBackOff", "no such image")) for p in POINTS[:3]
            )
        ),
        ("False", "ImagePullFailed"),
    ),
    "Jobs that Kueue has not admitted are queued": Row(
        lambda: training(
            jobs=tuple(job(p, suspended=True, pod=None, unfinished_pods=0) for p in POINTS[:3])
        ),
        ("False", "Queued"),
    ),
    "Jobs whose Workloads are deactivated stall the sweep": Row(
        lambda: queued(ObservedWorkload("w", active=False)),
        ("False", "WorkloadDeactivated"),
        stalled=True,
        says="Kueue's Workload w is deactivated",
    ),
    "an evicted Job waits in its queue again": Row(
        lambda: queued(ObservedWorkload("w", evicted="Preempted", message="to make room")),
        ("False", "Queued"),
        says="evicted by Kueue (Preempted): to make room",
    ),
    "with nothing to do but wait for a retry the sweep says so": Row(
        lambda: replace(
            known(observed(results={p.key: result(p) for p in POINTS[1:]})),
            jobs=(failed(FIRST, 1),),
            results={},
        ),
        ("False", "WaitingToRetry"),
        fits=True,
        also={"Progressing": ("True", "WaitingToRetry")},
    ),
    "a search decides which points train before any does": Row(
        lambda: known(observed(spec_with(search=SEQUENTIAL))),
        ("False", "Searching"),
        fits=True,
        also={"FitReady": ("False", "NoResults")},
    ),
    "a search that cannot decide says why": Row(
        lambda: search_answered(error="ValueError: a loss of -1"),
        ("False", "FitFailed"),
        says="a loss of -1",
    ),
    "points that a search has chosen train": Row(
        lambda: known(search_answered(step=SearchStep((chosen(POINTS[1]),)))),
        ("False", "Training"),
        starts=("tiny-b8-lr2e-3",),
    ),
    "a prepared corpus starts the cheapest points up to the parallelism": Row(
        observed,
        ("False", "Training"),
        starts=(
            "tiny-b8-lr1e-3",
            "tiny-b8-lr2e-3",
            "tiny-b16-lr1e-3",
        ),
        also={"DataReady": ("True", "DataPrepared"), "Progressing": ("True", "Training")},
    ),
    "a proxy like a checkpoint trains once its config.json is read": Row(
        lambda: observed(
            spec_with(proxies=[LIKE]),
            manifest=manifest(),
            like_configs={CHECKPOINT: TOY_CHECKPOINT},
        ),
        ("False", "Training"),
        starts=(
            "alike-b8-lr1e-3",
            "alike-b8-lr2e-3",
            "alike-b16-lr1e-3",
        ),
    ),
    "with the parallelism filled nothing starts": Row(
        training,
        ("False", "Training"),
        also={"Reconciling": ("True", "Training")},
    ),
    "a Job being deleted still takes its slot": Row(
        lambda: training(
            jobs=(job(POINTS[0], deleting=True), job(POINTS[1]), job(POINTS[2], deleting=True))
        ),
        ("False", "Training"),
    ),
    "a finished Job with a terminating pod takes its slot": Row(
        lambda: training(
            jobs=(failed(POINTS[0], 75, unfinished_pods=1), job(POINTS[1]), job(POINTS[2]))
        ),
        ("False", "Training"),
    ),
    "a pod without its Job takes a slot and blocks its point": Row(
        lambda: training(jobs=(), orphaned_pods=(POINTS[0].key,)),
        ("False", "Training"),
        starts=(
            "tiny-b8-lr2e-3",
            "tiny-b16-lr1e-3",
        ),
    ),
    "results already in the store are adopted without a Job": Row(
        lambda: observed(results={p.key: result(p) for p in POINTS[:6]}),
        ("False", "Training"),
        starts=(
            "small-b16-lr1e-3",
            "small-b16-lr2e-3",
        ),
        fits=True,
    ),
    "a divergence is a result": Row(
        lambda: training(
            jobs=(failed(FIRST, ExitCode.DIVERGED), job(POINTS[1]), job(POINTS[2])),
            results={FIRST.key: result(FIRST, outcome=Outcome.DIVERGED, tokens=1024, loss=None)},
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "a preempted point starts again at once, uncharged": Row(
        lambda: training(
            jobs=(
                failed(FIRST, 137, pod_disruption="PreemptionByScheduler"),
                job(POINTS[1]),
                job(POINTS[2]),
            )
        ),
        ("False", "Training"),
        starts=("tiny-b8-lr1e-3-a2",),
    ),
    "a crashed point waits before its next attempt and the next point takes the slot": Row(
        lambda: training(jobs=(failed(FIRST, 1), job(POINTS[1]), job(POINTS[2]))),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "an attempt without progress is ended as a failure and its Job deleted": Row(
        lambda: hung(600),
        ("False", "Training"),
        deletes=1,
    ),
    "a point claimed elsewhere waits, uncharged": Row(
        lambda: training(
            jobs=(
                failed(
                    FIRST,
                    ExitCode.CLAIMED_ELSEWHERE,
                    pod_termination_message=words("ClaimedElsewhere", "held by another"),
                ),
                job(POINTS[1]),
                job(POINTS[2]),
            )
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "an unreadable result is a failed attempt and is set aside": Row(
        lambda: training(
            jobs=(complete(FIRST), job(POINTS[1]), job(POINTS[2])),
            results={FIRST.key: Unreadable("result.json: truncated")},
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
        sets_aside=1,
    ),
    "a store that returns some results holds up only the points of the others": Row(
        lambda: training(
            jobs=(complete(FIRST), complete(POINTS[1]), job(POINTS[2])),
            results={
                FIRST.key: Unanswered("result.json: timeout"),
                POINTS[1].key: result(POINTS[1]),
            },
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3", "small-b8-lr1e-3"),
    ),
    "a result that the store alone does not give out stops no other point": Row(
        lambda: training(
            jobs=(complete(FIRST), job(POINTS[1]), job(POINTS[2])),
            results={FIRST.key: Unanswered("result.json: access denied", alone=True)},
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "a result that a newer version wrote is left alone and charged to nobody": Row(
        lambda: training(
            jobs=(complete(FIRST), job(POINTS[1]), job(POINTS[2])),
            results={FIRST.key: Newer("result.json: written by a newer isoloss")},
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "an unreadable trajectory is set aside and its point trained again": Row(
        lambda: with_fit(all_done(), None, unreadable=((FIRST.key, "digest differs"),)),
        ("False", "Training"),
        starts=("tiny-b8-lr1e-3",),
        sets_aside=3,
        fits=True,
    ),
    "a bad configuration is forgotten once the spec changes": Row(
        lambda: known(
            training(jobs=(failed(FIRST, ExitCode.BAD_CONFIGURATION),)), jobs=(), generation=2
        ),
        ("False", "Training"),
        starts=(
            "tiny-b8-lr2e-3",
            "tiny-b16-lr1e-3",
            "tiny-b16-lr2e-3",
        ),
    ),
    "two points out of memory are tolerated": Row(
        lambda: out_of_memory(2),
        ("False", "Training"),
        starts=(
            "tiny-b16-lr1e-3",
            "tiny-b16-lr2e-3",
            "small-b8-lr1e-3",
        ),
    ),
    "a changed pod template gives failed points a fresh start": Row(
        lambda: replace(out_of_memory(3), spec=parsed(_roomier()), generation=2),
        ("False", "Training"),
        starts=(
            "tiny-b8-lr1e-3-a2",
            "tiny-b8-lr2e-3-a2",
            "tiny-b16-lr1e-3-a2",
        ),
    ),
    "points beyond the budget are not started": Row(
        lambda: observed(spec_with(budget={"flops": _flops_of(2)})),
        ("False", "Training"),
        starts=(
            "tiny-b8-lr1e-3",
            "tiny-b8-lr2e-3",
        ),
    ),
    "another write that the API server refuses is named": Row(
        lambda: training(write_error="PATCH jobs/demo: 403 forbidden"),
        ("False", "Training"),
        also={"Accepted": ("False", "RequestRefused")},
    ),
    "a Job of a point that is no longer planned is deleted": Row(
        lambda: replace(training(), spec=parsed(_without_first_rate()), generation=2),
        ("False", "Training"),
        deletes=2,
    ),
    "a point that another sweep finished loses its waiting Job": Row(
        lambda: known(
            training(results={FIRST.key: result(FIRST)}),
            jobs=(job(FIRST, pod=None), job(POINTS[1]), job(POINTS[2])),
        ),
        ("False", "Training"),
        deletes=1,
    ),
    "more tokens continue the points that are done": Row(
        lambda: replace(all_done(), spec=parsed(_more_tokens()), generation=2),
        ("False", "Training"),
        starts=(
            "tiny-b8-lr1e-3",
            "tiny-b8-lr2e-3",
            "tiny-b16-lr1e-3",
        ),
    ),
    "one pod in trouble among others is mentioned only": Row(
        lambda: training(
            jobs=(
                job(FIRST, pod=waiting("ImagePullBackOff", "no such image")),
                job(POINTS[1]),
                job(POINTS[2]),
            )
        ),
        ("False", "Training"),
        says="1 of 3 Jobs cannot start: no such image",
    ),
}


def _llama_spec() -> dict[str, Any]:
    config = dict(POINTS[0].proxy.model)
    proxy = {"name": "tiny", "model": {"config": config}, "tokens": 1_000_000}
    return spec_with(proxies=[proxy])


def _roomier() -> dict[str, Any]:
    limits = {"limits": {"memory": "64Gi"}}
    return spec_with(
        podTemplate={"spec": {"containers": [{"name": "trainer", "resources": limits}]}}
    )


def _without_first_rate() -> dict[str, Any]:
    return spec_with(grid={"batchSizes": [8, 16], "learningRates": ["2e-3", "4e-3"]})


def _more_tokens() -> dict[str, Any]:
    proxies = [{**proxy, "tokens": 4_000_000} for proxy in sweep_spec()["proxies"]]
    return spec_with(proxies=proxies)


def _flops_of(count: int) -> str:
    """A budget for exactly the `count` cheapest points."""
    return f"{sum(p.flops for p in POINTS[:count]) * 1.001:.6e}".replace("e+", "e")


def started(plan: SweepPlan) -> tuple[str, ...]:
    """Which points start: the Jobs' names without owner and hash."""
    return tuple(re.sub(r"^demo-(.*)-[0-9a-f]{8}", r"\1", name) for name in names(plan.create))


@pytest.mark.parametrize("name", ROWS)
def test_state(name: str) -> None:
    """The row's sentence holds: actions, Ready, Stalled and the other conditions it names."""
    row = ROWS[name]
    plan = decide_sweep(row.world())
    assert condition(plan, "Ready")[:2] == row.ready
    assert row.says in condition(plan, "Ready")[2]
    assert started(plan) == row.starts
    did = (len(plan.delete), len(plan.set_aside), plan.fit is not None)
    assert did == (row.deletes, row.sets_aside, row.fits)
    assert condition(plan, "Stalled")[0] == str(row.stalled)
    for kind, expected in row.also.items():
        assert condition(plan, kind)[:2] == expected


def test_the_state_table_in_the_readme_names_the_same_rows() -> None:
    """Row for row, in the order of the checks: sentence, Ready's reason and what happens."""
    table = README.read_text().split("<!-- sweep states -->")[1]
    found = re.findall(r"^\| (.+?) \| `(\w+)` \| (.+?) \|$", table, flags=re.MULTILINE)
    assert found == [(name, row.ready[1], happens(row)) for name, row in ROWS.items()]


def happens(row: Row) -> str:
    """The table's last column."""
    parts = [f"starts {', '.join(row.starts)}"] if row.starts else []
    parts += [f"deletes {counted(row.deletes, 'Job')}"] if row.deletes else []
    parts += [f"sets aside {counted(row.sets_aside, 'object')}"] if row.sets_aside else []
    parts += ["requests a fit"] if row.fits else []
    parts += ["Stalled"] if row.stalled else []
    return "; ".join(parts) or "waits"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count > 1 else "")


def test_every_condition_is_there_from_the_first_pass() -> None:
    """kstatus and kubectl wait need them, and both generations."""
    status = decide_sweep(observed(manifest=ABSENT, generation=7)).status
    assert [c.type for c in status.conditions] == [
        "Accepted",
        "DataReady",
        "Progressing",
        "FitReady",
        "Ready",
        "Suspended",
        "Stalled",
        "Reconciling",
    ]
    assert status.observed_generation == 7
    assert {c.observed_generation for c in status.conditions} == {7}


@pytest.mark.parametrize("name", ROWS)
def test_a_pass_repeated_on_an_unchanged_world_changes_nothing_more(name: str) -> None:
    """No ledger write, no event, no new transition time: a quiet sweep costs nothing."""
    world = ROWS[name].world()
    plan = decide_sweep(world)
    again = after(world, plan, now=world.now + timedelta(milliseconds=1))
    if plan.set_aside:  # done by now
        again = replace(
            again,
            results={},
            manifest=ABSENT if plan.set_aside[0].path.startswith("data") else world.manifest,
        )
    second = decide_sweep(again)
    assert second.ledger is None
    before = {c.type: (c.status, c.last_transition_time) for c in plan.status.conditions}
    for c in second.status.conditions:
        if before[c.type][0] == c.status:
            assert before[c.type][1] == c.last_transition_time


def test_nothing_is_recorded_twice() -> None:
    """A failed Job that is seen again, before or after the ledger was written, is charged once."""
    world = training(jobs=(failed(FIRST, 1),))
    once = decide_sweep(world).ledger
    assert once is not None
    twice = decide_sweep(replace(world, ledger=once))
    assert twice.ledger is None
    assert once.points[0].attempts.charged == {"Crashed": 1}


def test_the_next_attempt_has_the_next_number_and_name() -> None:
    """Names are deterministic: demo-tiny-b8-lr1e-3-<hash>, then -a2."""
    first = decide_sweep(observed()).create[0]
    preempted = failed(FIRST, 143, name=first.name)
    second = decide_sweep(training(jobs=(preempted,))).create[0]
    assert re.fullmatch(r"demo-tiny-b8-lr1e-3-[0-9a-f]{8}", first.name)
    assert second.name == f"{first.name}-a2"
    assert second.task.kind == "train"
    assert second.task.claimant.attempt == 2
    assert second.labels["isoloss.dev/attempt"] == "2"


def test_a_host_out_of_memory_halves_the_micro_batch_until_nothing_is_left_to_halve() -> None:
    """Batch 8 can be halved three times; the fourth kill is final."""
    world = training(jobs=())
    halvings = []
    for attempt in (1, 2, 3, 4):
        killed = failed(FIRST, 137, attempt=attempt, pod_reason="OOMKilled")
        plan = decide_sweep(replace(world, jobs=(killed,)))
        request = next((r for r in plan.create if r.labels["isoloss.dev/key"] == FIRST.key), None)
        halvings.append(
            request.task.micro_batch_halvings if request and request.task.kind == "train" else None
        )
        world = after(world, plan)
    assert halvings == [1, 2, 3, None]
    assert isinstance(world.ledger, Ledger)
    assert world.ledger.points[0].state is PointState.OUT_OF_MEMORY


def test_a_hung_attempt_is_charged_said_in_an_event_and_retried_once_its_job_is_gone() -> None:
    """And the Job is deleted even where the operator was killed right after the ledger was written."""
    world = hung(600)
    plan = decide_sweep(world)
    assert plan.ledger is not None
    assert plan.ledger.points[0].attempts.charged == {"NoProgress": 1}
    assert names(plan.delete) == [world.jobs[0].name]
    said = {event.reason: event for event in plan.events}["NoProgress"]
    assert said.type == "Warning"
    assert "failurePolicy.stallSeconds" in said.message
    killed = after(world, plan, unchanged_since={})
    assert names(decide_sweep(killed).delete) == [world.jobs[0].name]
    gone = after(world, plan, jobs=world.jobs[1:], now=NOW + timedelta(seconds=6))
    assert started(decide_sweep(gone)) == ("tiny-b8-lr1e-3-a2",)


def test_nothing_is_ended_before_the_time_is_up() -> None:
    """A slow start is no hang."""
    assert decide_sweep(hung(599)).delete == ()


def test_a_sweep_that_sets_no_stall_seconds_gives_its_attempts_an_hour() -> None:
    by_default = parsed(sweep_spec())
    assert decide_sweep(replace(hung(3599), spec=by_default)).delete == ()
    assert len(decide_sweep(replace(hung(3600), spec=by_default)).delete) == 1


def test_the_progress_of_every_running_point_is_read() -> None:
    """What each cost counts against the budget, and any may be hung."""
    grid = {"batchSizes": list(range(1, 11)), "learningRates": [f"{n}e-5" for n in range(1, 11)]}
    spec = sweep_spec(grid=grid, parallelism=200)
    world = observed(spec, jobs=tuple(job(p) for p in points(spec)))
    assert len(sweep_reads(world, frozenset()).progress) == 200


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        pytest.param({"created": NOW - timedelta(seconds=29)}, False, id="created just now"),
        pytest.param({"created": NOW - timedelta(seconds=30)}, True, id="half a minute ago"),
        pytest.param({"created": NOW, "working_since": NOW}, True, id="its pod works already"),
        pytest.param({"created": NOW, "worked_seconds": 1.0}, True, id="a pod of it has worked"),
    ],
)
def test_progress_of_a_job_that_has_just_been_created_is_not_read(
    changes: dict[str, Any], is_read: bool
) -> None:
    """A thousand Jobs at once would be a thousand reads of what cannot be there."""
    world = training(jobs=(job(FIRST, **changes),))
    assert (FIRST.key in sweep_reads(world, frozenset()).progress) == is_read


def test_an_attempt_whose_node_is_lost_is_retried_uncharged_and_its_job_deleted() -> None:
    """The Job stays for as long as its pod does, and neither holds a slot nor is waited for."""
    message = "pod a on node b did not end within its grace period"
    gone = {"failed": True, "lost": True, "unfinished_pods": 0}
    lost = job(FIRST, reason="NodeLost", message=message, **gone)
    world = training(jobs=(lost, job(POINTS[1]), job(POINTS[2])))
    plan = decide_sweep(world)
    assert plan.ledger is not None
    attempts = plan.ledger.points[0].attempts
    assert (attempts.charged, attempts.last_failure, attempts.ended) == ({}, "NodeLost", 1)
    assert {event.reason: event.type for event in plan.events}["NodeLost"] == "Warning"
    assert started(plan) == ("tiny-b8-lr1e-3-a2",)
    recorded = after(world, plan, jobs=(*world.jobs, *(job(FIRST, attempt=2),)))
    later = decide_sweep(recorded)
    assert names(later.delete) == [lost.name]
    assert later.expire == ()
    assert any(message in warning for warning in later.status.warnings)
    deleted = replace(recorded, jobs=(replace(lost, deleting=True), *recorded.jobs[1:]))
    assert decide_sweep(deleted).delete == ()
    assert decide_sweep(deleted).create == ()


def test_points_trained_by_different_versions_are_warned_of() -> None:
    """The ledger holds each set of versions once."""
    old = {"isoloss": "0.1.0", "torch": "2.8.0", "transformers": "4.57.0", "python": "3.11.2"}
    new = {**old, "torch": "2.9.0"}
    same_but_for_python = {**old, "python": "3.12.0"}
    sets = (old, old, same_but_for_python, new)
    results = {p.key: result(p, versions=v) for p, v in zip(POINTS[:4], sets, strict=True)}
    plan = decide_sweep(observed(results=results))
    assert plan.ledger is not None
    assert [record.versions for record in plan.ledger.points[:5]] == [0, 0, 0, 1, None]
    assert plan.ledger.versions[1] == {
        "contract": "1",
        "isoloss": "0.1.0",
        "torch": "2.9.0",
        "transformers": "4.57.0",
    }
    assert plan.status.warnings == (
        "Points were trained with different versions: torch 2.8.0 and 2.9.0.",
    )
    del results[POINTS[3].key]
    assert decide_sweep(observed(results=results)).status.warnings == ()


def test_a_pod_cannot_make_the_ledger_grow_by_inventing_versions() -> None:
    """Thirty-two sets of three short texts, whatever results say."""
    grid = {"batchSizes": list(range(1, 11)), "learningRates": [f"{n}e-5" for n in range(1, 6)]}
    spec = sweep_spec(grid=grid)
    results = {
        p.key: result(p, versions={"torch": f"{n}" * 5000, f"x{n}": "y"})
        for n, p in enumerate(points(spec), start=10)
    }
    ledger = decide_sweep(observed(spec, results=results)).ledger
    assert ledger is not None
    assert len(ledger.versions) == 32
    assert {len(each["torch"].encode()) for each in ledger.versions} == {40}
    assert read_back(ledger) == ledger


@pytest.mark.parametrize("code", ["MyOwnCode", "Fitted", "JobRefused"])
def test_a_code_that_is_not_a_known_one_is_no_reason(code: str) -> None:
    """Pods run what a tenant likes; a condition's reason is the operator's word."""
    words_of_pod = words(code, "no idea", "domains.math.text_field")
    bad = failed(PREPARE_KEY, ExitCode.BAD_DATA, pod_termination_message=words_of_pod)
    found = condition(decide_sweep(unprepared(bad)), "DataReady")
    assert found[:2] == ("False", "BadData")
    assert found[2] == f"{code}: spec.data.domains[1].textField: no idea"


def test_stalled_and_reconciling_are_never_both_true() -> None:
    """kstatus looks at Reconciling first and would call a stalled sweep in progress."""
    for row in ROWS.values():
        plan = decide_sweep(row.world())
        both = condition(plan, "Stalled")[0], condition(plan, "Reconciling")[0]
        assert both != ("True", "True")


def test_a_status_that_only_has_the_api_servers_defaults_is_taken_for_a_first_pass() -> None:
    """observedGeneration -1, so that nobody takes a sweep without a pass for a current one."""
    plan = decide_sweep(observed(status={"observedGeneration": -1}))
    assert plan.status.observed_generation == 1
    assert started(plan) == ("tiny-b8-lr1e-3", "tiny-b8-lr2e-3", "tiny-b16-lr1e-3")


def test_a_finished_job_expires_only_once_the_stored_ledger_knows_its_outcome() -> None:
    """The ledger of this very pass is not durable yet."""
    ended = failed(FIRST, 1)
    world = training(jobs=(ended,))
    plan = decide_sweep(world)
    assert plan.expire == ()
    assert names(decide_sweep(after(world, plan)).expire) == [ended.name]
    assert decide_sweep(after(world, plan, jobs=(replace(ended, expires=True),))).expire == ()


def test_a_job_that_writes_to_another_store_is_deleted_and_its_point_started_here() -> None:
    """LABEL_STORE distinguishes them."""
    plan = decide_sweep(training(jobs=(job(FIRST, store="0" * 16, name="elsewhere"),)))
    assert names(plan.delete) == ["elsewhere"]
    assert not any(request.labels["isoloss.dev/key"] == FIRST.key for request in plan.create[2:])


def test_a_resumed_sweep_starts_its_stopped_points_with_a_new_attempt_uncharged() -> None:
    """Suspending records the interruption before the Job is deleted."""
    suspended = replace(training(), spec=parsed(sweep_spec(suspend=True)), generation=2)
    stopped = decide_sweep(suspended)
    resumed = decide_sweep(
        after(suspended, stopped, spec=parsed(sweep_spec()), generation=3, jobs=())
    )
    assert [request.attempt for request in resumed.create] == [2, 2, 2]
    assert stopped.ledger is not None
    assert stopped.ledger.points[0].attempts.interruptions == 1
    assert stopped.ledger.points[0].attempts.charged == {}


def test_the_requests_carry_everything_the_shell_needs() -> None:
    """Task, labels, templates in order, secret and queue."""
    spec = sweep_spec(
        queue={"localQueueName": "research", "workloadPriorityClassName": "low"},
        podTemplate={"spec": {"nodeSelector": {"gpu": "h200"}}},
        parallelism=1,
    )
    request = decide_sweep(observed(spec)).create[0]
    assert request.task.kind == "train"
    assert request.task.store_uri == STORE
    assert request.task.data_uri == f"{STORE}/data/{PREPARE_KEY}"
    assert request.task.point.key == request.labels["isoloss.dev/key"]
    assert request.pod_templates == ({"spec": {"nodeSelector": {"gpu": "h200"}}},)
    assert (request.secret_names, request.local_queue) == (("sweep-s3",), "research")
    assert request.priority_class == "low"


def test_what_to_read_is_what_may_have_news() -> None:
    """Results of ended Jobs always; of idle points only where the store has a folder; never of done or running ones."""
    world = known(
        observed(results={POINTS[7].key: result(POINTS[7])}),
        jobs=(job(POINTS[0]), complete(POINTS[1])),
        results={},
    )
    stored = frozenset(p.key for p in (POINTS[0], POINTS[5], POINTS[7]))
    reads = sweep_reads(world, stored)
    assert set(reads.results) == {POINTS[1].key, POINTS[5].key}
    assert reads.progress == (POINTS[0].key,)
    first = first_reads(world)
    assert first is not None
    assert first.manifest == f"data/{PREPARE_KEY}/manifest.json"
    assert first_reads(observed({"bad": 1}, manifest=ABSENT)) is None


def test_no_result_is_read_while_an_attempt_works_beside_the_job_of_a_lost_one() -> None:
    """It would end the point before its attempt, which was then missing from the ledger."""
    gone = {"failed": True, "lost": True, "unfinished_pods": 0}
    lost = job(FIRST, reason="NodeLost", message="pod a on node b", **gone)
    world = training(jobs=(lost, job(POINTS[1])))
    assert FIRST.key in sweep_reads(world, frozenset()).results
    recorded = after(world, decide_sweep(world), jobs=(lost, job(FIRST, attempt=2)))
    assert sweep_reads(recorded, frozenset({FIRST.key})).results == ()
    ended = replace(recorded, jobs=(lost, complete(FIRST, attempt=2)))
    assert sweep_reads(ended, frozenset({FIRST.key})).results == (FIRST.key,)


def test_results_of_points_that_have_failed_are_wanted_now_and_then_only() -> None:
    """Only another sweep could write them, and there may be thousands. Until its end is in the ledger, the
    result of a failed attempt is wanted like any."""
    spec = sweep_spec(failurePolicy={"retriesPerPoint": 0})
    world = observed(spec, jobs=(failed(FIRST, 1), failed(POINTS[1], 1)))
    assert FIRST.key in sweep_reads(world, frozenset()).results
    recorded = after(world, decide_sweep(world))
    reads = sweep_reads(recorded, frozenset())
    assert reads.results == ()
    assert set(reads.results_of_failed) == {FIRST.key, POINTS[1].key}


def test_the_estimate_of_completion_comes_from_the_speed_of_the_running_points() -> None:
    """Two points run at 1000 tokens/s each; a size that nobody has seen takes longer by the square root of its
    parameters."""
    world = training(
        jobs=tuple(job(p) for p in POINTS[:3]),
        progress={p.key: progress(p, 500_000) for p in POINTS[:2]},
    )
    plan = decide_sweep(world)
    seen = POINTS[0].proxy.parameters.active
    tokens = sum(p.tokens * (p.proxy.parameters.active / seen) ** 0.5 for p in POINTS)
    seconds = (tokens - 2 * 500_000) / (3 * 1000)
    expected = NOW + timedelta(seconds=seconds)
    assert plan.status.estimated_completion == expected.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_point_preempted_at_its_end_still_fits_into_a_tight_budget() -> None:
    """Its checkpoint holds the work: it is neither paid for twice nor given up."""
    flops = sum(point.flops for point in POINTS)
    spec = sweep_spec(budget={"flops": f"{flops:.6e}"})
    lost = failed(POINTS[0], 137, pod_disruption="PreemptionByScheduler")
    reached = {POINTS[0].key: progress(POINTS[0], int(0.9 * POINTS[0].tokens))}
    plan = decide_sweep(observed(spec, jobs=(lost,), progress=reached))
    assert POINTS[0].key in [request.labels["isoloss.dev/key"] for request in plan.create]
    assert condition(plan, "Progressing")[1] == "Training"


def test_time_of_failed_attempts_counts_against_the_gpu_hours() -> None:
    """Crashes that ate the whole budget: nothing more is started."""
    spec = sweep_spec(budget={"acceleratorHours": 1})
    plan = decide_sweep(observed(spec, jobs=(failed(POINTS[0], worked_seconds=3601.0),)))
    assert not plan.create
    assert condition(plan, "Progressing")[1] == "BudgetExhausted"


def test_points_whose_gpu_hours_do_not_fit_are_not_started() -> None:
    """Four tiny points took 900 s each: 1 h is spent, so nothing more starts under a cap of 1 h."""
    spec = sweep_spec(budget={"acceleratorHours": 1})
    ended = tuple(complete(p) for p in POINTS[:4])
    results = {p.key: result(p, accelerator_seconds=900.0) for p in POINTS[:4]}
    plan = decide_sweep(known(observed(spec), jobs=ended, results=results))
    assert plan.create == ()
    assert condition(plan, "Progressing")[1] == "BudgetExhausted"
    assert (
        "budget.acceleratorHours 1 leaves no room for small-b8-lr1e-3"
        in condition(plan, "Progressing")[2]
    )
    assert plan.status.accelerator_hours == "1"


def test_adopted_results_cost_the_budget_nothing() -> None:
    """Another sweep paid for them."""
    spec = sweep_spec(budget={"flops": _flops_of(2)})
    plan = decide_sweep(observed(spec, results={p.key: result(p) for p in POINTS[:6]}))
    assert plan.status.spent_flops == "0"
    assert plan.status.points.adopted == 6


def test_a_vanished_pod_is_not_charged_before_it_happened_twenty_times() -> None:
    """A lost node is no fault of the point; a pod that vanishes for ever is."""
    world = training(jobs=())
    for attempt in range(1, 22):
        plan = decide_sweep(replace(world, jobs=(vanished(FIRST, attempt=attempt),)))
        world = after(world, plan)
        assert isinstance(world.ledger, Ledger)
        charged = world.ledger.points[0].attempts.charged
        assert charged == ({} if attempt <= 20 else {"Crashed": 1})


def test_that_there_are_no_results_yet_is_no_news_and_that_there_will_be_none_is() -> None:
    """An event list starts with what happened."""
    world = training()
    begun = decide_sweep(replace(world, status={}))
    assert condition(begun, "FitReady")[1] == "NoResults"
    assert "NoResults" not in [event.reason for event in begun.events]
    lost = tuple(failed(p, ExitCode.OUT_OF_MEMORY) for p in POINTS)
    spec = sweep_spec(failurePolicy={"maxFailedPoints": len(POINTS)})
    over = decide_sweep(observed(spec, jobs=lost))
    assert ("Warning", "NoResults") in {(e.type, e.reason) for e in over.events}


def test_events_tell_of_turns_once() -> None:
    """A second identical pass sends none; a stall is a warning."""
    world = training(jobs=tuple(failed(p, ExitCode.OUT_OF_MEMORY) for p in POINTS[:3]))
    plan = decide_sweep(world)
    assert ("Warning", "TooManyFailedPoints") in {(e.type, e.reason) for e in plan.events}
    assert decide_sweep(after(world, plan)).events == ()


def test_endings_are_told_by_kind_not_by_point() -> None:
    """Four crashes are one warning; a preemption is no warning."""
    ended = tuple(failed(p, 1) for p in POINTS[:4])
    preempted = failed(POINTS[4], 137, pod_disruption="PreemptionByScheduler")
    world = training(jobs=(*ended, preempted))
    events = {e.reason: e for e in decide_sweep(world).events}
    assert events["Crashed"].type == "Warning"
    assert "tiny-b16-lr1e-3 and 1 more ended: exit code 1, Error" in events["Crashed"].message
    assert (events["Interrupted"].type, len(events)) == ("Normal", 2)


def test_a_point_that_another_sweep_finished_is_adopted_although_an_attempt_stepped_back() -> None:
    """Its cost is the other sweep's."""
    claimed = failed(
        FIRST,
        ExitCode.CLAIMED_ELSEWHERE,
        pod_termination_message=words("ClaimedElsewhere", "held"),
    )
    waiting_for_it = known(training(jobs=(claimed,)), jobs=(replace(claimed, expires=True),))
    plan = decide_sweep(replace(waiting_for_it, results={FIRST.key: result(FIRST)}))
    assert plan.ledger is not None
    assert plan.ledger.points[0].adopted
    crashed = known(training(jobs=(failed(FIRST, 1),)), results={FIRST.key: result(FIRST)})
    own = decide_sweep(crashed).ledger
    assert own is not None
    assert not own.points[0].adopted


def test_a_provisional_fit_waits_for_four_points_and_then_for_growth() -> None:
    """Three points: none. Four: one, marked provisional. The same four again: none."""
    three = known(observed(), results={p.key: result(p) for p in POINTS[:3]})
    assert decide_sweep(three).fit is None
    four: SweepPlan = decide_sweep(
        known(observed(), results={p.key: result(p) for p in POINTS[:4]})
    )
    assert four.fit is not None
    assert four.fit.provisional
    assert len(four.fit.points) == 4


def test_queued_jobs_do_not_count_as_training() -> None:
    """Neither those that Kueue has not admitted nor those that are about to be created suspended."""
    spec = sweep_spec(queue={"localQueueName": "research"})
    suspended = job(POINTS[1], suspended=True, pod=None, unfinished_pods=0)
    world = replace(training(jobs=(job(FIRST), suspended)), spec=parsed(spec))
    ready = condition(decide_sweep(world), "Ready")
    assert "1 are training, 2 are queued" in ready[2]


def just_succeeded(seconds_ago: float, **changes: Any) -> ObservedSweep:
    """The first point's Job ended as one with a result, and none is there."""
    ended = complete(FIRST, ended=NOW - timedelta(seconds=seconds_ago))
    return training(jobs=(ended,), **changes)


def test_a_result_that_is_not_there_yet_is_waited_for() -> None:
    """A store may show it later than the API server shows the end of the Job: nothing is charged, the
    point does not start again, and the Job stays until its outcome is recorded."""
    plan = decide_sweep(just_succeeded(59))
    assert names(plan.create)
    assert FIRST.key not in {request.labels[LABEL_KEY] for request in plan.create}
    assert plan.expire == ()
    assert plan.requeue_after <= 15
    assert "1 Jobs succeeded and their results are not there yet." in str(plan.status)
    assert plan.ledger is None


def test_a_result_that_is_not_there_after_a_minute_is_missing() -> None:
    plan = decide_sweep(just_succeeded(60))
    assert plan.ledger is not None
    assert plan.ledger.points[0].attempts.charged == {"ResultMissing": 1}


def test_a_result_that_came_late_is_recorded_like_any() -> None:
    plan = decide_sweep(just_succeeded(30, results={FIRST.key: result(FIRST)}))
    assert plan.ledger is not None
    assert plan.ledger.points[0].state is PointState.SUCCEEDED
    assert plan.ledger.points[0].attempts.ended == 1


def test_a_crash_is_not_waited_for() -> None:
    crashed = failed(FIRST, 1, ended=NOW - timedelta(seconds=1))
    plan = decide_sweep(training(jobs=(crashed,)))
    assert plan.ledger is not None
    assert plan.ledger.points[0].attempts.charged == {"Crashed": 1}


def prepared(seconds_ago: float) -> SweepPlan:
    ended = complete(PREPARE_KEY, ended=NOW - timedelta(seconds=seconds_ago))
    return decide_sweep(observed(manifest=ABSENT, jobs=(ended,)))


def test_a_manifest_that_is_not_there_yet_is_waited_for() -> None:
    plan = prepared(59)
    assert plan.create == ()
    assert "its result is not in the store yet" in condition(plan, "Ready")[2]
    assert plan.ledger is None or plan.ledger.preparation == Attempts()


def test_a_manifest_that_is_not_there_after_a_minute_is_missing() -> None:
    plan = prepared(60)
    assert plan.ledger is not None
    assert plan.ledger.preparation.charged == {"ResultMissing": 1}


def data_ready(seconds_ago: float) -> dict[str, Any]:
    return {
        "type": "DataReady",
        "status": "True",
        "reason": "DataPrepared",
        "message": "The digest is known.",
        "lastTransitionTime": timestamp(NOW - timedelta(seconds=seconds_ago)),
        "observedGeneration": 1,
    }


@pytest.mark.parametrize(
    ("changes", "deleted"),
    [
        pytest.param({}, False, id="the manifest has just been seen"),
        pytest.param({"status": {"conditions": [data_ready(59)]}}, False, id="59 s ago"),
        pytest.param({"status": {"conditions": [data_ready(60)]}}, True, id="60 s ago"),
        pytest.param({"spec": parsed(sweep_spec(suspend=True))}, True, id="suspended"),
    ],
)
def test_the_job_that_wrote_the_manifest_may_end(changes: dict[str, Any], deleted: bool) -> None:
    """Its pods are about to exit, and their logs are kept. Later it is another sweep's manifest."""
    plan = decide_sweep(replace(training(jobs=(job(PREPARE_KEY),)), **changes))
    assert bool(plan.delete) == deleted
    assert plan.requeue_after <= 30


def test_a_lost_preparation_is_deleted_although_its_manifest_is_there() -> None:
    lost = job(PREPARE_KEY, failed=True, lost=True)
    assert names(decide_sweep(training(jobs=(lost,))).delete)


def in_a_queue(waiting: int, running: int, **queue: Any) -> ObservedSweep:
    """Jobs of the first points wait in the queue, those of the next are admitted."""
    jobs = [job(p, suspended=True, pod=None, unfinished_pods=0) for p in POINTS[:waiting]]
    jobs += [job(p) for p in POINTS[waiting : waiting + running]]
    spec = sweep_spec(queue={"localQueueName": "research", **queue}, parallelism=4)
    return replace(training(jobs=tuple(jobs)), spec=parsed(spec))


def test_queued_jobs_hold_their_slots() -> None:
    """Without maxWaiting Kueue can never admit more than parallelism."""
    assert len(decide_sweep(in_a_queue(waiting=2, running=1)).create) == 1


@pytest.mark.parametrize(("waiting", "started"), [(0, 3), (2, 3), (3, 2), (5, 0), (6, 0)])
def test_so_many_jobs_may_wait_beyond_parallelism(waiting: int, started: int) -> None:
    """parallelism 4, one is running, two may wait: at most six Jobs in all."""
    plan = decide_sweep(in_a_queue(waiting=waiting, running=1, maxWaiting=2))
    assert len(plan.create) == started


@pytest.mark.parametrize(("running", "warned"), [(6, False), (7, True)])
def test_admission_of_all_that_may_wait_is_no_excess(running: int, warned: bool) -> None:
    """parallelism 4 and two that might wait: only a seventh is one too many."""
    plan = decide_sweep(in_a_queue(waiting=0, running=running, maxWaiting=2))
    assert plan.create == ()
    assert ("1 Jobs more than the spec allows" in str(plan.status)) == warned


def test_a_job_that_failed_in_another_cluster_is_charged_by_its_own_conditions() -> None:
    """Its pods cannot be seen: they are not lost for that."""
    there = {"pod": None, "managed_elsewhere": True, "message": "exit code 1"}
    plan = decide_sweep(training(jobs=(failed(FIRST, **there),)))
    assert plan.ledger is not None
    assert plan.ledger.points[0].attempts.charged == {"Crashed": 1}
    assert "exit code 1" in plan.ledger.points[0].attempts.failures[0].message
