"""Which packages the checks need beside torch and transformers, and how to bring them to a machine without network.

Imports nothing but the standard library: it speaks where the rest cannot be imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

STACK: Mapping[str, str] = {"torch": "torch", "transformers": "transformers"}
"""Packages by the module that is imported: what the machine must have itself, built for its driver."""
SMALL: Mapping[str, str] = {
    "accelerate": "accelerate",
    "annotated_types": "annotated-types",
    "datasets": "datasets",
    "dateutil": "python-dateutil",
    "dill": "dill",
    "fsspec": "fsspec",
    "iniconfig": "iniconfig",
    "multiprocess": "multiprocess",
    "numpy": "numpy",
    "packaging": "packaging",
    "pandas": "pandas",
    "pluggy": "pluggy",
    "psutil": "psutil",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "pygments": "pygments",
    "pytest": "pytest",
    "safetensors": "safetensors",
    "six": "six",
    "tenacity": "tenacity",
    "tokenizers": "tokenizers",
    "typing_extensions": "typing-extensions",
    "typing_inspection": "typing-inspection",
    "xxhash": "xxhash",
    "zstandard": "zstandard",
}
"""What may be brought along, with all that it needs in turn and torch and transformers do not."""
NEEDS_TORCH = ("accelerate",)
"""Fetched without what it needs: that would be torch."""


def missing() -> list[str]:
    """Names of packages that cannot be imported here."""
    known = {**STACK, **SMALL}
    return [known[module] for module in known if importlib.util.find_spec(module) is None]


def advice(lacking: list[str]) -> str:
    """What to do about packages that are missing."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    words = [f"{sys.executable} (Python {version}) lacks: {', '.join(lacking)}."]
    stack = [name for name in lacking if name in STACK.values()]
    if stack:
        words.append(
            f"{' and '.join(stack)} must come with the machine; GPU_PYTHON names a Python."
        )
    small = [name for name in lacking if name not in stack]
    if small:
        words += [
            "The others can be brought along (docs/guides/gpu-check.md). Where there is a network:"
        ]
        words += [f"  {command}" for command in _downloads(small, version)]
        words += [
            "and here:",
            f"  {sys.executable} -m pip install --no-index --no-deps --find-links wheels "
            f"--target packages {' '.join(small)}",
            "  GPU_PACKAGES=$PWD/packages make gpu-check",
        ]
    return "\n".join(words)


def _downloads(names: list[str], version: str) -> list[str]:
    """With what they need, so that the versions suit each other."""
    fetch = f"python3 -m pip download --only-binary :all: --python-version {version} -d wheels"
    alone = [name for name in names if name in NEEDS_TORCH]
    others = [name for name in names if name not in NEEDS_TORCH]
    found = [f"{fetch} {' '.join(others)}"] if others else []
    return found + ([f"{fetch} --no-deps {' '.join(alone)}"] if alone else [])
