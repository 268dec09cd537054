"""Two operators, wrong clocks, other versions' files, and a disk that fills up."""

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isoloss_contract.ledger_files import OLDEST
from tests.faults.fixture import Failed, FaultFixture
from tests.faults.injection import replace_object
from tests.faults.rows import Play, Row
from tests.faults.servers import kill_all, new_operator
from tests.faults.verdict import Expectation
from tests.support.ledgers import head_of, with_head
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


def _second(fixture: FaultFixture, **environment: str) -> Any:
    folder = fixture.harness.directory / "operators" / f"{fixture.namespace}-second"
    operator = new_operator(
        fixture.harness, fixture.server, [fixture.namespace], folder, environment or None
    )
    fixture.more.append(lambda: kill_all(operator) if operator.is_running() else None)
    return operator


def two_writing(fixture: FaultFixture) -> Expectation:
    """A second operator leads as well."""
    fixture.seconds = 0.5
    _second(fixture, **BOTH_LEADING).start()
    fixture.start()
    fixture.finish(180)
    return Expectation()


def _frozen(fixture: FaultFixture) -> Expectation:
    fixture.seconds = 1.0
    second = _second(fixture, **FROZEN_LEASE)
    fixture.start()
    fixture.wait_trained(4)
    second.start()
    assert fixture.operator.process is not None
    for _ in range(2):
        fixture.operator.process.send_signal(19)
        fixture.rest(16)
        fixture.operator.process.send_signal(18)
        fixture.rest(3)
    fixture.finish(180)
    return Expectation()


# -------------------------------------------------------------------------------------- clocks


def _clock(sign: str) -> Play:
    def play(fixture: FaultFixture) -> Expectation:
        fixture.seconds = 1.0
        right = dict(fixture.operator.environment)
        wrong = {
            **right,
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME": f"{sign}{HOURS}h",
            # Monotonic time stays as it is: only the wall clock of a machine is ever wrong.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        # S3 servers refuse requests signed in another hour: that is the store's own defence.
        fixture.use_folder(fixture.harness.directory / "stores" / fixture.namespace)
        fixture.operator.environment = wrong
        # One attempt fails and waits for its retry while the clocks change.
        failure = {"exit": 1, "kind": "train", "batch_size": 4, "attempts": [1]}
        fixture.spec["failurePolicy"] = {"retriesPerPoint": 3, "maxFailedPoints": 0}
        template = {"SYNTHETIC_SECONDS": "1", "SYNTHETIC_FAILURES": json.dumps([failure])}
        fixture.spec["podTemplate"] = env_template(**template)
        fixture.start()
        for done, environment in ((3, right), (7, wrong)):
            fixture.wait_trained(done, 120)
            kill_all(fixture.operator)
            fixture.operator.environment = environment
            fixture.operator.start()
        fixture.finish(180)
        return Expectation(charged=10)

    return play


# ------------------------------------------------------------------------------------ versions


def while_down(change: Callable[[FaultFixture], None], trained: int) -> Play:
    """Kill the operator once so many points were trained, change files, and start it again."""

    def play(fixture: FaultFixture) -> Expectation:
        fixture.seconds = 1.0
        fixture.start()
        fixture.wait_trained(trained)
        change_while_down(fixture, change)
        return Expectation()

    return play


def change_while_down(fixture: FaultFixture, change: Callable[[FaultFixture], None]) -> None:
    """Kill the operator, change files once no pod runs, start it again and let it finish."""
    kill_all(fixture.operator)
    if not wait_for(lambda: _is_quiet(fixture), 60):
        raise Failed("pods did not end while the operator was down")
    change(fixture)
    fixture.operator.start()
    fixture.finish(120)


def _is_quiet(fixture: FaultFixture) -> bool:
    return all(pod.status.phase in ("Succeeded", "Failed") for pod in fixture.user.pods())


def _edit(paths: list[Path], change: Callable[[Json], Json]) -> None:
    if not paths:
        raise Failed("no file of that kind is there")
    for path in paths:
        replace_object(path, json.dumps(change(json.loads(path.read_text()))).encode())


def _results(fixture: FaultFixture) -> list[Path]:
    return sorted(fixture.folder.glob("points/*/result.json"))


def _newer_results(fixture: FaultFixture) -> None:
    _edit(_results(fixture), lambda result: {**result, "energy_joules": 12.5})


def _older_results(fixture: FaultFixture) -> None:
    dropped = ("versions", "message")
    _edit(_results(fixture), lambda result: {k: v for k, v in result.items() if k not in dropped})


def _later_ledger(fixture: FaultFixture, trained: int) -> Expectation:
    """An operator that was rolled back must leave the ledger alone and say why it waits."""
    fixture.seconds = 1.0
    fixture.start()
    fixture.wait_trained(trained)
    kill_all(fixture.operator)
    wait_for(lambda: _is_quiet(fixture), 60)
    path = fixture.ledger_file()
    before = path.read_bytes()
    newer = with_head(before, ledger_version=99)
    replace_object(path, newer)
    fixture.operator.start()
    fixture.wait(lambda: fixture.harness.journal.said(fixture.namespace), "a condition to say so")
    fixture.rest(5)
    kept = path.exists() and path.read_bytes() == newer
    replace_object(path, before)
    fixture.touch()
    fixture.finish(120)
    if not kept:
        raise Failed("a ledger of a later version was written over")
    return Expectation(speaks=True)


def _former_format(fixture: FaultFixture) -> None:
    """All that version 5 of the ledger's format did not have: stamps of sources, and word of which corpus is the sweep's."""
    path = fixture.ledger_file()
    content = path.read_bytes()
    corpus = {k: v for k, v in head_of(content)["corpus"].items() if k != "sources_stamp"}
    replace_object(path, with_head(content, ledger_version=OLDEST, corpus=corpus))
    _edit(
        sorted(fixture.folder.glob("data/*/manifest.json")),
        lambda manifest: {k: v for k, v in manifest.items() if k != "sources_stamp"},
    )
    for reported in fixture.folder.glob("data/*/sweeps/*"):
        reported.unlink()


def _other_laws(change: Callable[[Json], Json]) -> Play:
    def play(fixture: FaultFixture) -> Expectation:
        fixture.start()
        fixture.finish()
        kill_all(fixture.operator)
        _edit([fixture.sweep_folder() / "laws.json"], change)
        fixture.operator.start()
        fixture.touch()
        fixture.rest(16)
        fixture.finish(60)
        return Expectation()

    return play


def _garbage(fixture: FaultFixture) -> None:
    """A ledger that is none; it must be kept aside, and the sweep go on from the results."""
    replace_object(fixture.ledger_file(), b"{ this was a ledger")


def version_plays(trained: int = 6) -> dict[str, tuple[str, Play]]:
    """What happens to files of other versions, and how, once so many points were trained."""

    def down(change: Callable[[FaultFixture], None]) -> Play:
        return while_down(change, trained)

    return {
        "result-newer": (
            "results with a field that this version does not know",
            down(_newer_results),
        ),
        "result-older": ("results without optional fields", down(_older_results)),
        "ledger-newer": (
            "a downgrade: the ledger is of a later version, for some seconds",
            lambda fixture: _later_ledger(fixture, trained),
        ),
        "ledger-older": (
            "an upgrade: ledger and corpus are of the former format",
            down(_former_format),
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


def _disk_full(fixture: FaultFixture) -> Expectation:
    folder = fixture.harness.directory / "small" / fixture.namespace
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    fixture.more.append(lambda: subprocess.run(["umount", "-l", str(folder)], check=False))
    fixture.use_folder(folder)
    fixture.seconds = 1.0
    fixture.start()
    fixture.wait_trained(6)
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    fixture.rest(FULL_SECONDS)
    filler.unlink(missing_ok=True)
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
    fixture.finish(240)
    return Expectation(speaks=True, charged=None)
