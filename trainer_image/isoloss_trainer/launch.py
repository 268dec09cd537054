"""Starts one process per accelerator of this pod for a task, and ends with their exit code.

torchrun could start them, but turns every failure into exit code 1, and the operator decides by the
exit code.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isoloss_contract.records import (
    POD_INDEX_VARIABLE,
    SCRATCH_VARIABLE,
    ExitCode,
    TerminationMessage,
)
from isoloss_trainer.log import Log
from isoloss_trainer.termination import ENDING_VARIABLE, BadConfiguration, Interruption
from isoloss_trainer.world import RANK_VARIABLE, REFUSALS_VARIABLE, visible_accelerators

PROCESSES_VARIABLE = "ISOLOSS_PROCESSES"
"""Number of processes; default: one per visible accelerator, one on a CPU."""
GRACE_SECONDS = 20.0
"""For the rest to report why, once a process that they need has ended."""

START_OVER = int(ExitCode.MEMORY_REFUSED)
"""The exit code of a process after which all start over with less at once. The launcher does it, unless there are
others in other pods."""


@dataclass(frozen=True)
class Processes:
    """The processes of this pod among those of all pods."""

    count: int
    nodes: int = 1
    """Pods."""
    node: int = 0
    """Number of this pod."""

    @classmethod
    def of(cls, nodes: int) -> Processes | None:
        """As many as there are accelerators; None if this process runs the task. Raises BadConfiguration."""
        if RANK_VARIABLE in os.environ:
            return None
        count = max(1, _wanted_count())
        node = int(os.environ.get(POD_INDEX_VARIABLE, "0")) if nodes > 1 else 0
        if node >= nodes:
            message = f"{POD_INDEX_VARIABLE} is {node}, but the task is for {nodes} pods"
            raise BadConfiguration("NoSuchNode", message, "nodes")
        return cls(count, nodes, node) if count * nodes > 1 else None

    def environment(self, port: int) -> list[dict[str, str]]:
        """The place of each of them, in torchrun's words. One pod's meet at `port`."""
        first = self.node * self.count
        shared = {"WORLD_SIZE": str(self.count * self.nodes)}
        if self.nodes == 1:
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        places = ((first + rank, rank) for rank in range(self.count))
        return [{**shared, RANK_VARIABLE: str(r), "LOCAL_RANK": str(local)} for r, local in places]


def _wanted_count() -> int:
    """Raises BadConfiguration."""
    given = os.environ.get(PROCESSES_VARIABLE)
    try:
        return visible_accelerators() if given is None else int(given)
    except ValueError:
        message = f"{PROCESSES_VARIABLE} is {given!r}: give a number of processes, such as 8"
        raise BadConfiguration("BadVariable", message, "podTemplate") from None


def run_together(
    processes: Processes, arguments: list[str], interruption: Interruption, log: Log
) -> tuple[int, TerminationMessage | None]:
    """Run the task in these processes, passing a stop request on to them; once more with less at once if memory was
    refused to one, unless there are other pods.

    Returns the first one's exit code, or the first failure's if that was killed, and what that process said at its end.
    """
    # A shared scratch folder: what one of them fetches, the others read.
    with scratch_folder() as scratch, reserved_port() as port:
        refusals = 0
        while not interruption.requested:
            children = _start(processes, arguments, scratch, refusals, port)
            try:
                code = _wait(children, interruption)
            finally:
                for child in children:
                    child.kill()
                    child.wait()
            if code != START_OVER or processes.nodes > 1:
                return code, _last_words(processes, children, scratch, log)
            refusals += 1
        return int(ExitCode.INTERRUPTED), None


def start_over(arguments: list[str]) -> int:
    """Make way for a process that knows that memory was refused to this one: with what is returned as exit code,
    if one of several is started again by those above; otherwise in place of this one."""
    if RANK_VARIABLE not in os.environ:
        refusals = int(os.environ.get(REFUSALS_VARIABLE, "0")) + 1
        environment = {**os.environ, REFUSALS_VARIABLE: str(refusals)}
        command = [sys.executable, "-m", "isoloss_trainer", *arguments]
        os.execve(sys.executable, command, environment)
    return START_OVER


def _start(
    processes: Processes, arguments: list[str], scratch: Path, refusals: int, port: int
) -> list[subprocess.Popen[bytes]]:
    shared = {REFUSALS_VARIABLE: str(refusals), SCRATCH_VARIABLE: str(scratch)}
    command = [sys.executable, "-m", "isoloss_trainer", *arguments]
    started = []
    for number, place in enumerate(processes.environment(port)):
        ending = _ending(scratch, number)
        ending.unlink(missing_ok=True)
        own = {ENDING_VARIABLE: str(ending), **place}
        started.append(subprocess.Popen(command, env={**os.environ, **shared, **own}))
    return started


def _ending(scratch: Path, number: int) -> Path:
    """Where a process of this pod leaves what it says at its end."""
    return scratch / f"ending-{number}.json"


def _last_words(
    processes: Processes, children: list[subprocess.Popen[bytes]], scratch: Path, log: Log
) -> TerminationMessage | None:
    """Those of the process whose exit code is everyone's; of the first if that had no time for any. They are logged
    unless rank 0 said them, which logs for all."""
    number = _speaker([child.returncode for child in children])
    words = _read(_ending(scratch, number))
    if words is None:
        return _read(_ending(scratch, 0))
    rank = processes.node * processes.count + number
    if rank > 0:
        code = children[number].returncode
        log.event("end", rank=rank, exit_code=code, code=words.code, message=words.message)
    return words


def _read(ending: Path) -> TerminationMessage | None:
    try:
        return TerminationMessage.model_validate_json(ending.read_bytes())
    except (OSError, ValueError):
        return None


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine at which the first process may listen meanwhile, as torch does with SO_REUSEADDR.

    While it is bound, no connection gets it as its own port: not even that of a process that looks for the first one.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def _wait(children: list[subprocess.Popen[bytes]], interruption: Interruption) -> int:
    stopping, deadline = False, float("inf")
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        if START_OVER in [child.poll() for child in children]:
            break  # the others wait for what will not come
        if interruption.requested and not stopping:
            for child in children:
                child.terminate()
            stopping = True
        if deadline == float("inf") and _leaves_others_waiting(children):
            deadline = time.monotonic() + GRACE_SECONDS
        time.sleep(0.1)
    return _exit_code([child.poll() for child in children], stopping=stopping)


def _leaves_others_waiting(children: list[subprocess.Popen[bytes]]) -> bool:
    """Whether one has ended whom the others need.

    When a stop was requested, rank 0 needs nobody and may take as long as the pod has to write its
    checkpoint; the other processes have exited with INTERRUPTED by then.
    """
    first, *others = [child.poll() for child in children]
    return first is not None or any(c not in (None, 0, ExitCode.INTERRUPTED) for c in others)


def _speaker(codes: list[int | None]) -> int:
    """The number of the process whose code is everyone's: of one that makes all start over; else rank 0's, which
    reports for all. If that is 1 or it had to be killed, another process may have failed first: then that one's."""
    if START_OVER in codes:
        return codes.index(START_OVER)
    first, *others = codes
    if first not in (None, 1):
        return 0
    return next((number for number, code in enumerate(others, 1) if code), 0)


def _exit_code(codes: list[int | None], *, stopping: bool) -> int:
    """The speaker's. A signal is reported as 128 + its number, as shells do."""
    code = codes[_speaker(codes)]
    if code is None:
        return 1
    if code >= 0:
        return code
    # Stopped before it listened for SIGTERM, so that there was nothing to save.
    return int(ExitCode.INTERRUPTED) if stopping and code == -signal.SIGTERM else 128 - code


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """The folder that SCRATCH_VARIABLE names, or a temporary one that is removed after the block."""
    given = os.environ.get(SCRATCH_VARIABLE)
    if given:
        folder = Path(given)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="isoloss-", ignore_cleanup_errors=True) as name:
        yield Path(name)
