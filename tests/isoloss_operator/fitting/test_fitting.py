"""Fits run beside the operator, and only those that somebody still wants."""

import math
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from isoloss.formatting import learning_rate
from isoloss.laws import FitOptions, Prediction, PredictionQuery, predict
from isoloss_contract.store import Store
from isoloss_operator.decide.fits import AnswerPage, FitOutcome, FitRequest, SweepPage
from isoloss_operator.fitting import fit_process
from isoloss_operator.fitting.fit_jobs import FitEnd, FitJob, NotFitted, fit_result
from isoloss_operator.fitting.fitter import PRELOADED, Fitter, OnLaws, run_in_process
from isoloss_operator.store.storage import Storage
from tests.support.pages import draw_empty_figures
from tests.support.synthetic import Grid, Synthetic, synthetic_runs
from tests.support.synthetic_runs import fitted_laws

REQUEST = FitRequest(
    inputs="first",
    points=(),
    options=FitOptions(bootstrap_samples=5),
    weights="averaged",
    provisional=False,
    ledger_sha256="d",
    laws_path="sweeps/x/laws.json",
    report_path="sweeps/x/report.html",
)


def job(inputs: str = "first") -> FitJob:
    return FitJob(replace(REQUEST, inputs=inputs), "file:///nowhere", None, "research/dense")


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "no result within the deadline"
        time.sleep(0.01)


@dataclass
class Bench:
    """A Fitter whose fits last until they are told to end."""

    processes: int = 1
    began: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    told: list[tuple[str, bool]] = field(default_factory=list)
    laws: list[str] = field(default_factory=list)
    """Whose laws were told of before their report."""
    early: FitOutcome | None = None
    """The outcome without its report, if there is one."""
    go_on: threading.Event = field(default_factory=threading.Event)
    answer: FitEnd | None = None
    now: float = 0.0

    def __post_init__(self) -> None:
        self.fitter: Fitter[str] = Fitter(
            processes=self.processes,
            timeout_seconds=1,
            on_done=lambda key, _, end: self.told.append((key, isinstance(end, FitOutcome))),
            on_laws=self.laws.append,
            run=self.run,
            group_of=lambda key: key.partition("/")[0],
            clock=lambda: self.now,
        )

    def begin(self, uid: str = "uid", key: str = "key", work: FitJob | None = None) -> None:
        """Ask for the first fit and wait until it runs."""
        self.fitter.start(uid, key, work or job())
        eventually(lambda: self.began)

    def run(
        self, work: FitJob, _seconds: float, unwanted: threading.Event, on_laws: OnLaws
    ) -> FitEnd:
        self.began.append(work.request.inputs)
        if self.early is not None:
            on_laws(self.early)
        while not self.go_on.is_set():
            if unwanted.wait(0.005):
                self.given_up.append(work.request.inputs)
                return NotFitted("the fit was superseded")
        return self.answer or FitOutcome(inputs=work.request.inputs, laws=None)


def unexpected(outcome: FitOutcome) -> None:
    """There are no laws to tell of."""
    pytest.fail(f"told of {outcome}")


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.go_on.set()
    made.fitter.close()


def test_a_fit_is_made_once_and_its_end_is_told(bench: Bench) -> None:
    bench.fitter.start("uid", "key", job())
    eventually(lambda: bench.fitter.running("uid"))
    bench.fitter.start("uid", "key", job())
    bench.go_on.set()
    eventually(lambda: bench.told)
    assert bench.began == ["first"]
    assert bench.told == [("key", True)]
    assert bench.fitter.running("uid") is None
    assert bench.fitter.outcome("uid") == FitOutcome(inputs="first", laws=None)
    bench.fitter.forget("uid")
    assert bench.fitter.outcome("uid") is None


def test_laws_are_known_before_their_report_is_drawn(bench: Bench) -> None:
    bench.early = FitOutcome(inputs="first", laws=None, laws_sha256="stored")
    bench.fitter.start("uid", "key", job())
    eventually(lambda: bench.laws == ["key"])
    assert bench.fitter.outcome("uid") == bench.early
    assert bench.fitter.running("uid") is not None, "its report is still to come"
    assert bench.told == [], "it has not ended"
    bench.answer = replace(bench.early, report_written=True)
    bench.go_on.set()
    eventually(lambda: bench.told)
    assert bench.fitter.outcome("uid") == bench.answer


@pytest.mark.parametrize(
    "end",
    [NotFitted("the store is down"), FitOutcome("first", None, error="a trajectory is gone")],
)
def test_laws_that_are_fitted_again_for_their_report_stand_whatever_becomes_of_that(
    bench: Bench, end: FitEnd
) -> None:
    known = FitOutcome(inputs="first", laws=fitted_laws(), laws_sha256="stored")
    bench.fitter.remember("uid", known)
    bench.answer = end
    bench.go_on.set()
    bench.fitter.start("uid", "key", job())
    eventually(lambda: bench.told)
    assert bench.fitter.outcome("uid") == known
    bench.fitter.start("uid", "key", job("second"))
    eventually(lambda: len(bench.told) == 2)
    assert bench.fitter.outcome("uid") != known, "those of other points do not"


def test_a_fit_that_raises_has_failed_and_is_not_taken_for_running(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> FitEnd:
        raise ValueError("as planned")

    bench.fitter._run = fail
    bench.fitter.start("uid", "key", job())
    eventually(lambda: bench.told == [("key", False)])
    assert bench.fitter.running("uid") is None
    outcome = bench.fitter.outcome("uid")
    assert outcome is not None
    assert "ValueError: as planned" in outcome.error
    assert "The fit of research/dense failed" in caplog.text


def test_a_newer_fit_ends_the_one_that_runs(bench: Bench) -> None:
    bench.begin()
    bench.fitter.start("uid", "key", job("second"))
    eventually(lambda: bench.began == ["first", "second"])
    bench.go_on.set()
    eventually(lambda: bench.told)
    assert bench.given_up == ["first"]
    assert bench.told == [("key", True)], "on_done is not called for the superseded fit"
    assert bench.fitter.outcome("uid") == FitOutcome(inputs="second", laws=None)


def test_a_fit_that_is_wanted_again_while_it_is_being_ended_is_made(bench: Bench) -> None:
    """Its sweep's points changed and changed back."""
    bench.begin()
    bench.fitter.start("uid", "key", job("second"))
    bench.fitter.start("uid", "key", job())
    bench.go_on.set()
    eventually(lambda: bench.told)
    assert bench.began == ["first", "first"]


def test_a_newer_fit_takes_the_place_of_one_that_waits(bench: Bench) -> None:
    bench.begin("other", "other")
    for inputs in ("old", "new"):
        bench.fitter.start("uid", "key", job(inputs))
        assert bench.fitter.running("uid") is None, "it only waits for its turn"
    bench.go_on.set()
    eventually(lambda: len(bench.told) == 2)
    assert bench.began == ["first", "new"]


def test_the_fit_of_a_resource_that_is_gone_ends_and_leaves_nothing(bench: Bench) -> None:
    bench.fitter.start("uid", "key", job())
    bench.fitter.start("waiting", "waiting", job("never"))
    eventually(lambda: bench.began)
    bench.fitter.forget("waiting")
    bench.fitter.forget("uid")
    eventually(lambda: bench.given_up == ["first"])
    eventually(lambda: bench.fitter.running("uid") is None)
    assert bench.fitter.outcome("uid") is None
    bench.go_on.set()
    bench.fitter.start("next", "next", job("next"))
    eventually(lambda: bench.told == [("next", True)])
    assert bench.began == ["first", "next"]


def page_without_laws(inputs: str) -> SweepPage:
    """The page of a sweep before its first fit."""
    return SweepPage(
        inputs=inputs,
        points=(),
        weights="averaged",
        ledger_sha256="d",
        laws_path=REQUEST.laws_path,
        report_path=REQUEST.report_path,
        laws=None,
    )


def test_a_page_that_could_not_be_drawn_is_known_until_it_is_asked_for_again(bench: Bench) -> None:
    bench.answer = NotFitted("its process was killed")
    bench.go_on.set()
    page = page_without_laws("page")
    bench.fitter.start("uid/page", "key", FitJob(page, "file:///nowhere", None, "research/dense"))
    eventually(lambda: bench.told == [("key", False)])
    bench.now += 3600
    outcome = bench.fitter.outcome("uid/page")
    assert outcome is not None
    assert (outcome.inputs, outcome.report_written) == ("page", False)


def test_a_fit_that_still_can_not_run_is_asked_for_ever_more_seldom(bench: Bench) -> None:
    bench.answer = NotFitted("the store is down", may_pass=True)
    bench.go_on.set()
    pauses = []
    for attempt in range(1, 9):
        bench.fitter.start("uid", "key", job())
        eventually(lambda n=attempt: len(bench.told) == n)  # type: ignore[misc]
        outcome = bench.fitter.outcome("uid")
        assert outcome is not None
        assert ("store is down" in outcome.error, outcome.may_pass) == (True, True)
        start = bench.now
        while bench.fitter.outcome("uid") is not None:
            bench.now += 20
        pauses.append(bench.now - start)
    assert pauses[:3] == [60, 120, 240]
    assert pauses[-1] == 3600
    bench.answer = None
    bench.fitter.start("uid", "key", job())
    eventually(lambda: len(bench.told) == 9)
    bench.answer = NotFitted("again")
    bench.fitter.start("uid", "key", job("second"))
    eventually(lambda: len(bench.told) == 10)
    bench.now += 61
    assert bench.fitter.outcome("uid") is None, "what could run once starts anew"


def provisional(inputs: str) -> FitJob:
    made = job(inputs)
    return replace(made, request=replace(made.request, provisional=True))


def test_after_a_provisional_fit_such_fits_rest_nine_times_as_long(bench: Bench) -> None:
    assert not bench.fitter.in_backoff("uid")
    bench.begin(work=provisional("first"))
    bench.now = 20
    bench.go_on.set()
    eventually(lambda: bench.told)
    bench.now = 199
    assert bench.fitter.in_backoff("uid")
    assert bench.fitter.in_backoff("other"), "many resources take no more than one"
    bench.now = 200
    assert not bench.fitter.in_backoff("uid")


def test_a_provisional_fit_that_waits_starts_after_the_rest_in_its_newest_form(
    bench: Bench,
) -> None:
    bench.begin(work=provisional("first"))
    for name in ("old", "new"):
        bench.fitter.start("other", "other", provisional(name))
    bench.now = 0.01
    bench.go_on.set()
    eventually(lambda: bench.told)
    assert not bench.fitter.in_backoff("other"), "what waits may be renewed"
    bench.fitter.start("other", "other", provisional("newest"))
    time.sleep(0.3)
    assert bench.began == ["first"]
    bench.now = 0.2
    eventually(lambda: len(bench.told) == 2)
    assert bench.began == ["first", "newest"]


def test_a_final_fit_waits_for_no_rest(bench: Bench) -> None:
    bench.begin(work=provisional("first"))
    bench.now = 1000
    bench.go_on.set()
    eventually(lambda: bench.told)
    bench.fitter.start("other", "other", provisional("others"))
    bench.fitter.start("uid", "key", job("final"))
    eventually(lambda: len(bench.told) == 2)
    assert bench.began == ["first", "final"]
    bench.fitter.start("other", "other", job("others final"))
    eventually(lambda: len(bench.told) == 3)
    assert bench.began == ["first", "final", "others final"], (
        "it takes the place of one that rests"
    )


def test_fits_of_one_namespace_do_not_hold_up_those_of_another(bench: Bench) -> None:
    """Fifty sweeps of one team, then one of another."""
    bench.begin("a-first", "a/first", job("a-first"))
    for number in range(50):
        bench.fitter.start(f"a{number}", f"a/{number}", job(f"a{number}"))
    for name in ("b", "c", "b2"):
        bench.fitter.start(name, f"{name[0]}/{name}", job(name))
    bench.go_on.set()
    eventually(lambda: len(bench.told) == 54)
    assert bench.began[:6] == ["a-first", "b", "c", "a0", "b2", "a1"]
    assert bench.began[6:] == [f"a{number}" for number in range(2, 50)]


def test_laws_come_before_pages_of_the_same_namespace(bench: Bench) -> None:
    """Of two hundred predictions on one sweep, six more points of which were done."""
    bench.begin("a-first", "a/first", job("a-first"))
    for number in range(200):
        page = FitJob(page_without_laws(f"page{number}"), "file:///nowhere", None, "a/x")
        bench.fitter.start(f"p{number}/page", f"a/p{number}", page)
    bench.fitter.start("laws", "a/laws", job("laws"))
    assert bench.fitter.waits("laws")
    assert not bench.fitter.waits("a-first")
    assert not bench.fitter.waits("nothing")
    bench.go_on.set()
    eventually(lambda: len(bench.began) >= 4)
    assert bench.began[1:4] == ["laws", "page0", "page1"]
    assert not bench.fitter.waits("laws")


def replaced(name: str, what: Any) -> None:
    """In the process of a fit, for as long as it lasts."""
    mock.patch.object(fit_process, name, side_effect=what).start()


def need_a_gibibyte() -> None:
    replaced("fit_laws", lambda *_, **__: bytearray(2**30))


def read_ten_thousand_runs() -> None:
    """Of 25 sizes, evaluated 24 times each, instead of those in the store."""
    sizes = tuple(5e7 * 1.25**i for i in range(25))
    grid = Grid(sizes, tuple(40 * n for n in sizes), 20, 20, math.log(32.0) / 20, 24)
    runs = synthetic_runs(Synthetic(), grid, np.random.default_rng(0), 0.004, 0.004)
    replaced("read_runs", lambda *_, **__: runs)


@pytest.mark.whole
def test_a_fit_of_ten_thousand_points_and_its_page_stay_below_the_default_limit(
    tmp_path: Path,
) -> None:
    told: list[FitOutcome] = []
    work = replace(job(), store_uri=tmp_path.as_uri())
    end = run_in_process(
        work, 1800, threading.Event(), told.append, on_start=read_ten_thousand_runs
    )
    assert isinstance(end, FitOutcome), end
    assert end.report_written
    assert end.laws is not None
    assert end.laws.data.runs == 10_000


def die() -> None:
    replaced("fit_laws", lambda *_, **__: os._exit(9))


def stumble() -> None:
    replaced("fit", KeyError("a bug"))


def stumble_at_once() -> None:
    raise KeyError("a bug")


def hang() -> None:
    replaced("fit_laws", lambda *_, **__: time.sleep(600))


@pytest.mark.parametrize("end", [need_a_gibibyte, die])
def test_a_fit_that_needs_too_much_memory_ends_alone_and_says_so(end: Callable[[], None]) -> None:
    """Libraries in C end the process in ways of their own."""
    answer = run_in_process(job(), 60, threading.Event(), unexpected, memory_mib=700, on_start=end)
    assert isinstance(answer, NotFitted)
    assert "700 MiB" in answer.message
    assert "fitMemoryMiB" in answer.message
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("end", [stumble, stumble_at_once])
def test_a_bug_in_the_process_of_a_fit_is_not_told_as_want_of_memory(
    end: Callable[[], None],
) -> None:
    answer = run_in_process(job(), 60, threading.Event(), unexpected, on_start=end)
    assert answer == NotFitted("KeyError: 'a bug'")


def test_the_process_of_a_fit_fails_at_its_limit_and_dies_before_the_operator_does() -> None:
    program = (
        "from pathlib import Path\n"
        "from isoloss_operator.fitting.fitter import _limit_memory\n"
        "_limit_memory(300)\n"
        "assert Path('/proc/self/oom_score_adj').read_text().strip() == '1000'\n"
        "held = bytearray(100 * 2**20)\n"
        "try:\n    bytearray(300 * 2**20)\n"
        "except MemoryError:\n    print('refused')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ended.stdout == "refused\n"


def test_a_fit_whose_process_cannot_be_started_says_so() -> None:
    """What it is forked from was killed meanwhile, say for its memory."""
    context = "multiprocessing.context.ForkServerProcess.start"
    with mock.patch(context, side_effect=EOFError("unexpected EOF")):
        answer = run_in_process(job(), 60, threading.Event(), unexpected)
    assert isinstance(answer, NotFitted)
    assert "did not start: EOFError: unexpected EOF" in answer.message


def test_a_fit_that_takes_too_long_is_given_up() -> None:
    answer = run_in_process(job(), 0.01, threading.Event(), unexpected, on_start=hang)
    assert isinstance(answer, NotFitted)
    assert "not done" in answer.message
    assert not multiprocessing.active_children()


def test_the_process_of_an_unwanted_fit_ends() -> None:
    unwanted = threading.Event()
    answers: list[FitEnd] = []
    thread = threading.Thread(
        target=lambda: answers.append(
            run_in_process(job(), 600, unwanted, unexpected, on_start=hang)
        ),
        daemon=True,
    )
    thread.start()
    eventually(lambda: multiprocessing.active_children())
    unwanted.set()
    thread.join(20)
    assert len(answers) == 1
    assert not multiprocessing.active_children()


def after_laws(act: Callable[[], object]) -> None:
    def fit(_job: FitJob, on_laws: OnLaws) -> None:
        on_laws(FitOutcome(inputs="first", laws=None))
        act()

    replaced("fit", fit)


def hang_after_laws() -> None:
    after_laws(lambda: time.sleep(600))


def die_after_laws() -> None:
    after_laws(lambda: os._exit(9))


def test_laws_whose_report_is_superseded_stand_and_are_nothing_to_warn_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    superseded = threading.Event()

    def supersede(_outcome: FitOutcome) -> None:
        superseded.set()

    answer = run_in_process(job(), 60, superseded, supersede, on_start=hang_after_laws)
    assert isinstance(answer, FitOutcome)
    assert not caplog.records


def test_laws_whose_report_cannot_be_drawn_stand_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[FitOutcome] = []
    answer = run_in_process(job(), 60, threading.Event(), told.append, on_start=die_after_laws)
    assert [answer] == told
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "The laws of research/dense have no report" in warning
    assert "exit code 9" in warning


def test_what_fits_are_forked_from_can_be_started_ahead_of_the_first() -> None:
    program = (
        "import os\n"
        "from pathlib import Path\n"
        "from isoloss_operator.fitting.fitter import start_ahead\n"
        "children = Path(f'/proc/self/task/{os.getpid()}/children')\n"
        "def commands():\n"
        "    return [Path(f'/proc/{c}/cmdline').read_text() for c in children.read_text().split()]\n"
        "assert not any('forkserver' in each for each in commands())\n"
        "start_ahead()\n"
        "assert any('forkserver' in each for each in commands())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_fits_are_forked_with_exists_and_starts_no_thread() -> None:
    """The process that they are forked from skips what it cannot import, and must have one thread."""
    program = (
        "import importlib, threading\n"
        f"for name in {PRELOADED!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert threading.active_count() == 1, (name, threading.enumerate())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_operator_itself_loads_nothing_that_only_a_fit_needs() -> None:
    """A hundred megabytes, and seconds at every start."""
    program = (
        "import sys, isoloss_operator.fitting.fitter\n"
        "assert 'isoloss_operator.fitting.fit_process' not in sys.modules\n"
        "assert not {'scipy.optimize', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_page_on_the_way_shows_how_far_it_is_and_leaves_no_laws(tmp_path: Path) -> None:
    """Also before there is a law or a finished point."""
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "Training",
        "message": "1 of 1 points trains.",
        "observedGeneration": 1,
    }
    status = {"conditions": [condition], "points": {"total": 4, "succeeded": 1, "active": 1}}
    resource = {"metadata": {"generation": 1}, "status": status}
    request = replace(page_without_laws("first"), resource=resource)
    uri = f"file://{tmp_path}"
    end = fit_process.fit(FitJob(request, uri, None, "research/dense"))
    assert end == FitOutcome(inputs="first", laws=None, report_written=True)
    assert fit_result(end) == "drawn"
    shown = Store(uri).read(REQUEST.report_path).decode()
    assert "Points 1/4, 1 active" in shown
    assert "Training: 1 of 1 points trains." in shown
    assert not Store(uri).exists(REQUEST.laws_path)


def test_the_page_of_an_answer_shows_it_and_says_first_what_it_shows(tmp_path: Path) -> None:
    """So that the next process of the operator need not draw it again."""
    laws = fitted_laws()
    answer = predict(laws, PredictionQuery(initial_loss=3.2, cpt_flops=1e19))
    assert isinstance(answer, Prediction)
    resource = {"kind": "HyperparamPrediction", "status": {}}
    path, inputs = "predictions/x-1/report.html", "0123abcd" * 4
    request = AnswerPage(
        inputs=inputs,
        ledger_sha256="d",
        laws_path=REQUEST.laws_path,
        report_path=path,
        laws=laws,
        prediction=answer,
        initial_loss=3.2,
        parameters=1e9,
        resource=resource,
    )
    uri = f"file://{tmp_path}"
    with draw_empty_figures:
        end = fit_process.fit(FitJob(request, uri, None, "HyperparamPrediction research/target"))
    assert fit_result(end) == "drawn"
    page = Store(uri).read(path).decode()
    assert learning_rate(answer.learning_rate.value) in page
    assert "HyperparamPrediction research/target" in page
    assert Storage().page_shows(uri, path) == inputs
    assert Storage().page_shows(uri, "predictions/x-1/none.html") == ""
