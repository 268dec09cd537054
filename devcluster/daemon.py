"""Background processes that outlive the command that started them, found again by a file.

A pid alone may have been reused since; pid and start time together identify one process, so that
no other process is ever signalled.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.files import write_private
from devcluster.ports import PortTakenError

POLL_SECONDS = 0.02
LOG_TAIL_CHARACTERS = 2000
STATE, START_TIME = 0, 19  # fields of /proc/PID/stat after the command's name (proc(5): 3 and 22)

# This process must reap its children, or they stay as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


def start_time(pid: int) -> str | None:
    """Start time of a live process in clock ticks since boot; None if it is dead."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[STATE] in "ZX" else fields[START_TIME]


def save_identity(path: Path, pid: int, *, log_start: int = 0) -> None:
    """Record a process so that a later one with the same pid is not mistaken for it, and where its log begins."""
    found = {"pid": pid, "start_time": start_time(pid), "log_start": log_start}
    write_private(path, json.dumps(found))


def live_pid(identity: Path) -> int | None:
    """Pid of the recorded process; None if it has ended."""
    try:
        saved = json.loads(identity.read_text())
    except (OSError, ValueError):
        return None
    alive = saved["start_time"] is not None and start_time(saved["pid"]) == saved["start_time"]
    return int(saved["pid"]) if alive else None


@dataclass(frozen=True)
class Daemon:
    """One background process; `folder` holds its identity and its log."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        """Standard output and error of every start."""
        return self.folder / "logs" / f"{self.name}.log"

    @property
    def identity(self) -> Path:
        """Pid and start time of the most recent start."""
        return self.folder / "run" / f"{self.name}.json"

    def pid(self) -> int | None:
        """Its pid; None if it is not running."""
        return live_pid(self.identity)

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start it in its own session, unless it is running."""
        if self.pid() is not None:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log_start = log.tell()
            child = subprocess.Popen(
                [str(part) for part in command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _children[child.pid] = child
        save_identity(self.identity, child.pid, log_start=log_start)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it is running."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, number)

    def stop(self, seconds: float = 10) -> None:
        """SIGTERM, then SIGKILL after `seconds`; returns when it has ended."""
        self.signal(signal.SIGTERM)
        if not self._gone_within(seconds):
            self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when it has ended."""
        self.signal(signal.SIGKILL)
        self._gone_within(10)

    def wait_until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Wait until ready. Raises RuntimeError with the end of the log if it ends or takes too long.

        It is a PortTakenError if the process ended because another one listens on its port.
        """
        deadline = time.monotonic() + seconds
        while not is_ready():
            if self.pid() is None:
                log = self.log_tail()
                message = f"{self.name} ended while starting:\n{log}"
                taken = "address already in use" in log.casefold()
                raise PortTakenError(message) if taken else RuntimeError(message)
            if time.monotonic() > deadline:
                message = f"{self.name} not ready after {seconds:.0f} s:\n{self.log_tail()}"
                raise RuntimeError(message)
            time.sleep(POLL_SECONDS)

    def log_tail(self) -> str:
        """The end of what it has logged since its last start."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start())
                return log.read().decode(errors="replace")[-LOG_TAIL_CHARACTERS:]
        except OSError:
            return ""

    def _log_start(self) -> int:
        try:
            return int(json.loads(self.identity.read_text()).get("log_start", 0))
        except (OSError, ValueError):
            return 0

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True
