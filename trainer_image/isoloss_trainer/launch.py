"""Starts one process per accelerator for a task, and ends with their exit code.

torchrun could start them, but turns every failure into exit code 1, and the operator decides by the
exit code.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from isoloss_contract.records import SCRATCH_VARIABLE, ExitCode
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.scratch import scratch_folder
from isoloss_trainer.world import RANK_VARIABLE, REFUSALS_VARIABLE, visible_accelerators

PROCESSES_VARIABLE = "ISOLOSS_PROCESSES"
"""Number of processes; default: one per visible accelerator, one on a CPU."""
GRACE_SECONDS = 20.0
"""For the rest to report why, once a process that they need has ended."""

START_OVER = 47
"""The exit code of a process after which all start over with less at once; the launcher's own is another."""


def processes_to_start() -> int:
    """Number of processes to run the task in; 1: this one runs it."""
    if RANK_VARIABLE in os.environ:
        return 1
    if PROCESSES_VARIABLE in os.environ:
        return max(1, int(os.environ[PROCESSES_VARIABLE]))
    return max(1, visible_accelerators())


def run_together(processes: int, arguments: list[str], interruption: Interruption) -> int:
    """Run the task in `processes` processes, passing a stop request on to them; once more with less at once
    if memory was refused to one.

    Returns rank 0's exit code, or the first failure's if rank 0 was killed.
    """
    # A shared scratch folder: what one of them fetches, the others read.
    with scratch_folder() as scratch:
        refusals, code = 0, START_OVER
        while code == START_OVER and not interruption.requested:
            code = _run_once(_start(processes, arguments, scratch, refusals), interruption)
            refusals += 1
        return int(ExitCode.INTERRUPTED) if code == START_OVER else code


def start_over(arguments: list[str]) -> int:
    """Make way for a process that knows that memory was refused to this one: with what is returned as exit code,
    if one of several is started again by those above; otherwise in place of this one."""
    if RANK_VARIABLE not in os.environ:
        refusals = int(os.environ.get(REFUSALS_VARIABLE, "0")) + 1
        environment = {**os.environ, REFUSALS_VARIABLE: str(refusals)}
        command = [sys.executable, "-m", "isoloss_trainer", *arguments]
        os.execve(sys.executable, command, environment)
    return START_OVER


def _run_once(children: list[subprocess.Popen[bytes]], interruption: Interruption) -> int:
    try:
        return _wait(children, interruption)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def _start(
    processes: int, arguments: list[str], scratch: Path, refusals: int
) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        REFUSALS_VARIABLE: str(refusals),
        SCRATCH_VARIABLE: str(scratch),
    }
    command = [sys.executable, "-m", "isoloss_trainer", *arguments]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, RANK_VARIABLE: str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(processes)
    ]


def _wait(children: list[subprocess.Popen[bytes]], interruption: Interruption) -> int:
    stopping, deadline = False, float("inf")
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        if _starts_over(children):
            break  # the others wait for what will not come
        if interruption.requested and not stopping:
            for child in children:
                child.terminate()
            stopping = True
        if deadline == float("inf") and _leaves_others_waiting(children):
            deadline = time.monotonic() + GRACE_SECONDS
        time.sleep(0.1)
    if _starts_over(children):
        return START_OVER
    return _exit_code([child.poll() for child in children], stopping=stopping)


def _starts_over(children: list[subprocess.Popen[bytes]]) -> bool:
    return any(child.poll() == START_OVER for child in children)


def _leaves_others_waiting(children: list[subprocess.Popen[bytes]]) -> bool:
    """Whether one has ended whom the others need.

    When a stop was requested, rank 0 needs nobody and may take as long as the pod has to write its
    checkpoint; the other processes have exited with INTERRUPTED by then.
    """
    first, *others = [child.poll() for child in children]
    return first is not None or any(c not in (None, 0, ExitCode.INTERRUPTED) for c in others)


def _exit_code(codes: list[int | None], *, stopping: bool) -> int:
    """Rank 0's, which reports for all. If that is 1 or it had to be killed, another process may
    have failed first: then that one's. A signal is reported as 128 + its number, as shells do."""
    first, *others = codes
    if first == 0 or (first is not None and first > 1):
        return first
    by_signal = first if first is not None and first < 0 else None
    failed = by_signal or next((code for code in others if code), first or 1)
    if failed > 0:
        return failed
    # Stopped before it listened for SIGTERM, so that there was nothing to save.
    return int(ExitCode.INTERRUPTED) if stopping and failed == -signal.SIGTERM else 128 - failed
