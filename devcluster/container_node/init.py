"""First process of a container node's namespaces: starts containerd, kubelet and forwarder.

Everything that a node leaves behind on a machine goes with it: the kernel kills every process of
the PID namespace when this one ends, and drops every mount of the mount namespace with the last.
Folders of the machine that kubelet and containerd insist on are covered by file systems in memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

COVERED = ("/run", "/var/lib", "/var/log")
"""/run/netns and /run/containerd, /var/lib/kubelet, /var/log/pods and /var/log/containers."""
STOP_SECONDS = 20


def main(folder: str) -> None:
    """Run what `commands.json` in the folder lists, in order, until one ends or SIGTERM comes."""
    for path in COVERED:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    commands = json.loads(Path(folder, "commands.json").read_text())
    started: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: _stop(started))
    for command in commands:
        started.append(_start(command, Path(folder)))
        _wait_for(command.get("socket"))
    names = {
        process.pid: command["name"] for process, command in zip(started, commands, strict=True)
    }
    while True:  # the shims' and containers' orphans end here as well, and must be reaped
        pid, status = os.wait()
        if pid in names:
            print(f"{names[pid]} ended: {os.waitstatus_to_exitcode(status)}", flush=True)
            sys.exit(1)


def _start(command: dict[str, str | Sequence[str]], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "logs" / f"{command['name']}.log").open("ab") as log:
        return subprocess.Popen(command["command"], stdout=log, stderr=subprocess.STDOUT)


def _wait_for(socket: str | None, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while socket and not Path(socket).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _stop(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """kubelet before containerd; what is left of the pods is killed with this process."""
    for process in reversed(started):
        process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
