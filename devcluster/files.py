"""Files that several processes share: a lock, and files for their owner alone that are replaced in one step."""

import contextlib
import fcntl
import json
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile


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


def write_private(path: Path, text: str) -> None:
    """Write a file in one step, for its owner alone: a process that runs may read the former one. Folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, delete=False) as scratch:
        scratch.write(text)
    Path(scratch.name).replace(path)


def kept_secrets(path: Path, names: Iterable[str]) -> dict[str, str]:
    """A random text for each name: made once, and read from the file from then on."""
    if not path.exists():
        write_private(path, json.dumps({name: secrets.token_hex(24) for name in names}))
    found: dict[str, str] = json.loads(path.read_text())
    return found
