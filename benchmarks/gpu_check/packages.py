"""Which packages the checks need beside torch and transformers.

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
        words.append(
            f"docs/guides/gpu-check.md says how to bring along {', '.join(small)}, and GPU_PACKAGES where they are."
        )
    return "\n".join(words)
