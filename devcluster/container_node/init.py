"""First process of a container node's namespaces: starts containerd, kubelet and forwarder.

Everything that a node leaves behind on a machine goes with it: the kernel kills every process of
the PID namespace when this one ends, and drops every mount of the mount namespace with the last.
Folders of the machine that kubelet and containerd insist on are covered by file systems in memory.
"""

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
    signal.signal(signal.SIGTERM, lambda *_: _stop(started, Path(folder)))
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


def _stop(started: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """kubelet before containerd, and in between the pods, or containerd would find them again."""
    containerd, *clients = started
    for process in reversed(clients):
        _end(process)
    _remove_containers(folder / "containerd.sock")
    _end(containerd)
    os._exit(0)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _remove_containers(socket: Path) -> None:
    """Kill and delete every container with its snapshot; images stay."""
    ctr = ["ctr", "--address", str(socket), "--namespace", "k8s.io"]
    listed = subprocess.run(
        [*ctr, "containers", "list", "--quiet"], capture_output=True, text=True, check=False
    )
    for name in listed.stdout.split():
        for command in (
            ["tasks", "kill", "--signal", "SIGKILL", name],
            ["tasks", "delete", "--force", name],
            ["containers", "delete", name],
        ):
            subprocess.run([*ctr, *command], capture_output=True, check=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
