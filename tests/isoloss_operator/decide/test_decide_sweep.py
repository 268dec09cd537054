"""What a pass does about a sweep beyond the rows of the state table (test_sweep_states.py)."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import isoloss
from isoloss_contract.ledger import Attempts, Ledger, PointState
from isoloss_contract.reading import ABSENT, timestamp
from isoloss_contract.records import Claimant, ExitCode, Outcome
from isoloss_operator.decide.observation import LABEL_KEY, ObservedJob, ObservedSweep
from isoloss_operator.decide.reads import sweep_reads
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.process.sweep_load import attempts_ended
from tests.support.builders import (
    NOW,
    STORE,
    UID,
    after,
    complete,
    condition,
    failed,
    job,
    ledger_of,
    manifest,
    names,
    observed,
    parsed,
    points,
    progress,
    result,
    stated,
    sweep_spec,
    words,
)
from tests.support.ledgers import read_back
from tests.support.sweep_worlds import (
    FIRST,
    POINTS,
    PREPARE_KEY,
    all_done,
    ending,
    hung,
    known,
    ready,
    started,
    training,
    unprepared,
)


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
    assert ledger_of(world).points[0].state is PointState.OUT_OF_MEMORY


def test_a_hung_attempt_is_charged_said_in_an_event_and_retried_once_its_job_is_gone() -> None:
    """And the Job is deleted even where the operator was killed right after the ledger was written."""
    world = hung(600)
    plan = decide_sweep(world)
    assert ledger_of(plan).points[0].attempts.charged == {"NoProgress": 1}
    assert names(plan.delete) == [world.jobs[0].name]
    said = {event.reason: event for event in plan.events}["NoProgress"]
    assert said.type == "Warning"
    assert "failurePolicy.stallSeconds" in said.message
    killed = after(world, plan, unchanged_since={})
    assert names(decide_sweep(killed).delete) == [world.jobs[0].name]
    gone = after(world, plan, jobs=world.jobs[1:], now=NOW + timedelta(seconds=6))
    assert started(decide_sweep(gone)) == ("tiny-b8-lr1e-3-a2",)


@pytest.mark.parametrize(
    ("seconds", "is_default", "ended"), [(599, False, 0), (3599, True, 0), (3600, True, 1)]
)
def test_a_slow_start_is_no_hang(seconds: float, is_default: bool, ended: int) -> None:
    """An hour is given unless the sweep sets stallSeconds."""
    world = replace(hung(seconds), spec=parsed(sweep_spec())) if is_default else hung(seconds)
    assert len(decide_sweep(world).delete) == ended


def test_an_attempt_whose_node_is_lost_is_retried_uncharged_and_its_job_deleted() -> None:
    """The Job stays for as long as its pod does, and neither holds a slot nor is waited for."""
    message = "pod a on node b did not end within its grace period"
    gone = {"failed": True, "lost": True, "unfinished_pods": 0}
    lost = job(FIRST, reason="NodeLost", message=message, **gone)
    world = ending(lost)
    plan = decide_sweep(world)
    attempts = ledger_of(plan).points[0].attempts
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
    assert [record.versions for record in ledger_of(plan).points[:5]] == [0, 0, 0, 1, None]
    assert ledger_of(plan).versions[1] == {
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


LEFT = "Waiting for 1 pod without a Job to end, such as demo-left: delete what does not end by itself."


def prepared_again() -> ObservedSweep:
    """Five points are done and three train, on a corpus whose manifest is gone."""
    results = {p.key: result(p) for p in POINTS[:5]}
    done = known(observed(results=results), results={})
    working = tuple(job(p, working_since=NOW - timedelta(hours=1)) for p in POINTS[5:])
    return replace(known(done, jobs=working), manifest=ABSENT)


def test_the_status_counts_points_on_while_their_corpus_is_prepared_again() -> None:
    """It used to say that all eight were pending."""
    world = prepared_again()
    assert sweep_reads(world, frozenset()).progress == tuple(p.key for p in POINTS[5:])
    reports = {p.key: progress(p, 500_000) for p in POINTS[5:]}
    plan = decide_sweep(replace(world, progress=reports))
    assert (plan.status.progress, plan.status.points.active) == ("5/8", 3)
    assert {row.tokens for row in plan.status.active} == {500_000}
    assert plan.status.estimated_completion
    assert plan.create == plan.delete == ()
    waits = "The prepare Job waits for a slot, which other Jobs or their pods still hold."
    assert condition(plan, "DataReady")[1:] == ("PreparingData", waits)
    # A pod that is left behind holds its slot for good, also after an attempt that was interrupted.
    assert isinstance(world.ledger, Ledger)
    left = replace(world, orphaned_pods=(world.ledger.prepare_key,), orphans=("demo-left",))
    interrupted = Attempts(ended=1, last_failure="Interrupted")
    ledger = world.ledger.replace(preparation=interrupted)
    for each in (left, replace(left, ledger=ledger)):
        said = condition(decide_sweep(each), "DataReady")
        assert said[1:] == ("PreparingData", f"{waits} {LEFT}")


@pytest.mark.parametrize("how", ["outlived", "lost"])
def test_a_job_whose_trainer_has_ended_takes_no_slot_of_the_preparation(how: str) -> None:
    """Its end can be recorded once the corpus is there again, and it is deleted only then: both waited for ever."""
    over = {"complete": how == "outlived", "failed": how == "lost", how: True}
    jobs = tuple(job(point, **over, unfinished_pods=1) for point in POINTS[5:])
    plan = decide_sweep(replace(prepared_again(), jobs=jobs))
    assert [request.kind for request in plan.create] == ["prepare"]
    assert plan.delete == ()


def test_points_that_the_ledger_does_not_know_are_counted_while_their_corpus_is_prepared_again() -> (
    None
):
    wider = {"batchSizes": [8, 16], "learningRates": ["1e-3", "2e-3", "4e-3"]}
    world = replace(prepared_again(), spec=parsed(sweep_spec(grid=wider)), generation=2)
    assert decide_sweep(world).status.progress == "0/12"


@pytest.mark.parametrize("how", ["another corpus", "suspended"])
def test_what_a_job_cost_that_is_stopped_before_the_corpus_is_there_is_recorded(how: str) -> None:
    """Once it was gone, nothing was spent until the corpus was there, and its hours were forgotten for good."""
    reports = {p.key: progress(p, 500_000) for p in POINTS[5:]}
    world = replace(prepared_again(), progress=reports)
    before = decide_sweep(world).status
    data = {**sweep_spec()["data"], "sequenceLength": 64}
    raw = sweep_spec(suspend=True) if how == "suspended" else sweep_spec(data=data)
    edited = replace(world, spec=parsed(raw), generation=2)
    if how == "suspended":
        edited = replace(edited, stopped=world.jobs, jobs=())
        assert set(sweep_reads(edited, frozenset()).progress) == set(reports)
    stopped = known(edited)
    gone = known(replace(stopped, jobs=(), stopped=(), progress={}))
    back = replace(gone, manifest=manifest(raw))
    for now in (stopped, gone, known(back)):
        assert now.status["spentFlops"] == before.spent_flops
        assert now.status["acceleratorHours"] == before.accelerator_hours == "3"


def test_a_pod_without_its_job_is_named_with_what_to_do() -> None:
    """One that was left behind before it had a node never ends; its sweep said nothing of it."""
    results = {point.key: result(point) for point in POINTS[:7]}
    done = known(observed(results=results), results={})
    world = replace(done, orphaned_pods=(POINTS[7].key,), orphans=("demo-left",))
    plan, says = decide_sweep(world), LEFT
    assert plan.create == ()
    assert plan.status.warnings == (says,)
    assert condition(plan, "Ready")[2] == f"7 of 8 points are done, 0 are training. {says}"
    stopped = decide_sweep(replace(world, spec=parsed(sweep_spec(suspend=True)), generation=2))
    said = f"spec.suspend is true: no Job is running. {says}"
    assert condition(stopped, "Suspended")[1:] == ("Suspended", said)


@pytest.mark.parametrize("code", ["MyOwnCode", "Fitted", "JobRefused"])
def test_a_code_that_is_not_a_known_one_is_no_reason(code: str) -> None:
    """Pods run what a tenant likes; a condition's reason is the operator's word."""
    words_of_pod = words(code, "no idea", "domains.math.text_field")
    bad = failed(PREPARE_KEY, ExitCode.BAD_DATA, pod_termination_message=words_of_pod)
    found = condition(decide_sweep(unprepared(bad)), "DataReady")
    assert found[:2] == ("False", "BadData")
    assert found[2] == f"{code}: spec.data.domains[1].textField: no idea"


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
    with_pod = replace(ended, unfinished_pods=1)
    assert decide_sweep(after(world, plan, jobs=(with_pod,))).expire == ()


def test_a_job_that_writes_to_another_store_is_deleted_and_its_point_started_here() -> None:
    """LABEL_STORE distinguishes them."""
    plan = decide_sweep(training(jobs=(job(FIRST, store="0" * 16, name="elsewhere"),)))
    assert names(plan.delete) == ["elsewhere"]
    assert not any(request.labels["isoloss.dev/key"] == FIRST.key for request in plan.create[2:])


def test_the_requests_carry_everything_the_shell_needs() -> None:
    """Task, labels, templates in order, secret and queue."""
    spec = sweep_spec(
        queue={"localQueueName": "research", "workloadPriorityClassName": "low"},
        podTemplate={"spec": {"nodeSelector": {"gpu": "h200"}}},
        parallelism=1,
        training={"preemptionsPerDay": 6, "checkpointSeconds": 900},
    )
    request = decide_sweep(observed(spec)).create[0]
    assert request.task.kind == "train"
    assert request.task.store_uri == STORE
    assert request.task.data_uri == f"{STORE}/data/{PREPARE_KEY}"
    assert request.task.point.key == request.labels["isoloss.dev/key"]
    assert (request.task.claimant.attempt, request.labels["isoloss.dev/attempt"]) == (1, "1")
    assert (request.task.preemptions_per_day, request.task.checkpoint_seconds) == (6, 900)
    assert request.pod_templates == ({"spec": {"nodeSelector": {"gpu": "h200"}}},)
    assert (request.secret_names, request.local_queue) == (("sweep-s3",), "research")
    assert request.priority_class == "low"


def test_a_point_preempted_at_its_end_still_fits_into_a_tight_budget() -> None:
    """Its checkpoint holds the work: it is neither paid for twice nor given up."""
    flops = sum(point.flops for point in POINTS)
    spec = sweep_spec(budget={"flops": f"{flops:.6e}"})
    lost = failed(POINTS[0], 137, pod_disruption="PreemptionByScheduler")
    reached = {POINTS[0].key: progress(POINTS[0], int(0.9 * POINTS[0].tokens))}
    plan = decide_sweep(observed(spec, jobs=(lost,), progress=reached))
    assert POINTS[0].key in [request.labels["isoloss.dev/key"] for request in plan.create]
    assert condition(plan, "Progressing")[1] == "Training"


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


CLAIMED = failed(
    FIRST, ExitCode.CLAIMED_ELSEWHERE, pod_termination_message=words("ClaimedElsewhere", "held")
)


@pytest.mark.parametrize(
    ("jobs", "claimant", "is_adopted"),
    [
        ((CLAIMED,), None, True),
        ((failed(FIRST, 1),), None, False),
        ((job(FIRST),), UID, False),
        ((job(FIRST),), "another", True),
    ],
    ids=["an attempt stepped back", "an attempt crashed", "it says that it is ours", "another's"],
)
def test_a_result_that_is_found_without_its_job_is_adopted_unless_it_is_this_sweeps_own(
    jobs: tuple[ObservedJob, ...], claimant: str | None, is_adopted: bool
) -> None:
    """The cost of others is theirs. A pod whose Job was deleted by hand may come to its end in the time that it has to stop."""
    whose = claimant and Claimant(sweep_uid=claimant, attempt=1)
    world = known(training(jobs=jobs), jobs=(), results={FIRST.key: result(FIRST, claimant=whose)})
    record = ledger_of(decide_sweep(world)).points[0]
    assert record.adopted is is_adopted
    assert (record.spent.flops > 0) is not is_adopted


def test_a_provisional_fit_waits_for_four_points_which_are_not_said_to_be_too_few() -> None:
    """It may wait for its turn, or for another to rest."""
    for count, said in (
        (3, "3 points have a result: too few for a first fit."),
        (4, "4 points have a result: not fitted yet."),
    ):
        plan = decide_sweep(known(observed(), results={p.key: result(p) for p in POINTS[:count]}))
        assert condition(plan, "FitReady") == ("False", "NoResults", said)
        assert (plan.fit is not None and plan.fit.provisional) == (count == 4)


def test_a_point_out_of_memory_is_not_tried_again_for_the_result_that_says_so() -> None:
    """The trainer leaves one, of a run that the spec wants all of: it is no shorter run to go on from."""
    nothing: dict[str, Any] = {"tokens": 0, "steps": 0, "evaluations": 0, "loss": None}
    left = result(FIRST, outcome=Outcome.OUT_OF_MEMORY, averaged_loss=None, **nothing)
    ended = (failed(FIRST, ExitCode.OUT_OF_MEMORY),)
    plan = decide_sweep(training(jobs=ended, results={FIRST.key: left}))
    record = ledger_of(plan).by_key[FIRST.key]
    assert (record.state, record.attempts.last_failure) == ("OutOfMemory", "OutOfMemory")
    assert not record.is_fitted
    assert started(plan) == ("tiny-b8-lr2e-3", "tiny-b16-lr1e-3", "tiny-b16-lr2e-3")


def test_tokens_that_are_raised_and_taken_back_leave_nothing_to_train_nor_to_prepare() -> None:
    """The corpus is gone by then, and would be another if it were prepared again."""
    longer = [{**each, "tokens": 2 * each["tokens"]} for each in sweep_spec()["proxies"]]
    before = ready()
    raised = known(replace(before, spec=parsed(sweep_spec(proxies=longer)), generation=2))
    plan = decide_sweep(replace(raised, spec=before.spec, generation=3, manifest=ABSENT))
    assert not plan.create
    assert condition(plan, "Ready")[:2] == ("True", "Fitted")


def test_attempts_of_points_that_an_edit_drops_and_brings_back_have_not_ended_anew() -> None:
    """Neither events nor metrics tell of them a second time."""
    found = {FIRST.key: result(FIRST)}
    ended = training(jobs=(complete(FIRST), failed(POINTS[1])), results=found)
    before = known(ended, jobs=(), results={})
    assert attempts_ended(None, ledger_of(before)) == {"Crashed": 1, "Succeeded": 1}
    small = parsed(sweep_spec(proxies=sweep_spec()["proxies"][1:]))
    dropped = known(replace(before, spec=small, generation=2))
    plan = decide_sweep(replace(dropped, spec=before.spec, generation=3))
    assert attempts_ended(ledger_of(dropped), ledger_of(plan)) == {}
    assert "Crashed" not in {event.reason for event in plan.events}


def test_a_refused_job_that_nobody_wants_any_more_is_held_against_no_finished_sweep() -> None:
    """Others finished its points: no Job of its own will ever be created, which takes a refusal back."""
    refusal: dict[str, Any] = {"create_error": "exceeded quota: gpus", "refusal_may_pass": True}
    waiting = decide_sweep(observed(**refusal))
    assert condition(waiting, "Accepted")[:2] == ("False", "JobRefused")
    for world in (all_done(), ready()):
        plan = decide_sweep(replace(world, **refusal))
        assert condition(plan, "Accepted")[:2] == ("True", "Accepted")


def test_queued_jobs_do_not_count_as_training() -> None:
    """Neither those that Kueue has not admitted nor those that are about to be created suspended."""
    spec = sweep_spec(queue={"localQueueName": "research"})
    suspended = job(POINTS[1], suspended=True, pod=None, unfinished_pods=0)
    working = job(FIRST, working_since=NOW - timedelta(seconds=60))
    world = replace(training(jobs=(working, suspended)), spec=parsed(spec))
    ready = condition(decide_sweep(world), "Ready")
    assert "1 is training, 2 are queued" in ready[2]


def test_only_jobs_whose_trainer_container_runs_are_said_to_train() -> None:
    """Not those whose pod is being made, nor one that a quota keeps from having a pod, which is named in a while."""
    working = job(FIRST, working_since=NOW - timedelta(seconds=60))
    young = job(POINTS[1], pod=None, unfinished_pods=0)
    kept = replace(young, name="kept", uid="kept", key=POINTS[2].key)
    world = training(jobs=(working, young, kept))
    assert "1 is training, 2 are starting." in condition(decide_sweep(world), "Ready")[2]
    held = replace(kept, held_up="FailedCreate: pods are forbidden: exceeded quota: gpus")
    said = condition(decide_sweep(replace(world, jobs=(working, young, held))), "Ready")[2]
    assert (
        "1 is training, 1 is starting. 1 of 3 Jobs cannot start: kept: FailedCreate: pods" in said
    )
    alone = decide_sweep(training(jobs=(held,)))
    assert len(alone.create) == 2
    nothing = decide_sweep(
        training(jobs=tuple(replace(held, key=p.key, uid=p.key) for p in POINTS[:3]))
    )
    status, reason, said = condition(nothing, "Ready")
    assert (status, reason) == ("False", "PodWaiting")
    assert "3 of 3 Jobs cannot start: kept: FailedCreate" in said


def test_a_result_that_is_not_there_yet_is_waited_for() -> None:
    """A store may show it later than the API server shows the end of the Job: nothing is charged, the
    point does not start again, and the Job stays until its outcome is recorded."""
    plan = decide_sweep(training(jobs=(complete(FIRST, ended=NOW - timedelta(seconds=59)),)))
    assert names(plan.create)
    assert FIRST.key not in {request.labels[LABEL_KEY] for request in plan.create}
    assert plan.expire == ()
    assert plan.requeue_after <= 15
    assert "1 Job succeeded without a result in the store yet." in str(plan.status)
    assert plan.ledger is None


@pytest.mark.parametrize(("seconds", "ended"), [(59, 0), (60, 1)])
def test_a_manifest_that_is_not_there_yet_is_waited_for_as_any_result(
    seconds: float, ended: int
) -> None:
    jobs = (complete(PREPARE_KEY, ended=NOW - timedelta(seconds=seconds)),)
    plan = decide_sweep(observed(manifest=ABSENT, jobs=jobs))
    assert len(plan.create) == ended
    assert ("its result is not in the store yet" in condition(plan, "Ready")[2]) is not bool(ended)
    assert ledger_of(plan).preparation.charged == ({"ResultMissing": 1} if ended else {})


def test_what_people_should_know_of_the_corpus_is_in_its_condition() -> None:
    found = manifest()
    first = found.domains[0].model_copy(
        update={"near_duplicates": 10**6, "bad_documents": 3, "training_documents": 10**5}
    )
    told = found.model_copy(update={"domains": (first, *found.domains[1:])})
    says = condition(decide_sweep(observed(manifest=told)), "DataReady")[2]
    remarks = told.remarks(per_thousand=5)
    assert says.endswith(" ".join(remarks))
    assert len(remarks) == 3


def test_a_preparation_by_an_earlier_image_that_wrote_something_else_is_repeated_uncharged() -> (
    None
):
    """The operator was upgraded while its Job ran."""
    ended = NOW - timedelta(seconds=60)
    plan = decide_sweep(unprepared(complete(PREPARE_KEY, ended=ended, template="earlier")))
    assert [(request.kind, request.attempt) for request in plan.create] == [("prepare", 2)]
    assert ledger_of(plan).preparation.charged == {}


def test_a_trainer_image_of_another_version_is_named_with_what_to_do() -> None:
    """It was told in the words of its parser, under the name of a field that no manifest has."""
    refuses = words("BadTask", "prepare.sweep_uid: unknown field", "sweep_uid")
    ended = failed(
        PREPARE_KEY, ExitCode.BAD_CONFIGURATION, pod_termination_message=refuses, generation=1
    )
    says = condition(decide_sweep(unprepared(ended)), "Ready")
    assert says[1] == "BadConfiguration"
    assert says[2] == (
        f"the trainer image is of another version than this operator, isoloss {isoloss.__version__}, and refuses its task "
        "(prepare.sweep_uid: unknown field): build both images from one version, and set trainer.image of "
        "the chart, or the image in the podTemplate"
    )


@pytest.mark.parametrize(("generation", "is_believed"), [(2, True), (0, True), (1, False)])
def test_a_job_of_an_older_spec_cannot_blame_the_present_one(
    generation: int, is_believed: bool
) -> None:
    refuses = {"pod_termination_message": words("BadTask", "no such thing", "tokenizer")}
    ended = failed(PREPARE_KEY, ExitCode.BAD_CONFIGURATION, generation=generation, **refuses)
    plan = decide_sweep(unprepared(ended, generation=2))
    assert (condition(plan, "Ready")[1] == "BadConfiguration") is is_believed
    assert ledger_of(plan).preparation.ended == 1, "it ended all the same"


def data_ready(seconds_ago: float) -> dict[str, Any]:
    since = timestamp(NOW - timedelta(seconds=seconds_ago))
    return stated("DataReady", "True", "DataPrepared", lastTransitionTime=since)


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


def test_a_corpus_that_goes_after_it_was_prepared_is_prepared_by_the_next_attempt() -> None:
    """Its Job had succeeded, so no attempt was known to have ended: the next had the name of the one that is kept."""
    begun = unprepared(complete(PREPARE_KEY), manifest=manifest())
    gone = decide_sweep(replace(known(begun), manifest=ABSENT, jobs=()))
    assert [(request.kind, request.attempt) for request in gone.create] == [("prepare", 2)]
    assert gone.ledger is None or gone.ledger.preparation.charged == {}


def test_a_corpus_that_goes_together_with_the_ledger_charges_nothing_to_the_job_that_had_written_it() -> (
    None
):
    """Its Job is kept, and the condition has said that the corpus was there."""
    begun = unprepared(complete(PREPARE_KEY, ended=NOW), manifest=manifest())
    world = after(begun, decide_sweep(begun), manifest=ABSENT, ledger=ABSENT)
    plan = decide_sweep(replace(world, now=NOW + timedelta(minutes=2)))
    assert plan.ledger is not None
    assert (plan.ledger.preparation.ended, plan.ledger.preparation.charged) == (1, {})
    assert [(request.kind, request.attempt) for request in plan.create] == [("prepare", 2)]


def test_a_lost_preparation_is_deleted_although_its_manifest_is_there() -> None:
    lost = job(PREPARE_KEY, failed=True, lost=True)
    assert names(decide_sweep(training(jobs=(lost,))).delete)


@pytest.mark.parametrize(("running", "warned"), [(3, False), (4, True)])
def test_more_jobs_than_parallelism_are_warned_of(running: int, warned: bool) -> None:
    """It may have been lowered while they run."""
    plan = decide_sweep(training(jobs=tuple(map(job, POINTS[:running]))))
    assert plan.create == ()
    assert ("1 more Job is running than spec.parallelism allows" in str(plan.status)) == warned


def test_a_broken_node_is_named_in_condition_event_and_warning_and_charges_no_point() -> None:
    """It used to fail a whole sweep for good within 69 seconds."""
    jobs = tuple(
        failed(
            p, 128, pod_reason="StartError", pod_node="gpu-7", pod_termination_message="no device"
        )
        for p in POINTS
    )
    world = training(jobs=jobs)
    plan = decide_sweep(world)
    assert not any(record.attempts.charged for record in ledger_of(plan).points)
    (event,) = [each for each in plan.events if each.reason == "NodeFailure"]
    assert event.type == "Warning"
    cause = "StartError on node gpu-7 (exit code 128): no device."
    assert cause in event.message
    assert "kubectl cordon gpu-7" in event.message
    waiting = after(world, plan, jobs=())
    status = decide_sweep(waiting).status
    assert any(cause in each for each in status.warnings)
    status, reason, message = condition(decide_sweep(waiting), "Ready")
    assert (status, reason) == ("False", "WaitingToRetry")
    assert cause in message
