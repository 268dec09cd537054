"""Which packages the checks need beside torch and transformers.

Imports nothing but the standard library: it speaks where the rest cannot be imported.
"""

import importlib.metadata
import sys

STACK = ("torch", "transformers")
"""What the machine must have itself, built for its driver."""
SMALL = (
    *("accelerate", "annotated-types", "datasets", "dill", "fsspec", "iniconfig", "multiprocess"),
    *("numpy", "packaging", "pandas", "pluggy", "psutil", "pyarrow", "pydantic", "pydantic-core"),
    *("pygments", "pytest", "python-dateutil", "safetensors", "six", "tenacity", "tokenizers"),
    *("typing-extensions", "typing-inspection", "xxhash", "zstandard"),
)
"""What may be brought along, with all that it needs in turn and torch and transformers do not."""


def missing() -> list[str]:
    """Names of packages that are not installed here."""
    here = {each.name.lower().replace("_", "-") for each in importlib.metadata.distributions()}
    return [name for name in (*STACK, *SMALL) if name not in here]


def advice(lacking: list[str]) -> str:
    """What to do about packages that are missing."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    words = [f"{sys.executable} (Python {version}) lacks: {', '.join(lacking)}."]
    stack = [name for name in lacking if name in STACK]
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
