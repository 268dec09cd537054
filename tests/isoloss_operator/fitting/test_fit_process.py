"""What a fit leaves in its store, on a real folder: files that others can trust, whatever goes away meanwhile."""

import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoloss.laws import FitOptions, Run
from isoloss.page_status import read_page_status
from isoloss.search import Point, SearchOptions, Seen, Size
from isoloss.status import View
from isoloss_contract import layout, records
from isoloss_contract.ledger import PointRecord
from isoloss_contract.store import (
    BadRecord,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from isoloss_operator.decide.fits import FitOutcome, FitPoint, FitRequest, SearchRequest
from isoloss_operator.fitting import fit_process, fitter
from isoloss_operator.fitting.fit_jobs import FitJob
from isoloss_operator.fitting.fit_process import fit, read_runs
from isoloss_operator.fitting.fitter import run_in_process
from isoloss_operator.process import logs
from isoloss_operator.store.fit_files import fit_document, fit_path, read_outcome
from isoloss_operator.store.storage import Storage
from tests.support.chance import Clock
from tests.support.pages import draw_empty_figures
from tests.support.stored_sweep import write_sweep
from tests.support.synthetic_trainer import synthetic_loss

LAWS = "sweeps/x/laws.json"


@pytest.fixture(autouse=True)
def without_figures() -> Iterator[None]:
    """Those of fits in processes of their own are drawn all the same."""
    with draw_empty_figures:
        yield


def plant(folder: Path) -> FitRequest:
    """Nine finished points in the store, and the request to fit them."""
    store, tokens = Store(f"file://{folder}"), np.geomspace(1e5, 4e6, 20)
    runs = [
        Run(
            f"b{batch}",
            params=1e5,
            batch_size=batch,
            sequence_length=128,
            learning_rate=rate,
            tokens=tokens,
            losses=np.array([synthetic_loss(1e5, each, batch, rate) for each in tokens]),
        )
        for rate in (2e-3, 4e-3, 8e-3)
        for batch in (4, 8, 16)
    ]
    return FitRequest(
        inputs="i",
        points=tuple(planted(store, record) for record in write_sweep(store, runs=runs).points),
        options=FitOptions(bootstrap_samples=5),
        weights="averaged",
        provisional=False,
        ledger_sha256="d",
        laws_path=LAWS,
        report_path="sweeps/x/report.html",
    )


def planted(store: Store, record: PointRecord) -> FitPoint:
    """A point of that sweep as a fit is asked for it."""
    config, result = (
        kind.model_validate_json(store.read(path(record.key)))
        for kind, path in (
            (records.PointConfig, layout.point_config),
            (records.PointResult, layout.point_result),
        )
    )
    return FitPoint(record.key, record.name, config, result.trajectory_sha256, diverged=False)


def job(folder: Path, request: FitRequest | None = None) -> FitJob:
    return FitJob(request or plant(folder), f"file://{folder}", None, "research/dense")


def fitted(work: FitJob) -> FitOutcome:
    outcome = fit(work)
    assert isinstance(outcome, FitOutcome)
    return outcome


def conditions(**said: str) -> list[dict[str, Any]]:
    """Conditions by type: their status, with a reason and a message."""
    return [
        {
            "type": kind,
            "status": status,
            "reason": "Fitting",
            "message": "why",
            "observedGeneration": 1,
        }
        for kind, status in said.items()
    ]


def sweep_resource(**said: str) -> dict[str, Any]:
    """As a pass hands it to a fit."""
    metadata = {"name": "dense", "namespace": "research", "uid": "u", "generation": 1}
    return {"metadata": metadata, "status": {"conditions": conditions(**said)}}


UNDER_WAY = {"Ready": "False", "Stalled": "False", "Reconciling": "True"}


def beside_the_page(folder: Path) -> View:
    """What `isoloss watch` reads in the store."""
    return View(read_page_status(Store(f"file://{folder}"), "sweeps/x"))


def test_the_status_beside_the_last_page_says_that_the_sweep_is_over(tmp_path: Path) -> None:
    """The pass that asked for the fit could not know yet."""
    request = replace(plant(tmp_path), resource=sweep_resource(**UNDER_WAY), provisional=False)
    outcome = fitted(job(tmp_path, request))
    assert outcome.laws is not None
    view = beside_the_page(tmp_path)
    assert view.is_settled
    refused = outcome.laws.status == "refused" and outcome.laws.only_batch_size is None
    assert bool(view.stalled) is refused
    assert view.is_ready is not refused
    assert view.sweep["status"]["learningRateLaw"]["status"] in ("Fitted", "Refused")


def test_the_status_beside_a_page_on_the_way_is_that_of_the_pass(tmp_path: Path) -> None:
    request = replace(plant(tmp_path), resource=sweep_resource(**UNDER_WAY), provisional=True)
    fitted(job(tmp_path, request))
    view = beside_the_page(tmp_path)
    assert not view.is_settled
    assert view.sweep["status"]["learningRateLaw"]["status"] in ("Provisional", "Refused")


def test_the_last_page_of_a_search_says_why_it_ended(tmp_path: Path) -> None:
    """The pass that asked for the step knows the one before it."""
    request = plant(tmp_path)
    size = Size("a", 1e5, 4e6, (4.0, 8.0, 16.0), (2e-3, 4e-3, 8e-3), seconds_per_flop=3.6e-12)
    points = {
        each.key: Seen(Point("a", each.config.batch_size, each.config.learning_rate), wanted=4e6)
        for each in request.points
    }
    search = SearchRequest((size,), points, SearchOptions(max_added_points=0), None)
    resource = sweep_resource(Progressing="False", **UNDER_WAY)
    resource["status"]["search"] = {"ended": "", "message": "2 chosen", "paused": 9}
    fitted(job(tmp_path, replace(request, resource=resource, search=search)))
    status = beside_the_page(tmp_path).sweep["status"]
    (progressing,) = [each for each in status["conditions"] if each["type"] == "Progressing"]
    assert status["search"]["message"].startswith("The search is over (NothingLeft): ")
    assert status["search"]["paused"] == 9
    assert progressing["message"] == status["search"]["message"]
    page = (tmp_path / "sweeps/x/report.html").read_text()
    assert ("The search is over" in page, "2 chosen" in page) == (True, False)


def test_a_sweep_that_was_stalled_stays_so_on_its_last_page(tmp_path: Path) -> None:
    said = {**UNDER_WAY, "Stalled": "True", "Reconciling": "False"}
    request = replace(plant(tmp_path), resource=sweep_resource(**said), provisional=False)
    fitted(job(tmp_path, request))
    assert beside_the_page(tmp_path).stalled["reason"] == "Fitting"


def test_a_fit_leaves_laws_report_and_a_record_that_a_restart_finds(
    tmp_path: Path,
) -> None:
    outcome = fitted(job(tmp_path))
    assert outcome.report_written
    assert outcome.points == 9
    found = Storage(readers=4).fit_outcome(f"file://{tmp_path}", LAWS)
    assert isinstance(found, FitOutcome)
    assert (found.inputs, found.laws_sha256) == (outcome.inputs, outcome.laws_sha256)
    assert found.laws is not None
    assert outcome.laws is not None
    assert len(found.laws.contours) == len(outcome.laws.contours) > 0
    assert hashlib.sha256((tmp_path / LAWS).read_bytes()).hexdigest() == outcome.laws_sha256


@pytest.mark.parametrize("file", ["laws.json", "fit.json"])
@pytest.mark.parametrize("damage", ["removed", "truncated", "replaced"])
def test_a_loss_of_a_fits_files_is_noticed_without_reading_them_in_every_pass(
    tmp_path: Path, file: str, damage: str
) -> None:
    clock, calls = Clock(), list[str]()
    storage = Storage(on_call=lambda name, *_: calls.append(name), clock=clock)
    outcome = fitted(job(tmp_path))

    def are_lost() -> bool:
        return storage.laws_are_lost(f"file://{tmp_path}", LAWS, outcome.laws_sha256, 60)

    for _ in range(5):
        assert not are_lost()
        clock.now += 61
    assert set(calls) == {"fit", "stamp"}, "laws.json was not read"
    path = tmp_path / fit_path(LAWS).replace("fit.json", file)
    content = path.read_bytes()
    path.unlink()
    if damage != "removed":
        path.write_bytes(content[:-9] if damage == "truncated" else content)
    assert are_lost() is (damage != "replaced"), "the same content again is no loss"


def test_a_store_that_does_not_answer_has_lost_no_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: object, **__: object) -> bytes:
        raise StoreUnavailable("down")

    monkeypatch.setattr(Store, "read", unanswered)
    assert not Storage().laws_are_lost(f"file://{tmp_path}", LAWS, "a" * 64, 60)


def test_a_fit_of_the_same_points_writes_the_same_laws(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        outcome = fitted(job(tmp_path / name))
        digests.add(outcome.laws_sha256)
    assert len(digests) == 1


@pytest.mark.parametrize("looks", [1, 12])
def test_a_trajectory_that_comes_within_a_minute_is_read(tmp_path: Path, looks: int) -> None:
    """A store may show it late. To train its point again would cost more than to wait."""
    request = plant(tmp_path)
    work = job(tmp_path, request)
    victim = request.points[3]
    path = tmp_path / layout.finished_trajectory(victim.key, victim.trajectory_sha256)
    away, slept = path.rename(path.with_suffix(".late")), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == looks:
            away.rename(path)

    read = read_runs(Store(work.store_uri), work, request, sleep)
    assert [run.name for run in read if isinstance(run, Run)] == [
        point.name for point in request.points
    ]
    assert sum(slept) == 5 * looks


@pytest.mark.parametrize("damage", ["missing", "truncated", "changed", "no result"])
def test_a_trajectory_that_is_not_the_results_own_is_named_and_nothing_is_fitted(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_process, "REREAD_SECONDS", 0.01)
    monkeypatch.setattr(fit_process, "RESULT_SECONDS", 0.05)
    request = plant(tmp_path)
    work = job(tmp_path, request)
    victim = request.points[3]
    path = tmp_path / layout.finished_trajectory(victim.key, victim.trajectory_sha256)
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "changed":
        path.write_bytes(path.read_bytes().replace(b"2.", b"1.", 1))
    else:
        (tmp_path / layout.point_result(victim.key)).unlink()
    outcome = fitted(work)
    assert [key for key, _ in outcome.unreadable] == [victim.key]
    assert outcome.laws is None
    assert not (tmp_path / LAWS).exists()


def test_laws_that_are_not_those_of_the_record_are_refused(tmp_path: Path) -> None:
    fitted(job(tmp_path))
    laws = tmp_path / LAWS
    laws.write_text(laws.read_text().replace("fitted", "Fitted", 1))
    with pytest.raises(BadRecord, match="SHA-256"):
        read_outcome(lambda path, _: (tmp_path / path).read_bytes(), LAWS)


def test_laws_of_an_unknown_form_are_refused() -> None:
    document = b'{"format": "other"}'
    digest = hashlib.sha256(document).hexdigest()
    record = fit_document(FitOutcome(inputs="i", laws=None, laws_sha256=digest))
    files = {LAWS: document, fit_path(LAWS): record}
    with pytest.raises(BadRecord, match=r"laws\.json"):
        read_outcome(lambda path, _: files[path], LAWS)


def log_as_the_operator_does() -> None:
    logs.configure("INFO")
    logging.getLogger("fit").warning("a font is missing")


def test_the_process_of_a_fit_logs_as_the_operator_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It starts without the operator's logging: a line of plain text would break every log parser."""
    # The process that fits are forked from has the standard error of the test that started it.
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    run_in_process(
        job(tmp_path), 120, threading.Event(), lambda _: None, on_start=log_as_the_operator_does
    )
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert "a font is missing" in [line["message"] for line in lines]


def test_an_operator_of_the_tests_that_is_killed_as_it_asks_for_a_fit_stops_no_fit_of_another() -> (
    None
):
    """They are forked from one process and share what their fits are forked from, which such a death ends."""
    program = (
        "import multiprocessing.forkserver, os, socket\n"
        "from isoloss_operator.fitting import fitter\n"
        "from tests.support.warm_operator import take_over\n"
        "fitter._PROCESSES.set_forkserver_preload([])\n"
        "fitter.start_ahead()\n"
        "take_over()\n"
        "server = multiprocessing.forkserver._forkserver\n"
        "with socket.socket(socket.AF_UNIX) as killed:\n"
        "    killed.connect(server._forkserver_address)\n"
        "os.waitpid(server._forkserver_pid, 0)\n"
        "for _ in range(2):\n"
        "    process = fitter._PROCESSES.Process(target=fitter._nothing)\n"
        "    process.start()\n"
        "    process.join()\n"
        "    assert process.exitcode == 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_fit_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    early: list[FitOutcome] = []
    outcome = run_in_process(job(tmp_path), 120, threading.Event(), early.append)
    assert isinstance(outcome, FitOutcome)
    assert outcome.points == 9
    (told,) = early
    assert told.laws_sha256 == outcome.laws_sha256
    assert (told.report_written, outcome.report_written) == (False, True)


def test_a_fit_whose_operator_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    """Its traceback would stand in the log of the operator that comes next."""
    ours, theirs = fitter._PROCESSES.Pipe(duplex=False)
    ours.close()
    process = fitter._PROCESSES.Process(
        target=fitter._main, args=(theirs, job(tmp_path), 1024, None)
    )
    process.start()
    theirs.close()
    process.join(100)
    assert process.exitcode == 0


def test_laws_can_be_read_as_soon_as_they_are_told_of(tmp_path: Path) -> None:
    """Predictions do not wait for the report; until it is there, the record says that it is not."""

    def look(outcome: FitOutcome) -> None:
        laws = (tmp_path / LAWS).read_bytes()
        assert hashlib.sha256(laws).hexdigest() == outcome.laws_sha256
        stored = read_outcome(lambda path, _: (tmp_path / path).read_bytes(), LAWS)
        assert (stored.laws_sha256, stored.report_written) == (outcome.laws_sha256, False)
        assert not list(tmp_path.rglob("report.html"))

    outcome = fit(job(tmp_path), look)
    assert isinstance(outcome, FitOutcome)
    assert outcome.report_written
    stored = read_outcome(lambda path, _: (tmp_path / path).read_bytes(), LAWS)
    assert stored.report_written


@pytest.mark.parametrize(
    ("error", "times", "waits"),
    [
        pytest.param(StoreUnavailable, 2, 2, id="away for a moment"),
        # The next fit, which may be another tenant's, waits for its process.
        pytest.param(StoreUnavailable, 1000, 12, id="away"),
        pytest.param(StoreRefused, 1000, 0, id="refused"),
    ],
)
def test_laws_stand_whatever_the_store_does_to_their_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[StoreError],
    times: int,
    waits: int,
) -> None:
    """A store that went away is asked again for a minute, and one that refuses is not."""
    failures, clock, write = count(1), Clock(), Store.write

    def failing(store: Store, path: str, content: bytes) -> None:
        if path.endswith("report.html") and next(failures) <= times:
            raise error(path)
        write(store, path, content)

    monkeypatch.setattr(Store, "write", failing)
    monkeypatch.setattr(fit_process, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    outcome = fitted(job(tmp_path))
    assert outcome.laws is not None
    assert outcome.report_written is (times < 1000)
    assert bool(list(tmp_path.rglob("report.html"))) is outcome.report_written
    assert clock.now == 5.0 * waits


def test_the_record_of_a_fit_holds_no_laws_itself() -> None:
    document = json.loads(fit_document(FitOutcome(inputs="i", laws=None, error="e")))
    assert document["laws_sha256"] == ""
    assert document["error"] == "e"
