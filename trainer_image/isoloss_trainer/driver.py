"""Why torch cannot use an NVIDIA device that is there: the driver's version against what torch's CUDA needs."""

from __future__ import annotations

import re
from pathlib import Path

LOADED = Path("/proc/driver/nvidia/version")
"""The kernel module's own words, in containers too."""
OLDEST = {11: 450, 12: 525, 13: 580}
"""Oldest driver branch by CUDA's major version (docs.nvidia.com/deploy/cuda-compatibility, minor version
compatibility)."""


def driver_branch() -> int | None:
    """Branch of the loaded driver, such as 580; None if it does not say."""
    try:
        found = re.search(r"\b(\d{3})\.\d+", LOADED.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return int(found[1]) if found else None


def why_unusable(torch_version: str, cuda: str | None) -> str:
    """A sentence without its end; `cuda` is the version that torch is built for, None for a build without."""
    if cuda is None:
        return f"torch {torch_version} is built without CUDA"
    oldest = OLDEST.get(int(cuda.partition(".")[0]))
    needs = f"CUDA {cuda}, for which torch {torch_version} is built, needs "
    needs += f"driver {oldest} or newer" if oldest else "a newer driver, perhaps"
    found = driver_branch()
    return f"{needs}; the machine's is {found}" if found else needs
