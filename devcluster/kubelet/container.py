"""One run of one container as a group of local processes that outlives the agent.

A small shell runs between agent and command: it writes its pid before the command starts and the
exit code after it, so that a restarted agent finds both.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.kubelet.status import (
    KILLED,
    LOG_MESSAGE_BYTES,
    MESSAGE_BYTES,
    Json,
    terminated,
)

# Creating the pid file fails if it exists (noclobber): of two shells for one run only one continues.
# A trap that is not empty is reset in the command, which therefore still gets SIGTERM.
SHELL = """
trap : TERM INT HUP
d=$1; shift
set -C
echo $$ > "$d/pid" || exit 125
set +C
"$@" >> "$d/log" 2>&1
code=$?
echo $code > "$d/exit"
"""
START_ERROR = 128
RUNS = "containers"
"""Folder of a pod's runs within the pod's own: containers/NAME."""


@dataclass(frozen=True)
class Command:
    """What to run, with paths of this machine; `message` is the termination message's file."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    message: Path


@dataclass(frozen=True)
class ContainerRun:
    """The run of one container; `folder` holds its pid, exit code, log and message."""

    folder: Path

    @property
    def log(self) -> Path:
        """Standard output and error."""
        return self.folder / "log"

    @property
    def termination_log(self) -> Path:
        """The termination message, or a link to the file in a volume that holds it."""
        return self.folder / "termination-log"

    def pid(self) -> int | None:
        """The shell's pid, which is also its process group; None before the start."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "pid").read_text())
        return None

    def exit_code(self) -> int | None:
        """The command's exit code; None while it runs, or if the shell was killed with it."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "exit").read_text())
        return None

    def was_started(self) -> bool:
        """Whether it is running or has run, possibly under an earlier agent."""
        return (
            self.pid() is not None or self.has_failed_to_start() or str(self.folder) in _children
        )

    def has_failed_to_start(self) -> bool:
        """Whether there was nothing to execute."""
        return self._start_failure.exists()

    def start(self, command: Command) -> None:
        """Start it. If the command does not exist, it fails immediately, as in a container runtime."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if command.message != self.termination_log:
            self.termination_log.symlink_to(command.message)
        self.termination_log.touch()
        program = _find(command)
        if program is None:
            message = f'exec: "{command.arguments[0]}": executable file not found in $PATH'
            self._start_failure.write_text(message)
            return
        _children[str(self.folder)] = subprocess.Popen(
            ["/bin/sh", "-c", SHELL, "sh", str(self.folder), program, *command.arguments[1:]],
            env=dict(command.environment),
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    async def wait(self) -> None:
        """Wait until it has ended, whichever agent started it, and kill what is left of its group."""
        await self.settle()
        pid = self.pid()
        if pid is not None:
            await _wait_for_end(pid, str(self.folder))

    async def settle(self) -> None:
        """Wait until a process that is starting can receive signals."""
        child = _children.get(str(self.folder))
        while self.pid() is None and child is not None and child.poll() is None:
            await asyncio.sleep(0.002)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes, if it is running."""
        pid = self.pid()
        if pid is not None and _is_ours(pid, str(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def result(self, *, log_as_message: bool) -> Json:
        """The state of a container that has ended; `log_as_message` is the policy FallbackToLogsOnError."""
        if self.has_failed_to_start():
            time = self._start_failure.stat().st_mtime
            message = self._start_failure.read_text()
            return terminated(START_ERROR, time, time, "StartError", message)
        code = self.exit_code()
        code = KILLED if code is None else code
        reason = "Completed" if code == 0 else "Error"
        message = self._message()
        if not message and log_as_message and code:
            message = _end_of(self.log)
        return terminated(code, self.started(), self._finished(), reason, message)

    def started(self) -> float:
        """When it started, in seconds since 1970."""
        return self._time_of("pid")

    def _finished(self) -> float:
        """When it ended; if the shell was killed too, the time of its last sign of life."""
        return max(self._time_of(name) for name in ("exit", "log", "pid"))

    def _time_of(self, name: str) -> float:
        path = self.folder / name
        return (path if path.exists() else self.folder).stat().st_mtime

    def _message(self) -> str:
        with contextlib.suppress(OSError), self.termination_log.open("rb") as file:
            return file.read(MESSAGE_BYTES).decode(errors="replace")
        return ""

    @property
    def _start_failure(self) -> Path:
        return self.folder / "start-error"


# The shells that this agent started, by their run's folder: it has to reap them.
_children: dict[str, subprocess.Popen[bytes]] = {}


def _find(command: Command) -> str | None:
    search = command.environment.get("PATH", os.defpath)
    name = command.arguments[0]
    if "/" in name and not name.startswith("/"):
        name = str(command.folder / name)
    return shutil.which(name, path=search)


def _end_of(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_MESSAGE_BYTES))
        return file.read(LOG_MESSAGE_BYTES).decode(errors="replace")
    return ""


def _is_ours(pid: int, folder: str) -> bool:
    """Whether the process is this run's shell, not another that has reused its pid."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return folder.encode() in arguments


async def _wait_for_end(pid: int, folder: str) -> None:
    """Wait for the end of a process that may not be our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    try:
        if _is_ours(pid, folder):
            loop.add_reader(descriptor, ended.set_result, None)
            await ended
            loop.remove_reader(descriptor)
            # Before the shell is reaped, while its pid still identifies our group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    child = _children.pop(folder, None)
    if child is not None:
        child.wait()


def kill_runs(pod: Path) -> None:
    """SIGKILL all processes in a pod's folder."""
    for pid_file in (pod / RUNS).glob("*/pid"):
        ContainerRun(pid_file.parent).signal(signal.SIGKILL)
