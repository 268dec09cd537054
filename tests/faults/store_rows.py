"""The store answers wrongly, late or not at all, or loses what it was given."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import injection
from tests.faults.fixture import POINTS, Failed, FaultFixture
from tests.faults.injection import Act, Fault, Matches, of_key
from tests.faults.rows import Play, Row
from tests.faults.verdict import Expectation
from tests.support.proxy import Call

WHILE_SECONDS = 15.0
UNWRITABLE_SECONDS = 45.0
"""A write is tried several times in a pass, and the next pass says that it failed."""
SLOW_SECONDS = 2.0


@dataclass
class FirstKey:
    """Calls about the first object seen whose key contains a part: one of many."""

    part: str
    found: list[str] = field(default_factory=list)

    def __call__(self, call: Call) -> bool:
        if self.part not in call.path or not call.path.startswith("/"):
            return False
        if not self.found:
            self.found.append(call.path)
        return call.path == self.found[0]


@dataclass(frozen=True)
class Target:
    """Objects whose calls fail."""

    name: str
    words: str
    matches: Callable[[], Matches]
    speaks: bool
    """Whether a fault of some seconds must be seen by a person."""


TARGETS = (
    Target("ledger", "the ledger", lambda: of_key("/ledger"), True),
    Target("results", "all results", lambda: of_key("/result.json"), True),
    Target("trajectories", "all trajectories", lambda: of_key("/trajector"), False),
    Target("laws", "laws and fit", lambda: _laws, False),
    Target("manifest", "the corpus' manifest", lambda: of_key("/manifest.json"), True),
    Target("all", "everything", lambda: of_key("/"), True),
)
FAULTS: dict[str, tuple[str, Act]] = {
    "503": ("503 SlowDown", injection.store_status(503, "SlowDown")),
    "500": ("500 InternalError", injection.store_status(500, "InternalError")),
    "403": ("403 AccessDenied", injection.store_status(403, "AccessDenied")),
    "404": ("404, as if it were gone", injection.store_status(404, "NoSuchKey")),
    "reset": ("a reset connection", injection.reset),
    "slow": (f"its answer after {SLOW_SECONDS:.0f} s", injection.slow(SLOW_SECONDS)),
}


def _laws(call: Call) -> bool:
    return call.path.endswith(("/laws.json", "/fit.json"))


def store_rows(outage_seconds: float) -> list[Row]:
    """All rows about the store."""
    rows = [
        Row(
            f"store/{target.name}/{name}",
            f"{target.words}: {words}",
            failing_from(name, target.matches, speaks=target.speaks),
        )
        for target in TARGETS
        for name, (words, _) in FAULTS.items()
    ]
    rows += [
        Row(
            f"store/{target.name}/truncated",
            f"{target.words}: every second answer breaks off",
            _truncated(target),
        )
        for target in TARGETS
    ]
    rows += [
        Row(
            f"store/one-result/{name}",
            f"one result: {words}; all others are recorded meanwhile",
            _one_result(act),
        )
        for name, (words, act) in FAULTS.items()
        if name != "slow"
    ]
    rows += [_writes(what, part) for what, part in WRITTEN.items()]
    rows += [
        Row(
            f"store/half-written/{what}",
            f"half of the first {what} reaches the disk, and there is no answer",
            _half_written(part),
        )
        for what, part in WRITTEN.items()
    ]
    rows += [
        Row(
            f"store/unanswered/{what}",
            f"every second write of the {what} is executed, its answer lost",
            _unanswered(part),
        )
        for what, part in WRITTEN.items()
    ]
    rows.append(
        Row(
            "store/away",
            f"the store is away for {outage_seconds:.0f} s in the middle of a sweep",
            lambda fixture: _away(fixture, outage_seconds),
        )
    )
    return rows + [Row(f"store/gone/{name}", words, play) for name, (words, play) in GONE.items()]


WRITTEN = {
    "ledger": "/ledger.jsonl.gz",
    "laws": "/laws.json",
    "fit": "/fit.json",
    "report": "/report.html",
}


def failing_from(name: str, begins: Callable[[], Matches], *, speaks: bool = True) -> Play:
    """One of FAULTS hits every call that `begins` matches, for a while from the first on.

    `speaks`: whether a person must see a fault of that length, if the store says that anything is wrong.
    """
    _, act = FAULTS[name]

    def play(fixture: FaultFixture) -> Expectation:
        fault = fixture.inject_store(Fault(begins(), act))
        fixture.start()
        fixture.wait(lambda: fault.hits, "the first call to be hit")
        fixture.rest(WHILE_SECONDS)
        fault.active = False
        fixture.finish(180)
        fixture.notes.append(f"{fault.hits} calls hit")
        return Expectation(speaks=speaks and name not in ("slow", "404"))

    return play


def _truncated(target: Target) -> Play:
    def play(fixture: FaultFixture) -> None:
        matches = target.matches()
        fault = fixture.inject_store(
            Fault(
                lambda call: call.method == "GET" and matches(call),
                injection.truncated(fixture.server.store),
                every=2,
            )
        )
        fixture.start()
        fixture.wait(lambda: fault.hits, "the first answer to break off")
        fixture.rest(WHILE_SECONDS)
        fault.active = False
        fixture.finish(180)
        fixture.notes.append(f"{fault.hits} answers broke off")

    return play


def _one_result(act: Act) -> Play:
    def play(fixture: FaultFixture) -> Expectation:
        fault = fixture.inject_store(Fault(FirstKey("/result.json"), act))
        fixture.start()

        def others_are_recorded() -> bool:
            points = fixture.sweep().get("status", {}).get("points", {})
            return int(points.get("succeeded", 0)) >= POINTS - 1

        try:
            fixture.wait(others_are_recorded, "all results but one to be recorded", 90)
        finally:
            fault.active = False
        fixture.finish(120)
        return Expectation(charged=None, retrained=0)

    return play


def _writes(what: str, part: str) -> Row:
    def play(fixture: FaultFixture) -> Expectation:
        refused = injection.store_status(500, "InternalError")
        fault = fixture.inject_store(Fault(of_key(part, "PUT", "POST"), refused))
        fixture.start()
        fixture.wait(lambda: fault.hits, "the first write to be hit", 120)
        fixture.rest(UNWRITABLE_SECONDS)
        fault.active = False
        fixture.finish(180)
        return Expectation(speaks=what == "ledger")

    words = f"the {what} can be read but not written"
    return Row(f"store/unwritable/{what}", words, play)


def _half_written(part: str) -> Play:
    def play(fixture: FaultFixture) -> None:
        act = injection.half_written(fixture.harness.bucket)
        fault = fixture.inject_store(Fault(of_key(part, "PUT"), act, times=1))
        fixture.start()
        fixture.wait(lambda: fault.hits, "the first write", 120)
        fixture.finish(180)

    return play


def _unanswered(part: str) -> Play:
    def play(fixture: FaultFixture) -> None:
        act = injection.unanswered(fixture.server.store)
        fault = fixture.inject_store(Fault(of_key(part, "PUT"), act, every=2))
        fixture.start()
        fixture.finish(180)
        fixture.notes.append(f"{fault.hits} writes hit")

    return play


def _away(fixture: FaultFixture, seconds: float) -> Expectation:
    fixture.seconds = 1.0
    fixture.start()
    fixture.wait_trained(6)
    fixture.server.store.stop()
    fixture.rest(seconds)
    fixture.server.store.start()
    fixture.finish(300)
    return Expectation(speaks=True)


# ---------------------------------------------------------------------------- gone for good


def _remove_later(
    what: Callable[[FaultFixture], list[Path]], retrained: Callable[[int], int]
) -> Play:
    """Remove files in the middle of a sweep, while the operator runs."""

    def play(fixture: FaultFixture) -> Expectation:
        fixture.seconds = 1.0
        fixture.start()
        fixture.wait(lambda: _recorded(fixture) >= 6, "six points to be recorded")
        removed = what(fixture)
        if not removed:
            raise Failed("nothing was there to remove")
        for path in removed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        fixture.finish(180)
        return Expectation(retrained=retrained(len(removed)), charged=None)

    return play


def _recorded(fixture: FaultFixture) -> int:
    return int(fixture.sweep().get("status", {}).get("points", {}).get("succeeded", 0))


def _remove_at_the_end(pattern: str) -> Play:
    """Remove a finished sweep's files; the passes that any change brings must make them again."""

    def play(fixture: FaultFixture) -> Expectation:
        fixture.start()
        fixture.finish()
        removed = [*fixture.sweep_folder().glob(pattern)]
        for path in removed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

        def are_back() -> bool:
            fixture.touch()  # the store is compared with what the operator knows once in RESYNC_SECONDS
            fixture.rest(1)
            return all(path.exists() for path in removed)

        fixture.wait(are_back, "the files to be there again", 120)
        fixture.finish()
        return Expectation()

    return play


def _results(fixture: FaultFixture) -> list[Path]:
    return sorted(fixture.folder.glob("points/*/result.json"))[:1]


def _trajectories(fixture: FaultFixture) -> list[Path]:
    point = min(fixture.folder.glob("points/*/result.json")).parent
    return sorted(point.glob("trajector*"))


def _everything(fixture: FaultFixture) -> list[Path]:
    return [fixture.folder]


GONE: dict[str, tuple[str, Play]] = {
    "result": (
        "a recorded result is removed: that point may be trained again, and no other",
        _remove_later(_results, lambda count: count),
    ),
    "trajectory": (
        "a recorded trajectory is removed: that point may be trained again, and no other",
        _remove_later(_trajectories, lambda _: 1),
    ),
    "manifest": (
        "the corpus' manifest is removed: it is prepared again, and no point trained again",
        _remove_later(
            lambda fixture: list(fixture.folder.glob("data/*/manifest.json")), lambda _: 0
        ),
    ),
    "ledger-midway": (
        "the ledger is removed in the middle of a sweep",
        _remove_later(lambda fixture: list(fixture.sweep_folder().glob("ledger*")), lambda _: 0),
    ),
    "everything": (
        "all that the sweep has stored is removed in its middle: all may be trained again",
        _remove_later(_everything, lambda _: POINTS),
    ),
    "ledger": ("a finished sweep's ledger is removed", _remove_at_the_end("ledger*")),
    "laws": ("a finished sweep's laws are removed", _remove_at_the_end("laws.json")),
    "fit": ("the record of a finished sweep's fit is removed", _remove_at_the_end("fit.json")),
}
