"""Two operators, wrong clocks, other versions' files, and a disk that fills up."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.injection import replace_object
from tests.faults.rows import Play, Row
from tests.faults.scene import Failed, Scene
from tests.faults.servers import kill_all, new_operator
from tests.faults.verdict import Expectation
from tests.support.ledgers import with_head
from tests.support.operator_process import env_template
from tests.support.proxy import wait_for

Json = dict[str, Any]
HOURS = 3
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
NO_FAKETIME = "" if FAKETIME.exists() else f"{FAKETIME} is not there: apt install faketime"
NO_ROOT = "" if os.geteuid() == 0 else "mounting a small file system needs root"
DISK = "1m"
FULL_SECONDS = 15.0
BOTH_LEADING = {"ISOLOSS_IDENTITY": "both"}
"""Under one name, each takes the Lease for its own."""
FROZEN_LEASE = {
    "ISOLOSS_LEASE_SECONDS": "12",
    "ISOLOSS_RENEW_DEADLINE_SECONDS": "8",
    "ISOLOSS_RENEW_PERIOD_SECONDS": "2",
}


def process_rows() -> list[Row]:
    """All rows about the operator's own process and what it finds on its disk."""
    return [
        Row(
            "two/writing",
            "two operators, both leading, write at the same time",
            two_writing,
            environment=BOTH_LEADING,
        ),
        Row(
            "two/frozen",
            "a leader is stopped (SIGSTOP) until another leads, and then goes on",
            _frozen,
            environment=FROZEN_LEASE,
        ),
        *(
            Row(
                f"clock/{name}",
                f"the operator's clock is {sign}{HOURS} h wrong, then right, then wrong again",
                _clock(sign),
                skip=NO_FAKETIME,
            )
            for name, sign in (("ahead", "+"), ("behind", "-"))
        ),
        *(Row(f"version/{name}", words, play) for name, (words, play) in version_plays().items()),
        Row("disk/full", "the disk of a file store is full for a while", _disk_full, skip=NO_ROOT),
    ]


# ------------------------------------------------------------------------------ two operators


def _second(scene: Scene, **environment: str) -> Any:
    folder = scene.stage.directory / "operators" / f"{scene.namespace}-second"
    operator = new_operator(
        scene.stage, scene.server, [scene.namespace], folder, environment or None
    )
    scene.more.append(lambda: kill_all(operator) if operator.is_running() else None)
    return operator


def two_writing(scene: Scene) -> Expectation:
    """A second operator leads as well."""
    scene.seconds = 0.5
    _second(scene, **BOTH_LEADING).start()
    scene.start()
    scene.finish(180)
    return Expectation()


def _frozen(scene: Scene) -> Expectation:
    scene.seconds = 1.0
    second = _second(scene, **FROZEN_LEASE)
    scene.start()
    scene.wait_trained(4)
    second.start()
    assert scene.operator.process is not None
    for _ in range(2):
        scene.operator.process.send_signal(19)
        scene.rest(16)
        scene.operator.process.send_signal(18)
        scene.rest(3)
    scene.finish(180)
    return Expectation()


# -------------------------------------------------------------------------------------- clocks


def _clock(sign: str) -> Play:
    def play(scene: Scene) -> Expectation:
        scene.seconds = 1.0
        right = dict(scene.operator.environment)
        wrong = {
            **right,
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME": f"{sign}{HOURS}h",
            # Monotonic time stays as it is: only the wall clock of a machine is ever wrong.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        # S3 servers refuse requests signed in another hour: that is the store's own defence.
        scene.use_folder(scene.stage.directory / "stores" / scene.namespace)
        scene.operator.environment = wrong
        # One attempt fails and waits for its retry while the clocks change.
        failure = {"exit": 1, "kind": "train", "batch_size": 4, "attempts": [1]}
        scene.spec["failurePolicy"] = {"retriesPerPoint": 3, "maxFailedPoints": 0}
        template = {"PLANTED_SECONDS": "1", "PLANTED_FAILURES": json.dumps([failure])}
        scene.spec["podTemplate"] = env_template(**template)
        scene.start()
        for done, environment in ((3, right), (7, wrong)):
            scene.wait_trained(done, 120)
            kill_all(scene.operator)
            scene.operator.environment = environment
            scene.operator.start()
        scene.finish(180)
        return Expectation(charged=10)

    return play


# ------------------------------------------------------------------------------------ versions


def while_down(change: Callable[[Scene], None], trained: int) -> Play:
    """Kill the operator once so many points were trained, change files, and start it again."""

    def play(scene: Scene) -> Expectation:
        scene.seconds = 1.0
        scene.start()
        scene.wait_trained(trained)
        change_while_down(scene, change)
        return Expectation()

    return play


def change_while_down(scene: Scene, change: Callable[[Scene], None]) -> None:
    """Kill the operator, change files once no pod runs, start it again and let it finish."""
    kill_all(scene.operator)
    if not wait_for(lambda: _is_quiet(scene), 60):
        raise Failed("pods did not end while the operator was down")
    change(scene)
    scene.operator.start()
    scene.finish(120)


def _is_quiet(scene: Scene) -> bool:
    return all(pod.status.phase in ("Succeeded", "Failed") for pod in scene.user.pods())


def _edit(paths: list[Path], change: Callable[[Json], Json]) -> None:
    if not paths:
        raise Failed("no file of that kind is there")
    for path in paths:
        replace_object(path, json.dumps(change(json.loads(path.read_text()))).encode())


def _results(scene: Scene) -> list[Path]:
    return sorted(scene.folder.glob("points/*/result.json"))


def _newer_results(scene: Scene) -> None:
    _edit(_results(scene), lambda result: {**result, "energy_joules": 12.5})


def _older_results(scene: Scene) -> None:
    dropped = ("versions", "message")
    _edit(_results(scene), lambda result: {k: v for k, v in result.items() if k not in dropped})


def _later_ledger(scene: Scene, trained: int) -> Expectation:
    """An operator that was rolled back must leave the ledger alone and say why it waits."""
    scene.seconds = 1.0
    scene.start()
    scene.wait_trained(trained)
    kill_all(scene.operator)
    wait_for(lambda: _is_quiet(scene), 60)
    path = scene.ledger_file()
    before = path.read_bytes()
    newer = with_head(before, ledger_version=99)
    replace_object(path, newer)
    scene.operator.start()
    scene.wait(lambda: scene.stage.journal.said(scene.namespace), "a condition to say so")
    scene.rest(5)
    kept = path.exists() and path.read_bytes() == newer
    replace_object(path, before)
    scene.touch()
    scene.finish(120)
    if not kept:
        raise Failed("a ledger of a later version was written over")
    return Expectation(speaks=True)


def _other_laws(change: Callable[[Json], Json]) -> Play:
    def play(scene: Scene) -> Expectation:
        scene.start()
        scene.finish()
        kill_all(scene.operator)
        _edit([scene.sweep_folder() / "laws.json"], change)
        scene.operator.start()
        scene.touch()
        scene.rest(16)
        scene.finish(60)
        return Expectation()

    return play


def _garbage(scene: Scene) -> None:
    """A ledger that is none; it must be kept aside, and the sweep go on from the results."""
    replace_object(scene.ledger_file(), b"{ this was a ledger")


def version_plays(trained: int = 6) -> dict[str, tuple[str, Play]]:
    """What happens to files of other versions, and how, once so many points were trained."""

    def down(change: Callable[[Scene], None]) -> Play:
        return while_down(change, trained)

    return {
        "result-newer": (
            "results with a field that this version does not know",
            down(_newer_results),
        ),
        "result-older": ("results without optional fields", down(_older_results)),
        "ledger-newer": (
            "a ledger of a later version, for some seconds",
            lambda scene: _later_ledger(scene, trained),
        ),
        "ledger-garbage": ("a ledger that is not one", down(_garbage)),
        "laws-newer": (
            "laws of a later version",
            _other_laws(lambda laws: {**laws, "version": 99}),
        ),
        "laws-older": (
            "laws of an earlier version",
            _other_laws(lambda laws: {**laws, "version": 1}),
        ),
    }


# ------------------------------------------------------------------------------------- the disk


def _disk_full(scene: Scene) -> Expectation:
    folder = scene.stage.directory / "small" / scene.namespace
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    scene.more.append(lambda: subprocess.run(["umount", "-l", str(folder)], check=False))
    scene.use_folder(folder)
    scene.seconds = 1.0
    scene.start()
    scene.wait_trained(6)
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    scene.rest(FULL_SECONDS)
    filler.unlink(missing_ok=True)
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
    scene.finish(240)
    return Expectation(speaks=True, charged=None)
