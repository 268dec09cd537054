"""What a container node could leave behind on a machine: listed for tests, removed where it can be."""

import contextlib
import subprocess
import time
from pathlib import Path

from devcluster.container_node.network import BRIDGE, bridge_exists

CGROUPS = Path("/sys/fs/cgroup")
POD_CGROUP = "kubepods"
CGROUP_SECONDS = 10
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "kubelet", "runc")
HOST_FOLDERS = (
    "/run/containerd",
    "/run/netns",
    "/var/lib/kubelet",
    "/var/log/pods",
    "/var/log/containers",
)


def traces() -> set[str]:
    """Mounts, cgroups, links, processes, folders and packet filters as a node makes them.

    A node has left nothing behind where they are the same before its start and after its stop:
    the machine may have a containerd of its own.
    """
    return {
        *(f"mount {line.split()[1]}" for line in _mounts()),
        *(f"cgroup {path}" for path in _pod_cgroups()),
        *([f"link {BRIDGE}"] if bridge_exists() else []),
        *(f"process {name}" for name in _processes()),
        *(f"folder {name}" for name in HOST_FOLDERS if Path(name).exists()),
        *(f"iptables {line}" for line in _packet_filters()),
    }


def remove_cgroups() -> None:
    """Remove the pods' cgroups, children first; those whose processes are still dying take a moment."""
    deadline = time.monotonic() + CGROUP_SECONDS
    while (found := _pod_cgroups()) and time.monotonic() < deadline:
        for path in found:
            for each in sorted(path.rglob("*"), key=lambda each: -len(each.parts)):
                if each.is_dir():
                    with contextlib.suppress(OSError):
                        each.rmdir()
            with contextlib.suppress(OSError):
                path.rmdir()
        time.sleep(0.1)


def _pod_cgroups() -> list[Path]:
    # One hierarchy (cgroup v2) or one per controller (v1).
    found = [CGROUPS / POD_CGROUP, *CGROUPS.glob(f"*/{POD_CGROUP}")]
    return [path for path in found if path.is_dir()]


def _mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text().splitlines()


def _processes() -> list[str]:
    names = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            program = path.read_bytes().split(b"\0")[0].decode(errors="replace")
            if Path(program).name in PROGRAMS:
                names.append(f"{path.parent.name} {program}")
    return names


def _packet_filters() -> list[str]:
    try:
        saved = subprocess.run(
            ["iptables-save"], check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [line for line in saved.splitlines() if "KUBE" in line or "CNI" in line]
