"""The images' lock files: read for the SBOM, and divided so that torch gets a layer of its own.

Needs `packaging` alone. As a command (in a Dockerfile):

    python -m images.lock LOCK torch      # torch and the CUDA packages that it brings, on standard output
    python -m images.lock LOCK rest       # everything else
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
"""5 of the trainer's 6 GB, and updated far less often than the rest."""
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


def main(path: str, part: str) -> None:
    """Print one part of a lock file."""
    wanted = {"torch": True, "rest": False}[part]
    pins = read_lock(Path(path).read_text())
    print("\n".join(pin.text for pin in pins if pin.belongs_to_torch == wanted))


if __name__ == "__main__":
    main(*sys.argv[1:])
