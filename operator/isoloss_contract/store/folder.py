"""Objects as files on a volume that several users, who need not trust each other, write to.

Below `anchor` no symbolic link is followed: each folder is opened from the one above it, so that a
link which a tenant puts anywhere there cannot lead the operator to its own files or to another
tenant's. What is neither file nor folder (a named pipe would block its reader) is refused too.

On a shared volume the operator and the tasks run as different users. A folder created with the
usual umask of 022 would admit its creator alone, so new folders are group-writable wherever the
folder above is. So the administrator decides, by the mode of the volume's root: 2770 with a group
that both sides have (fsGroup or supplementalGroups) shares everything below it, and 0755 shares
nothing. The setgid bit, which keeps the group, is inherited from the parent by the kernel.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from isoloss_contract.store import limits
from isoloss_contract.store.backend import Patience, check_names
from isoloss_contract.store.errors import Changed, Unusable

_PARTIAL = ".partial"
_LOCK = ".lock"
_LOCK_SECONDS = 10.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderBackend:
    """The folder `root`; links are followed down to `anchor`, a folder above it or itself, and not below.

    Without an anchor links are followed everywhere: for folders that nobody is protected from.
    """

    def __init__(self, root: Path, anchor: Path | None, patience: Patience) -> None:
        self._anchor = anchor or root
        self._links = 0 if anchor is None else os.O_NOFOLLOW
        self._above = root.relative_to(self._anchor).parts
        self._lock_seconds = min(_LOCK_SECONDS, patience.attempt_seconds)

    def read(self, path: str, max_bytes: int) -> tuple[bytes, str]:
        """Content and its SHA-256."""
        with self._folder_of(path) as (folder, name), self._opened(folder, name) as file:
            if os.fstat(file.fileno()).st_size > max_bytes:
                raise Unusable(f"larger than {max_bytes} bytes")
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise Unusable(f"larger than {max_bytes} bytes")
        return content, hashlib.sha256(content).hexdigest()

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """Without reading the rest."""
        with self._folder_of(path) as (folder, name), self._opened(folder, name) as file:
            return os.pread(file.fileno(), size, start)

    def write(self, path: str, content: bytes) -> None:
        """Write by renaming a complete file."""
        with self._folder_of(path, create=True) as (folder, name):
            _replace(folder, name, content)

    def write_if(self, path: str, content: bytes, version: str | None, mark: str) -> str:
        """Write by renaming under a lock that all writers with a condition take; no answer can be lost."""
        with (
            self._folder_of(path, create=True) as (folder, name),
            _locked(folder, name, self._lock_seconds),
        ):
            if _digest(folder, name) != version:
                raise Changed
            _replace(folder, name, content)
        return hashlib.sha256(content).hexdigest()

    def version_marked(self, path: str, mark: str) -> str | None:
        """Never: a write that failed has not taken place."""
        return None

    def stamp(self, path: str) -> str:
        """Inode, size and time of change."""
        with self._folder_of(path) as (folder, name):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"

    def names(self, path: str) -> list[str]:
        """Without the files of writes under way."""
        parts = [*self._above, *_parts(path)]
        names: list[str] = []
        with self._descended(parts, create=False) as folder, os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                check_names(len(names))
        internal = (_PARTIAL, _LOCK)
        return [each for each in names if not (each.startswith(".") and each.endswith(internal))]

    def remove(self, path: str) -> None:
        """A file or link itself, or all in a folder."""
        try:
            with self._folder_of(path) as (folder, name):
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    shutil.rmtree(name, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return

    def _opened(self, folder: int, name: str) -> BinaryIO:
        return _opened(folder, name, self._links)

    @contextmanager
    def _folder_of(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The folder that holds `path`, and its name there."""
        parts = [*self._above, *_parts(path)]
        with self._descended(parts[:-1], create=create) as folder:
            yield folder, parts[-1]

    @contextmanager
    def _descended(self, parts: list[str], *, create: bool) -> Iterator[int]:
        """A descriptor of the folder `parts` below the anchor."""
        if create:
            _create_anchor(self._anchor)
        folder = os.open(self._anchor, _FOLDER)
        try:
            for number, part in enumerate(parts, 1):
                shown = "/".join(parts[:number])
                below = _open_folder(folder, part, shown, self._links, create=create)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts or "." in parts:
        raise Unusable("'.' and '..' are not allowed in a path")
    return parts


def _create_anchor(anchor: Path) -> None:
    missing = []
    while not anchor.exists():
        missing.append(anchor)
        anchor = anchor.parent
    for each in reversed(missing):
        with _closing(os.open(each.parent, _FOLDER)) as above:
            _make_folder(above, each.name)


def _make_folder(above: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=above)
    except FileExistsError:
        return  # created by another process meanwhile, which sets its mode
    with _closing(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)) as made:
        _share(above, made)


def _share(above: int, made: int) -> None:
    """Make what was created in the folder `above` group-writable if that is: the umask applies at creation."""
    mode = stat.S_IMODE(os.fstat(made).st_mode)
    if os.fstat(above).st_mode & stat.S_IWGRP and not mode & stat.S_IWGRP:
        with suppress(PermissionError):  # another user's, who has shared it or not
            os.fchmod(made, mode | stat.S_IWGRP)


def _open_folder(above: int, name: str, shown: str, links: int, *, create: bool) -> int:
    try:
        return os.open(name, _FOLDER | links, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
    except OSError:
        _refuse_link(above, name, shown)
        if stat.S_ISREG(_kind(above, name)):
            raise Unusable(f"{shown} is a file where a folder should be") from None
        raise
    _make_folder(above, name)
    return _open_folder(above, name, shown, links, create=False)


def _opened(folder: int, name: str, links: int) -> BinaryIO:
    """The file, if it is one. Raises Unusable for a link, a folder or a device."""
    try:
        descriptor = os.open(
            name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links, dir_fd=folder
        )
    except OSError:
        _refuse_link(folder, name, name)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unusable("not a file")
    return os.fdopen(descriptor, "rb")


def _refuse_link(folder: int, name: str, shown: str) -> None:
    if stat.S_ISLNK(_kind(folder, name)):
        raise Unusable(f"{shown} is a symbolic link, which a store may not contain")


def _kind(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _replace(folder: int, name: str, content: bytes) -> None:
    """Write a new file under a name that nobody can foresee, then rename it; a link there is replaced."""
    partial = f".{name[:100]}.{secrets.token_hex(8)}{_PARTIAL}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
    try:
        with os.fdopen(os.open(partial, flags, 0o666, dir_fd=folder), "wb") as file:
            file.write(content)
            file.flush()
            # A node that loses power must not leave an empty file under the name.
            os.fsync(file.fileno())
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        _unlink(folder, partial)
        # Without the name of the partial file, which is another one each time.
        raise OSError(error.errno, error.strerror) from error
    except BaseException:
        _unlink(folder, partial)
        raise


def _unlink(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _digest(folder: int, name: str) -> str | None:
    """SHA-256 of the file; None if nothing is there.

    Raises Changed if it is larger than any object that is written with a condition: whoever may write to the volume can
    put a file there that takes an hour to read.
    """
    try:
        with _opened(folder, name, os.O_NOFOLLOW) as file:
            content = file.read(limits.LARGEST.max_bytes + 1)
    except FileNotFoundError:
        return None
    if len(content) > limits.LARGEST.max_bytes:
        raise Changed
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _locked(folder: int, name: str, seconds: float) -> Iterator[None]:
    """The lock of one object, across processes. Raises TimeoutError: whoever may write can also hold it."""
    lock = os.open(f".{name}{_LOCK}", os.O_RDWR | os.O_CREAT | _FILE, 0o660, dir_fd=folder)
    with _closing(lock):
        _share(folder, lock)
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process holds the lock .{name}{_LOCK}") from None
                time.sleep(0.02)
        yield


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
