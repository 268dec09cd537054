"""Where a task keeps files that are worth nothing once it has ended."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isoloss_contract.records import SCRATCH_VARIABLE


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """The folder that the environment names, which stays, or one that goes when the block ends."""
    given = os.environ.get(SCRATCH_VARIABLE)
    if given:
        folder = Path(given)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="isoloss-", ignore_cleanup_errors=True) as name:
        yield Path(name)
