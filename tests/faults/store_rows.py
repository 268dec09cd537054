"""The store answers wrongly, late or not at all, or loses what it was given."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import injection
from tests.faults.injection import Act, Fault, Matches, of_key
from tests.faults.rows import Play, Row
from tests.faults.scene import POINTS, Failed, Scene
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
            lambda scene: _away(scene, outage_seconds),
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

    def play(scene: Scene) -> Expectation:
        fault = scene.inject_store(Fault(begins(), act))
        scene.start()
        scene.wait(lambda: fault.hits, "the first call to be hit")
        scene.rest(WHILE_SECONDS)
        fault.active = False
        scene.finish(180)
        scene.notes.append(f"{fault.hits} calls hit")
        return Expectation(speaks=speaks and name not in ("slow", "404"))

    return play


def _truncated(target: Target) -> Play:
    def play(scene: Scene) -> None:
        matches = target.matches()
        fault = scene.inject_store(
            Fault(
                lambda call: call.method == "GET" and matches(call),
                injection.truncated(scene.server.store),
                every=2,
            )
        )
        scene.start()
        scene.wait(lambda: fault.hits, "the first answer to break off")
        scene.rest(WHILE_SECONDS)
        fault.active = False
        scene.finish(180)
        scene.notes.append(f"{fault.hits} answers broke off")

    return play


def _one_result(act: Act) -> Play:
    def play(scene: Scene) -> Expectation:
        fault = scene.inject_store(Fault(FirstKey("/result.json"), act))
        scene.start()

        def others_are_recorded() -> bool:
            points = scene.sweep().get("status", {}).get("points", {})
            return int(points.get("succeeded", 0)) >= POINTS - 1

        try:
            scene.wait(others_are_recorded, "all results but one to be recorded", 90)
        finally:
            fault.active = False
        scene.finish(120)
        return Expectation(charged=None, retrained=0)

    return play


def _writes(what: str, part: str) -> Row:
    def play(scene: Scene) -> Expectation:
        refused = injection.store_status(500, "InternalError")
        fault = scene.inject_store(Fault(of_key(part, "PUT", "POST"), refused))
        scene.start()
        scene.wait(lambda: fault.hits, "the first write to be hit", 120)
        scene.rest(UNWRITABLE_SECONDS)
        fault.active = False
        scene.finish(180)
        return Expectation(speaks=what == "ledger")

    words = f"the {what} can be read but not written"
    return Row(f"store/unwritable/{what}", words, play)


def _half_written(part: str) -> Play:
    def play(scene: Scene) -> None:
        act = injection.half_written(scene.stage.bucket)
        fault = scene.inject_store(Fault(of_key(part, "PUT"), act, times=1))
        scene.start()
        scene.wait(lambda: fault.hits, "the first write", 120)
        scene.finish(180)

    return play


def _unanswered(part: str) -> Play:
    def play(scene: Scene) -> None:
        act = injection.unanswered(scene.server.store)
        fault = scene.inject_store(Fault(of_key(part, "PUT"), act, every=2))
        scene.start()
        scene.finish(180)
        scene.notes.append(f"{fault.hits} writes hit")

    return play


def _away(scene: Scene, seconds: float) -> Expectation:
    scene.seconds = 1.0
    scene.start()
    scene.wait_trained(6)
    scene.server.store.stop()
    scene.rest(seconds)
    scene.server.store.start()
    scene.finish(300)
    return Expectation(speaks=True)


# ---------------------------------------------------------------------------- gone for good


def _remove_later(what: Callable[[Scene], list[Path]], retrained: Callable[[int], int]) -> Play:
    """Remove files in the middle of a sweep, while the operator runs."""

    def play(scene: Scene) -> Expectation:
        scene.seconds = 1.0
        scene.start()
        scene.wait(lambda: _recorded(scene) >= 6, "six points to be recorded")
        removed = what(scene)
        if not removed:
            raise Failed("nothing was there to remove")
        for path in removed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        scene.finish(180)
        return Expectation(retrained=retrained(len(removed)), charged=None)

    return play


def _recorded(scene: Scene) -> int:
    return int(scene.sweep().get("status", {}).get("points", {}).get("succeeded", 0))


def _remove_at_the_end(pattern: str) -> Play:
    """Remove a finished sweep's files; the passes that any change brings must make them again."""

    def play(scene: Scene) -> Expectation:
        scene.start()
        scene.finish()
        removed = [*scene.sweep_folder().glob(pattern)]
        for path in removed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

        def are_back() -> bool:
            scene.touch()  # the store is compared with what the operator knows once in RESYNC_SECONDS
            scene.rest(1)
            return all(path.exists() for path in removed)

        scene.wait(are_back, "the files to be there again", 120)
        scene.finish()
        return Expectation()

    return play


def _results(scene: Scene) -> list[Path]:
    return sorted(scene.folder.glob("points/*/result.json"))[:1]


def _trajectories(scene: Scene) -> list[Path]:
    point = min(scene.folder.glob("points/*/result.json")).parent
    return sorted(point.glob("trajector*"))


def _everything(scene: Scene) -> list[Path]:
    return [scene.folder]


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
        _remove_later(lambda scene: list(scene.folder.glob("data/*/manifest.json")), lambda _: 0),
    ),
    "ledger-midway": (
        "the ledger is removed in the middle of a sweep",
        _remove_later(lambda scene: list(scene.sweep_folder().glob("ledger*")), lambda _: 0),
    ),
    "everything": (
        "all that the sweep has stored is removed in its middle: all may be trained again",
        _remove_later(_everything, lambda _: POINTS),
    ),
    "ledger": ("a finished sweep's ledger is removed", _remove_at_the_end("ledger*")),
    "laws": ("a finished sweep's laws are removed", _remove_at_the_end("laws.json")),
    "fit": ("the record of a finished sweep's fit is removed", _remove_at_the_end("fit.json")),
}
