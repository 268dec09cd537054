"""What a machine must have for a container node, and what building images on it takes."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

CNI_FOLDER = Path("/usr/lib/cni")
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
"""Debian's package by program."""
IMAGE_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
GIBIBYTE = 2**30


def missing_for_node(folder: Path, *, memory: int, disk: int) -> list[str]:
    """What stands in the way of a container node, each as a sentence; [] for nothing.

    `memory` in bytes that must be available, `disk` in bytes that must be free at `folder`.
    """
    found = [] if os.geteuid() == 0 else ["it needs root"]
    found += missing_programs(PACKAGES)
    if not (CNI_FOLDER / "bridge").exists():
        found.append("no CNI plugins in /usr/lib/cni: apt-get install containernetworking-plugins")
    if "overlay" not in Path("/proc/filesystems").read_text():
        found.append("the kernel has no overlay file system")
    if not any(Path("/sys/fs/cgroup").glob("*")):
        found.append("no cgroups are mounted at /sys/fs/cgroup")
    return [*found, *_too_little(folder, memory=memory, disk=disk)]


def missing_programs(packages: Mapping[str, str]) -> list[str]:
    """Programs that are not on PATH, each with the Debian package that brings it."""
    return [
        f"no {program} on PATH: apt-get install {package}"
        for program, package in packages.items()
        if not shutil.which(program)
    ]


def available_memory() -> int:
    """Bytes that new processes can have without swapping (proc_meminfo(5), MemAvailable)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _too_little(folder: Path, *, memory: int, disk: int) -> list[str]:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free, available = shutil.disk_usage(existing).free, available_memory()
    found = []
    if free < disk:
        found.append(f"{free / GIBIBYTE:.0f} GiB free at {existing}, {disk / GIBIBYTE:.0f} needed")
    if available < memory:
        found.append(
            f"{available / GIBIBYTE:.1f} GiB of memory available, {memory / GIBIBYTE:.1f} needed"
        )
    return found
