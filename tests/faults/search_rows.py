"""A sequential search: each of its decisions killed, its step disturbed, its plan changed while it runs."""

import itertools
import os
import re
import signal
from contextlib import suppress
from typing import Any

from tests.faults.cluster_rows import delete_jobs, running_jobs
from tests.faults.fixture import SEARCHED, Failed, FaultFixture
from tests.faults.injection import From, of_key
from tests.faults.kills import lives
from tests.faults.process_rows import BOTH_LEADING, two_writing, version_plays
from tests.faults.rows import Play, Row, row_beside
from tests.faults.servers import descendants
from tests.faults.store_rows import FAULTS, failing_from
from tests.faults.verdict import Expectation
from tests.support.operator_process import conditions
from tests.support.proxy import Call

TRAIN_SECONDS = 2.0
FIRST_ROUND = len(SEARCHED["grid"]["batchSizes"]) * len(SEARCHED["grid"]["learningRates"])
RESUMING = FIRST_ROUND + 1
"""Runs after which points of the first round are continued: those of the grid, and the first added point."""
RETRIED_SECONDS = 240
"""A fit that could not run is tried again after a minute."""
EXHAUSTIVE_SECONDS = 6.0
WITHOUT_INTENTS = ("ledger-garbage",)
DECISIONS = re.compile(rb'"decisions": \[\s*\{')


def search_rows() -> list[Row]:
    """All rows about a search but the kills after the n-th write."""
    plays: dict[str, tuple[str, Play]] = {
        "every-decision": (
            "SIGKILL after the record of each step, and after the ledger that follows it",
            every_decision,
        ),
        "fit-dies": ("the process that decides a step dies", _fit_dies),
        "job-deleted": (
            "running Jobs of points that were paused and resumed are deleted by hand, twice",
            _resumed_jobs_deleted,
        ),
        "suspended": (
            "the sweep is suspended while resumed points train, and resumed",
            _suspended,
        ),
        "to-exhaustive-and-back": (
            "the strategy is changed to Exhaustive and back, and to Exhaustive once the search is over",
            _to_exhaustive_and_back,
        ),
        "budget-lowered": (
            "the budget is lowered below what is spent, and taken away later",
            _budget_lowered,
        ),
    }
    plays |= {
        f"{name}-store": (
            f"the store: {words}, from the second step on",
            failing_from(name, lambda: From(_decides, 2)),
        )
        for name, (words, _) in FAULTS.items()
    }
    plays |= {
        name: (words, _redecided(play) if name in WITHOUT_INTENTS else play)
        for name, (words, play) in version_plays(trained=RESUMING).items()
        if name.startswith("ledger-")
    }
    rows = [_row(name, words, play) for name, (words, play) in plays.items()]
    both = "two operators, both leading, decide and write at the same time"
    return [*rows, _row("two-writing", both, two_writing, environment=BOTH_LEADING)]


def _row(name: str, words: str, play: Play, **more: Any) -> Row:
    return row_beside("searches", f"search/{name}", words, play, **more)


def _decides(call: Call) -> bool:
    """Whether a call to the store writes the record of a step that has decisions."""
    return of_key("/fit.json", "PUT")(call) and DECISIONS.search(call.body) is not None


def every_decision(fixture: FaultFixture) -> Expectation:
    """Kill the operator after each step's record, and its successor after the ledger that follows the step."""
    marks = itertools.cycle((_decides, of_key("/ledger.jsonl.gz", "PUT")))
    count = lives(fixture, lambda writes: writes.stop_at(fixture.namespace, next(marks)))
    fixture.notes.append(f"{count - 1} kills")
    return Expectation()


# ---------------------------------------------------------------------------------- a step


def _fit_dies(fixture: FaultFixture) -> Expectation:
    fixture.operator.fresh = True  # else its fits are forked from a process of all operators
    fixture.start()

    def has_died() -> bool:
        process = fixture.operator.process
        if process is not None and _reason(fixture) == "Searching":
            for pid in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return _reason(fixture) == "FitFailed"

    fixture.wait(has_died, "the condition to say that its process died")
    fixture.finish(RETRIED_SECONDS)
    return Expectation(speaks=True, compares=False)


def _reason(fixture: FaultFixture) -> str:
    return str(conditions(fixture.sweep()).get("Ready", {}).get("reason", ""))


# -------------------------------------------------------------------------- while points train


def _runs_ended(fixture: FaultFixture) -> int:
    return int(fixture.trainings.counted("end").total())


def _wait_resumed(fixture: FaultFixture) -> None:
    """Until points train that were paused before."""
    fixture.wait(
        lambda: _runs_ended(fixture) >= RESUMING and running_jobs(fixture),
        "resumed points to train",
    )


def _resumed_jobs_deleted(fixture: FaultFixture) -> Expectation:
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    for _ in range(2):
        _wait_resumed(fixture)
        delete_jobs("Background")(fixture)
        fixture.rest(TRAIN_SECONDS)
    fixture.finish(180)
    return Expectation(charged=0)


def _suspended(fixture: FaultFixture) -> Expectation:
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    _wait_resumed(fixture)
    fixture.apply(suspend=True)
    fixture.wait(lambda: _reason(fixture) == "Suspended", "the sweep to be suspended")
    fixture.rest(TRAIN_SECONDS)
    fixture.apply()
    fixture.finish(180)
    return Expectation(charged=0)


def _to_exhaustive_and_back(fixture: FaultFixture) -> Expectation:
    """How far the points are when the strategy changes back is chance, and so is what the search then needs."""
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    _wait_resumed(fixture)
    fixture.apply(search={"strategy": "Exhaustive"})
    fixture.rest(EXHAUSTIVE_SECONDS)
    fixture.apply()
    fixture.finish(180)
    if not fixture.sweep()["status"]["search"].get("ended"):
        raise Failed("the search does not say why it is over")
    fixture.apply(search={"strategy": "Exhaustive"})
    fixture.finish(180)
    short = [r.name for r in fixture.ledger_points().values() if r.trained_for < r.wanted_tokens]
    if short:
        raise Failed(f"Exhaustive left {', '.join(short)} short of their tokens")
    return Expectation(compares=False)


def _budget_lowered(fixture: FaultFixture) -> Expectation:
    """Points that go on say that the budget was raised, instead of why the search wanted them."""
    fixture.seconds = TRAIN_SECONDS
    fixture.start()
    _wait_resumed(fixture)
    spent = float(fixture.sweep()["status"]["spentFlops"])
    fixture.apply(budget={"flops": f"{round(0.5 * spent / 1e9)}e9"})
    fixture.wait(lambda: _is_out_of_budget(fixture), "the budget to end the search")
    before = _runs_ended(fixture)
    fixture.rest(2 * TRAIN_SECONDS)
    if _runs_ended(fixture) > before:
        raise Failed("points were trained after the budget was spent")
    fixture.apply()
    fixture.finish(180)
    found = fixture.sweep()["status"]["search"]
    counted = {name: found.get(name) for name in ("added", "ended")}
    if counted != {"added": 4, "ended": "NotWorthItsCost"}:
        raise Failed(f"the search came to another end: {counted}")
    return Expectation(speaks=True, compares=False)


def _is_out_of_budget(fixture: FaultFixture) -> bool:
    """Whether running points were stopped for it, or, where all had just ended, no step was left to pay for."""
    sweep = fixture.sweep()
    progress = conditions(sweep).get("Progressing", {}).get("reason")
    return "BudgetExhausted" in (progress, sweep["status"].get("search", {}).get("ended"))


# ------------------------------------------------------------------------------------ versions


def _redecided(play: Play) -> Play:
    def played(fixture: FaultFixture) -> Expectation:
        expected = play(fixture) or Expectation()
        expected.compares = False  # it decides again, by all that was trained since
        return expected

    return played
