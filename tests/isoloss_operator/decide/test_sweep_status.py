"""The status is constant in size, and its numbers are the ledger's."""

import gzip
from dataclasses import replace
from datetime import timedelta

from isoloss.formatting import precise
from isoloss.laws import FitOptions, Refusal, RefusalReason, refused_laws
from isoloss_contract.ledger import Attempts, Ledger
from isoloss_contract.ledger_files import MAX_TEXT_BYTES, encoded
from isoloss_contract.reading import parse_timestamp
from isoloss_contract.records import ExitCode
from isoloss_operator.api import ScalingSweepStatus
from isoloss_operator.decide.attempts import after_failure, planned
from isoloss_operator.decide.conditions import texts
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.jobs import Failure, FailureClass, store_label
from isoloss_operator.decide.law_status import law_statuses, optimum_statuses
from isoloss_operator.decide.reads import sweep_reads
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.planning.flops import six_nd
from tests.support.builders import (
    NOW,
    after,
    complete,
    failed,
    job,
    ledger_of,
    manifest,
    observed,
    parsed,
    points,
    progress,
    result,
    sweep_spec,
    words,
)
from tests.support.ledgers import read_back
from tests.support.synthetic_runs import fitted_laws

STATUS_LIMIT = 32 * 1024
STORE_URI = "s3://bucket/" + "x" * 500
LONG = "ä€𝄞" * 400


def status_bytes(status: ScalingSweepStatus) -> int:
    return len(status.model_dump_json(by_alias=True).encode())


def huge_spec() -> dict[str, object]:
    """10,000 points and the longest storage URI."""
    grid = {"batchSizes": list(range(1, 101)), "learningRates": [f"{n}e-5" for n in range(1, 101)]}
    return sweep_spec(
        proxies=[sweep_spec()["proxies"][0]],
        grid=grid,
        storage={"uri": STORE_URI},
        parallelism=1000,
        failurePolicy={"retriesPerPoint": 0, "maxFailedPoints": 10_000},
    )


def test_laws_of_a_sweep_that_has_grown_are_provisional_wherever_the_status_shows_them() -> None:
    found = {point.key: result(point) for point in points()}
    world = observed(results=found)
    request = decide_sweep(world).fit
    assert request is not None
    fit = FitOutcome(request.inputs, fitted_laws(), laws_sha256="a" * 64, points=8)
    world = replace(after(world, decide_sweep(world)), fit=fit)
    rates = ["1e-3", "2e-3", "4e-3"]
    grown = sweep_spec(grid={"batchSizes": [8, 16], "learningRates": rates})
    plan = decide_sweep(replace(world, spec=parsed(grown), generation=2))
    said = {each.type: each.reason for each in plan.status.conditions}
    assert (said["Ready"], said["FitReady"]) == ("Training", "Provisional")
    law = plan.status.learning_rate_law
    assert law is not None
    assert law.status == "Provisional"


def test_status_keeps_its_limit_when_ten_thousand_points_failed_with_long_last_words() -> None:
    """Four-byte letters in every message."""
    spec = huge_spec()
    planned = points(spec)
    store = store_label(STORE_URI)
    jobs = tuple(failed(p, 1, store=store, pod_message=LONG) for p in planned)
    plan = decide_sweep(observed(spec, jobs=jobs, create_error=LONG))
    assert plan.status.points.failed == 10_000
    assert status_bytes(plan.status) < STATUS_LIMIT


def test_a_ledger_of_ten_thousand_points_with_the_longest_records_can_be_read_back() -> None:
    """Quotes, which JSON doubles, in every kept failure."""
    point = points(sweep_spec())[0]
    words = Failure(FailureClass.TRAJECTORY_UNREADABLE, '"' * 1000, code="C" * 64)
    attempts = Attempts()
    for attempt in range(1, 6):
        ended = job(point, attempt=attempt, uid="u" * 36)
        attempts = after_failure(attempts, ended, words, template="t" * 16, now=NOW)
    record = replace(
        planned(point, None),
        name="n" * 100,
        proxy="p" * 30,
        learning_rate=1.2345678901234567e-05,
        attempts=attempts,
        trajectory_sha256="f" * 64,
    )
    records = tuple(replace(record, key=f"{number:032x}") for number in range(10_000))
    ledger = Ledger(sweep="s", namespace="n", uid="u", points=records)
    assert len(gzip.decompress(encoded(ledger, epoch=1))) < MAX_TEXT_BYTES / 2
    assert read_back(ledger) == ledger


def test_the_status_of_a_finished_sweep_of_any_size_fits_and_is_the_ledgers() -> None:
    """1000 running points, 9000 done, laws with their optima and long warnings."""
    spec = huge_spec()
    planned = points(spec)
    store = store_label(STORE_URI)
    laws = replace(fitted_laws(), warnings=(LONG,) * 50)
    world = observed(
        spec,
        results={p.key: result(p) for p in planned[1000:]},
        jobs=tuple(job(p, store=store) for p in planned[:1000]),
        progress={p.key: progress(p, 500_000) for p in planned[:64]},
        fit=FitOutcome(inputs="old", laws=laws, laws_sha256="f" * 64, points=9000),
    )
    plan = decide_sweep(world)
    assert status_bytes(plan.status) < STATUS_LIMIT
    assert plan.status.progress == "9000/10000"
    assert plan.status.ledger is not None
    assert plan.status.ledger.sha256 == ledger_of(plan).digest
    assert len(plan.status.active) == len(plan.status.warnings) == 8


def test_attempts_in_vain_are_paid_for_and_stay_paid_for_without_their_jobs() -> None:
    """A crash of 30 minutes on 8 devices, then a success of 15: six hours, not two."""
    planned = points()
    crashed = failed(planned[0], accelerators=8, worked_seconds=1800.0)
    first = observed(jobs=(crashed,), progress={planned[0].key: progress(planned[0], 400_000)})
    lost = decide_sweep(first)
    assert lost.status.accelerator_hours == precise(4.0)
    assert lost.status.spent_flops == precise(six_nd(planned[0].proxy.parameters, 400_000))
    gone = after(first, lost, jobs=(), progress={})
    assert decide_sweep(gone).status.accelerator_hours == precise(4.0)
    done = complete(planned[0], attempt=2, accelerators=8, worked_seconds=900.0)
    found = {planned[0].key: result(planned[0], accelerator_seconds=7000.0)}
    ended = decide_sweep(replace(gone, jobs=(done,), results=found))
    assert ended.status.accelerator_hours == precise(6.0)
    assert ended.status.spent_flops == precise(planned[0].flops)


def test_a_result_that_knows_of_more_time_than_its_pods_show_is_believed() -> None:
    """Pods that a Job replaced are gone; their checkpoints carried their time on."""
    planned = points()
    done = complete(planned[0], worked_seconds=600.0)
    found = {planned[0].key: result(planned[0], accelerator_seconds=1800.0)}
    status = decide_sweep(observed(jobs=(done,), results=found)).status
    assert status.accelerator_hours == precise(0.5)


def test_jobs_that_end_under_an_invalid_spec_are_not_told_of_as_active() -> None:
    """The points are not known, but the Jobs are."""
    first, second = points()[:2]
    working = job(first, working_since=NOW - timedelta(minutes=5))
    jobs, reports = (working, job(second)), {first.key: progress(first, 400_000)}
    started = observed(jobs=jobs, progress=reports)
    world = after(started, decide_sweep(started), spec=parsed(sweep_spec(proxies=[])))
    plan = decide_sweep(world)
    assert plan.status.points.active == 2
    assert plan.status.estimated_completion
    ended = decide_sweep(replace(world, jobs=(complete(first), job(second))))
    assert [point.name for point in ended.status.active] == [job(second).name]
    assert (ended.status.points.active, ended.status.points.pending) == (1, 7)
    gone = decide_sweep(replace(world, jobs=())).status
    assert (gone.points.active, gone.active, gone.estimated_completion) == (0, (), "")


def test_the_progress_of_another_attempt_is_not_taken_for_lost_work() -> None:
    """Attempt 2 failed before it reported anything; the stored record is attempt 1's."""
    planned = points()
    crashed = failed(planned[0], attempt=2)
    world = observed(jobs=(crashed,), progress={planned[0].key: progress(planned[0], 400_000)})
    assert decide_sweep(world).status.spent_flops == precise(0.0)


def test_the_last_report_of_a_failed_attempt_is_read_once() -> None:
    """Until the ledger knows of its end."""
    planned = points()
    world = observed(jobs=(failed(planned[0]),))
    assert sweep_reads(world, frozenset()).progress == (planned[0].key,)
    recorded = after(world, decide_sweep(world))
    assert sweep_reads(recorded, frozenset()).progress == ()


def test_failed_points_are_shown_with_their_last_words() -> None:
    """Name, class, message."""
    planned = points()
    message = words("Memory", "needs 90 GiB of 80 GiB")
    plan = decide_sweep(
        observed(
            jobs=(failed(planned[0], ExitCode.OUT_OF_MEMORY, pod_termination_message=message),)
        )
    )
    shown = plan.status.failures[0]
    assert (shown.name, shown.reason) == ("tiny-b8-lr1e-3", "OutOfMemory")
    assert shown.message == "needs 90 GiB of 80 GiB"


def test_repetition_of_the_corpus_is_warned_of() -> None:
    """A loss on text seen four times is another loss."""
    corpus = manifest()
    few = corpus.domains[1].model_copy(update={"training_tokens": 90_000})
    corpus = corpus.model_copy(update={"domains": (corpus.domains[0], few)})
    plan = decide_sweep(observed(manifest=corpus))
    assert plan.status.warnings == (
        "The longest runs see some domains more than once: math 4.0 times.",
    )


def test_an_unreadable_status_is_written_again() -> None:
    """Someone may have edited it."""
    plan = decide_sweep(observed(status={"points": "many"}))
    assert plan.status.points.total == 8


def test_laws_read_as_formulas_with_their_quality() -> None:
    """Fitted, provisional or refused with the engine's words."""
    laws = fitted_laws()
    rate = law_statuses(laws, provisional=False)["learning_rate_law"]
    provisional = law_statuses(laws, provisional=True)
    batch, loss = provisional["batch_size_law"], provisional["loss_compute_law"]
    assert (rate.status, batch.status) == ("Fitted", "Provisional")
    assert rate.formula.startswith("LR = ")
    assert " * C^-" in loss.formula
    assert "optima" in batch.quality
    refusal = Refusal(RefusalReason.TOO_FEW_SIZES, "Add a size.")
    refused = law_statuses(refused_laws(refusal, (), FitOptions()), provisional=False)
    assert {law.status for law in refused.values()} == {"Refused"}
    shown = refused["batch_size_law"]
    assert (shown.reason, shown.message) == ("TooFewSizes", "Add a size.")
    assert 1 <= len(optimum_statuses(laws.frontier, {30_000_000: "small"})) <= 8


def test_more_than_eight_texts_end_with_how_many_are_left_out() -> None:
    """Nothing is dropped in silence."""
    assert texts([str(n) for n in range(10)])[-1] == "and 3 more"
    assert len(texts(["a"] * 8)) == 8


def test_the_end_is_told_by_what_is_left_and_the_pace_so_far() -> None:
    """A point took two hours of one device; half of another is left, on two."""
    spec = sweep_spec(
        grid={"batchSizes": [8], "learningRates": ["1e-3", "2e-3"]},
        proxies=sweep_spec()["proxies"][:1],
    )
    done, left = points(spec)
    begun = observed(
        spec, jobs=(complete(done),), results={done.key: result(done, accelerator_seconds=7200.0)}
    )
    ended = after(begun, decide_sweep(begun), results={})
    running = job(left, accelerators=2, working_since=NOW)
    half = {left.key: progress(left, left.tokens // 2)}
    status = decide_sweep(replace(ended, jobs=(running,), progress=half)).status
    assert parse_timestamp(status.estimated_completion) == NOW + timedelta(seconds=1800)


def test_the_hours_shown_do_not_fall_when_a_job_ends_before_it_is_seen_to() -> None:
    """Its pod ended ten seconds before the pass that saw it run."""
    planned = points()
    working = job(planned[0], accelerators=8, working_since=NOW - timedelta(hours=1))
    first = observed(jobs=(working,))
    running = decide_sweep(first)
    assert running.status.accelerator_hours == precise(8.0)
    done = complete(planned[0], accelerators=8, worked_seconds=3590.0)
    found = {planned[0].key: result(planned[0], accelerator_seconds=0.0)}
    ended = decide_sweep(after(first, running, jobs=(done,), results=found))
    assert ledger_of(ended).points[0].spent.accelerator_seconds == 8 * 3590.0
    assert ended.status.accelerator_hours == precise(8.0)
    damaged = replace(first, jobs=(), status={"acceleratorHours": "many"})
    assert decide_sweep(damaged).status.accelerator_hours == "0"
