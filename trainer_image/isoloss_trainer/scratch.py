"""The folder for files that a task needs only while it runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isoloss_contract.records import SCRATCH_VARIABLE


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """The folder that SCRATCH_VARIABLE names, or a temporary one that is removed after the block."""
    given = os.environ.get(SCRATCH_VARIABLE)
    if given:
        folder = Path(given)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="isoloss-", ignore_cleanup_errors=True) as name:
        yield Path(name)
