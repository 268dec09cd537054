"""Files with secrets: for their owner alone, and whole at every moment."""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile


def write_private(path: Path, text: str) -> None:
    """Write a file in one step: a process that runs may read the former one. Folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, delete=False) as scratch:
        scratch.write(text)
    Path(scratch.name).replace(path)
