"""A lock between processes, so that two sessions do not build a tool at the same time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel releases it if this process dies.

    Waits for it, or raises BlockingIOError if `wait` is False and another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Children do not inherit the lock, because Python opens files close-on-exec.
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
