"""What happens next with a sweep: the rows of the state table in operator/README.md, one to one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from isoloss_contract.reading import ABSENT, Newer, Unanswered, Unreadable
from isoloss_contract.records import ExitCode, Outcome
from isoloss_operator.decide.fits import SearchStep
from isoloss_operator.decide.observation import ObservedPod, ObservedSweep, ObservedWorkload
from isoloss_operator.decide.sweep import decide_sweep
from tests.support.builders import (
    after,
    complete,
    condition,
    failed,
    job,
    ledger_of,
    manifest,
    observed,
    parsed,
    progress,
    result,
    sweep_spec,
    words,
)
from tests.support.sweep_worlds import (
    FIRST,
    POINTS,
    PREPARE_KEY,
    SEQUENTIAL,
    all_done,
    chosen,
    ending,
    flops_of,
    hung,
    known,
    out_of_memory,
    queued,
    ready,
    refused,
    search_answered,
    started,
    training,
    unprepared,
    waiting,
    with_fit,
)
from tests.support.synthetic_runs import fitted_laws

README = Path(__file__).parents[3] / "operator" / "README.md"


@dataclass(frozen=True)
class Row:
    """One state: how the world looks, what is done about it and what the conditions say."""

    world: Callable[[], ObservedSweep]
    ready: tuple[str, str]
    starts: tuple[str, ...] = ()
    """Points, or prepare; with -a2 from the second attempt on."""
    deletes: int = 0
    quarantines: int = 0
    fits: bool = False
    stalled: bool = False
    also: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    says: str = ""
    """Part of Ready's message."""


ROWS: dict[str, Row] = {
    "an invalid spec stalls, names the field and touches nothing": Row(
        lambda: observed(
            sweep_spec(grid={"batchSizes": [8, 16], "learningRates": [1e-3, 2e-3]}),
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
        lambda: observed(ledger=Newer("ledger_version 4 is newer than the 3 known here")),
        ("False", "LedgerNewer"),
        stalled=True,
        says="Upgrade the operator again",
    ),
    "a store that returns no result decides nothing": Row(
        lambda: ending(complete(FIRST), results={FIRST.key: Unanswered("result.json: timeout")}),
        ("False", "StorageUnreachable"),
    ),
    "a manifest that a newer version wrote is not prepared again": Row(
        lambda: training(manifest=Newer("manifest.json: written by a newer isoloss")),
        ("False", "StorageUnreachable"),
    ),
    "a model with a smaller vocabulary than the tokenizer is refused": Row(
        lambda: observed(_llama_spec(), manifest=manifest(vocabulary_size=2048)),
        ("False", "InvalidSpec"),
        stalled=True,
        says="smaller than the tokenizer's 2048",
    ),
    "the rest of a sweep is not trained on another corpus than its points were": Row(
        lambda: replace(begun(), manifest=manifest(digest="c" * 32)),
        ("False", "DataChanged"),
        stalled=True,
        says="but the results of 1 point belong to dddddddddddddddd",
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
    "a damaged manifest is quarantined and the corpus prepared again": Row(
        lambda: observed(manifest=Unreadable("manifest.json: digest: field required")),
        ("False", "ManifestUnreadable"),
        starts=("prepare",),
        quarantines=1,
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
        says="spec.proxies[0].model.config.num_heads: must divide 64",
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
            spec=parsed(sweep_spec(budget={"flops": flops_of(4)})),
        ),
        ("False", "Fitting"),
        fits=True,
        also={"Progressing": ("False", "BudgetExhausted")},
    ),
    "a search whose budget does not cover what it must train trains nothing": Row(
        lambda: search_answered(step=SearchStep((), "BudgetExhausted", least_flops=1.25e18)),
        ("False", "NoResults"),
        stalled=True,
        says="takes at least 1.25e18 FLOPs: raise spec.budget",
        also={"Progressing": ("False", "BudgetExhausted")},
    ),
    "an unreadable ledger is quarantined and results are found again": Row(
        lambda: observed(
            ledger=Unreadable("ledger.json: points: wrong"),
            results={p.key: result(p) for p in POINTS},
        ),
        ("False", "Fitting"),
        quarantines=1,
        fits=True,
    ),
    "a fit that could not run stalls": Row(
        lambda: with_fit(all_done(), None, error="the fit's process died"),
        ("False", "FitFailed"),
        stalled=True,
    ),
    "a fit that the store kept from its work is tried again": Row(
        lambda: with_fit(all_done(), None, error="the store does not answer", may_pass=True),
        ("False", "FitFailed"),
        also={"Reconciling": ("True", "FitFailed")},
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
    "a finished sweep whose corpus is gone stays ready and prepares nothing": Row(
        lambda: replace(ready(), manifest=ABSENT),
        ("True", "Fitted"),
        also={"DataReady": ("True", "DataPrepared"), "Progressing": ("False", "Finished")},
    ),
    "a finished sweep is not trained again on another corpus in its place": Row(
        lambda: replace(ready(), manifest=manifest(digest="c" * 32)),
        ("True", "Fitted"),
    ),
    "laws are ready before their report is drawn": Row(
        lambda: replace(
            with_fit(all_done(), fitted_laws()), fit_running=decide_sweep(all_done()).fit
        ),
        ("True", "Fitted"),
        also={"Reconciling": ("True", "Converging")},
    ),
    "a ready sweep stays ready while its store does not take the ledger": Row(
        lambda: replace(
            ready(),
            operator_template="upgraded",
            store_write_error="ledger.jsonl.gz: AccessDenied",
        ),
        ("True", "Fitted"),
        also={"Accepted": ("False", "StorageNotWritable")},
    ),
    "a suspended sweep that is done stays ready": Row(
        lambda: replace(
            with_fit(all_done(), fitted_laws()),
            spec=parsed(sweep_spec(suspend=True)),
            generation=2,
        ),
        ("True", "Fitted"),
        also={"Suspended": ("True", "Suspended")},
    ),
    "a suspended sweep stops its Jobs, uncharged": Row(
        lambda: replace(training(), spec=parsed(sweep_spec(suspend=True)), generation=2),
        ("False", "Suspending"),
        deletes=3,
        also={"Suspended": ("True", "Suspending")},
    ),
    "a suspended sweep without Jobs waits": Row(
        lambda: replace(training(jobs=()), spec=parsed(sweep_spec(suspend=True)), generation=2),
        ("False", "Suspended"),
        also={"Suspended": ("True", "Suspended"), "Stalled": ("False", "NothingWrong")},
    ),
    "a spent budget stops what runs": Row(
        lambda: replace(
            training(progress={p.key: progress(p, p.tokens) for p in POINTS[:3]}),
            spec=parsed(sweep_spec(budget={"flops": flops_of(2)})),
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
    "a deactivated Workload next to Jobs in the queue is mentioned only": Row(
        lambda: one_deactivated(),
        ("False", "Queued"),
        says="2 Jobs are waiting for Kueue: no quota. 1 of 3 Jobs cannot start: demo-tiny-b8-lr1e-3-c7df7dbe: Kueue's Workload w",
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
        lambda: known(observed(sweep_spec(search=SEQUENTIAL))),
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
        lambda: ending(failed(POINTS[0], 75, unfinished_pods=1)),
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
        lambda: ending(
            failed(FIRST, ExitCode.DIVERGED),
            results={FIRST.key: result(FIRST, outcome=Outcome.DIVERGED, tokens=1024, loss=None)},
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "a preempted point starts again at once, uncharged": Row(
        lambda: ending(failed(FIRST, 137, pod_disruption="PreemptionByScheduler")),
        ("False", "Training"),
        starts=("tiny-b8-lr1e-3-a2",),
    ),
    "a crashed point waits before its next attempt and the next point takes the slot": Row(
        lambda: ending(failed(FIRST, 1)),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "an attempt without progress is ended as a failure and its Job deleted": Row(
        lambda: hung(600),
        ("False", "Training"),
        deletes=1,
    ),
    "a point claimed elsewhere waits, uncharged": Row(
        lambda: ending(
            failed(
                FIRST,
                ExitCode.CLAIMED_ELSEWHERE,
                pod_termination_message=words("ClaimedElsewhere", "held by another"),
            )
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "an unreadable result is a failed attempt and is quarantined": Row(
        lambda: ending(complete(FIRST), results={FIRST.key: Unreadable("result.json: truncated")}),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
        quarantines=1,
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
        lambda: ending(
            complete(FIRST),
            results={FIRST.key: Unanswered("result.json: access denied", alone=True)},
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "a result that a newer version wrote is left alone and charged to nobody": Row(
        lambda: ending(
            complete(FIRST), results={FIRST.key: Newer("result.json: written by a newer isoloss")}
        ),
        ("False", "Training"),
        starts=("tiny-b16-lr2e-3",),
    ),
    "an unreadable trajectory is quarantined and its point trained again": Row(
        lambda: with_fit(all_done(), None, unreadable=((FIRST.key, "digest differs"),)),
        ("False", "Training"),
        starts=("tiny-b8-lr1e-3",),
        quarantines=3,
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
        lambda: observed(sweep_spec(budget={"flops": flops_of(2)})),
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
        fits=True,
    ),
    "one pod in trouble among others is mentioned only": Row(
        lambda: ending(job(FIRST, pod=waiting("ImagePullBackOff", "no such image"))),
        ("False", "Training"),
        says="1 of 3 Jobs cannot start: demo-tiny-b8-lr1e-3-c7df7dbe: no such image",
    ),
}


def begun() -> ObservedSweep:
    """One point has its result in the ledger; seven are left."""
    world = observed(results={FIRST.key: result(FIRST)})
    return known(world, results={})


def test_without_a_result_a_sweep_goes_on_with_the_corpus_that_is_there() -> None:
    plan = decide_sweep(replace(training(jobs=()), manifest=manifest(digest="c" * 32)))
    assert condition(plan, "Ready")[1] == "Training"
    assert ledger_of(plan).data_digest == "c" * 32


def one_deactivated() -> ObservedSweep:
    """Of three that wait for Kueue; the other two have their turn."""
    world = queued(ObservedWorkload("q", message="no quota."))
    off = replace(world.jobs[0], workload=ObservedWorkload("w", active=False))
    return replace(world, jobs=(off, *world.jobs[1:]))


def _llama_spec() -> dict[str, Any]:
    config = dict(POINTS[0].proxy.model)
    proxy = {"name": "tiny", "model": {"config": config}, "tokens": 1_000_000}
    return sweep_spec(proxies=[proxy])


def _roomier() -> dict[str, Any]:
    limits = {"limits": {"memory": "64Gi"}}
    return sweep_spec(
        podTemplate={"spec": {"containers": [{"name": "trainer", "resources": limits}]}}
    )


def _without_first_rate() -> dict[str, Any]:
    return sweep_spec(grid={"batchSizes": [8, 16], "learningRates": ["2e-3", "4e-3"]})


def _more_tokens() -> dict[str, Any]:
    proxies = [{**proxy, "tokens": 4_000_000} for proxy in sweep_spec()["proxies"]]
    return sweep_spec(proxies=proxies)


@pytest.mark.parametrize("name", ROWS)
def test_state(name: str) -> None:
    """The row's sentence holds: actions, Ready, Stalled and the other conditions it names."""
    row = ROWS[name]
    plan = decide_sweep(row.world())
    assert condition(plan, "Ready")[:2] == row.ready
    assert row.says in condition(plan, "Ready")[2]
    assert started(plan) == row.starts
    did = (len(plan.delete), len(plan.quarantined), plan.fit is not None)
    assert did == (row.deletes, row.quarantines, row.fits)
    assert condition(plan, "Stalled")[0] == str(row.stalled)
    # kstatus looks at Reconciling first and would call a stalled sweep in progress.
    assert not row.stalled or condition(plan, "Reconciling")[0] == "False"
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
    parts += [f"quarantines {counted(row.quarantines, 'object')}"] if row.quarantines else []
    parts += ["requests a fit"] if row.fits else []
    parts += ["Stalled"] if row.stalled else []
    return "; ".join(parts) or "waits"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count > 1 else "")


@pytest.mark.parametrize("name", ROWS)
def test_a_pass_repeated_on_an_unchanged_world_changes_nothing_more(name: str) -> None:
    """No ledger write, no event, no new transition time: a quiet sweep costs nothing."""
    world = ROWS[name].world()
    plan = decide_sweep(world)
    again = after(world, plan, now=world.now + timedelta(milliseconds=1))
    if plan.quarantined:  # done by now
        again = replace(
            again,
            results={},
            manifest=ABSENT if plan.quarantined[0].path.startswith("data") else world.manifest,
        )
    second = decide_sweep(again)
    assert second.ledger is None
    before = {c.type: (c.status, c.last_transition_time) for c in plan.status.conditions}
    for c in second.status.conditions:
        if before[c.type][0] == c.status:
            assert before[c.type][1] == c.last_transition_time


def test_a_preparation_that_is_given_up_is_looked_at_no_more_often_than_one_that_runs() -> None:
    """Its next attempt was due long ago and will not come: a look each second asked for it for ever."""
    world = ROWS["a prepare Job that failed too often stalls"].world()
    plan = decide_sweep(world)
    later = after(world, plan, jobs=(), now=world.now + timedelta(hours=1))
    assert decide_sweep(later).requeue_after == 30.0
