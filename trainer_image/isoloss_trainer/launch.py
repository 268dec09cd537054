"""Starts one process per accelerator for a task, and ends with their exit code.

torchrun could start them, but turns every failure into exit code 1, and the operator decides by the
exit code.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from isoloss_contract.records import SCRATCH_VARIABLE
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.scratch import scratch_folder
from isoloss_trainer.world import RANK_VARIABLE

PROCESSES_VARIABLE = "ISOLOSS_PROCESSES"
"""Number of processes; default: one per visible accelerator, one on a CPU."""
GRACE_SECONDS = 20.0


def processes_to_start() -> int:
    """Number of processes to run the task in; 1: this one runs it."""
    if RANK_VARIABLE in os.environ:
        return 1
    if PROCESSES_VARIABLE in os.environ:
        return max(1, int(os.environ[PROCESSES_VARIABLE]))
    return max(1, _visible_accelerators())


def _visible_accelerators() -> int:
    """Counted without torch, whose import takes seconds and whose use would hold the devices."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    try:
        names = os.listdir("/dev")
    except OSError:
        return 0
    return sum(
        name.removeprefix("nvidia").isdigit() for name in names if name.startswith("nvidia")
    )


def run_together(processes: int, arguments: list[str], interruption: Interruption) -> int:
    """Run the task in `processes` processes, passing a stop request on to them.

    Returns 0 where all succeed, else rank 0's exit code if it is positive, else the first failure's.
    """
    # A shared scratch folder: what one of them fetches, the others read.
    with scratch_folder() as scratch:
        children = _start(processes, arguments, scratch)
        try:
            return _wait(children, interruption)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()


def _start(processes: int, arguments: list[str], scratch: Path) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
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
    told = False
    while any(child.poll() is None for child in children):
        if interruption.requested and not told:
            for child in children:
                child.terminate()
            told = True
        failed = [child.returncode for child in children if child.poll() not in (None, 0)]
        if failed:
            # The others hang in a collective, but rank 0 may be about to report the reason.
            _give_time(children[0])
            code = children[0].poll()
            return code if code is not None and code > 0 else abs(failed[0])
        time.sleep(0.1)
    return next((c.returncode for c in children if c.returncode), 0)


def _give_time(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return
