"""The images' lock files: read for the SBOM, and divided into what each layer installs.

Needs `packaging` alone. As a command (in a Dockerfile) it prints one part:

    python -m images.lock LOCK torch      # torch and the CUDA packages that it brings
    python -m images.lock LOCK rest       # everything else
    python -m images.lock LOCK operator   # everything but what only the command line reads tables with
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""5 of the trainer's 6 GB, and updated far less often than the rest."""
TABLES = "pyarrow"
"""A third of the operator's packages; imported by the command line for Parquet tables alone."""
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One package of a lock file."""

    name: str
    version: str
    requirement: Requirement
    hashes: tuple[str, ...]
    """SHA-256 of each of its distributions."""
    text: str
    """Its lines in the lock file."""

    @property
    def belongs_to_torch(self) -> bool:
        """Whether it is torch or comes with torch's CUDA build."""
        return TORCH.fullmatch(self.name) is not None

    def applies(self, environment: dict[str, str]) -> bool:
        """Whether its marker holds in an environment (PEP 508 names, such as python_version)."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate({**environment, "extra": ""})


def read_lock(text: str) -> Iterator[Pin]:
    """The pins of a lock file. Raises ValueError where an entry has no exact version or no hash."""
    entries = re.split(r"\n(?=\S)", text.strip())
    for entry in entries:
        if entry.startswith("#"):
            continue
        requirement = Requirement(entry.split("\\\n")[0].strip())
        hashes = tuple(HASH.findall(entry))
        version = str(requirement.specifier).removeprefix("==")
        if not hashes or f"=={version}" != str(requirement.specifier):
            message = f"{requirement.name}: a lock needs one exact version and its hashes"
            raise ValueError(message)
        yield Pin(requirement.name, version, requirement, hashes, entry)


PARTS: dict[str, Callable[[Pin], bool]] = {
    "torch": lambda pin: pin.belongs_to_torch,
    "rest": lambda pin: not pin.belongs_to_torch,
    "operator": lambda pin: pin.name != TABLES,
}


def main(path: str, part: str) -> None:
    """Print one part of a lock file."""
    print("\n".join(pin.text for pin in read_lock(Path(path).read_text()) if PARTS[part](pin)))


if __name__ == "__main__":
    main(*sys.argv[1:])
