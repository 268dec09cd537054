"""A lock between processes: two sessions must neither build a tool nor start a plane twice."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel frees it if we die.

    Waits for it, or raises BlockingIOError where another holds it. The standard library alone, because tools are built before anything is installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Our children must not inherit the lock: Python opens files close-on-exec.
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
