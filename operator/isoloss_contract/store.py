"""Object storage through fsspec, shared by operator, trainer and command line.

Objects are untrusted: reads are bounded in size and parsed strictly. Callers distinguish three
kinds of errors without looking at a library's exceptions: absent (`NotFound`), unreadable
(`BadRecord`) and everything else (`StoreUnavailable`).

fsspec and tenacity come with the extra `store` and are imported when a `Store` is made, so that the
library reads local tables without them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from isoloss_contract.shared_folders import create_folders

if TYPE_CHECKING:
    from tenacity import Retrying

SCHEMES = ("s3", "gs", "file")
MAX_RECORD_BYTES = 16 * 2**20
"""Far more than any record that isoloss writes."""
MAX_OBJECT_BYTES = 2**20
"""Limit for a JSON object written by others, such as a model's config.json."""

Model = TypeVar("Model", bound=BaseModel)
Answer = TypeVar("Answer")


class StoreError(Exception):
    """Base class of the store's errors; the message names the URI."""


class NotFound(StoreError):
    """There is no object at that URI."""


class BadRecord(StoreError):
    """There is an object, but its content is not what it should be."""


class NewerRecord(StoreError):
    """There is an object of a newer format than this version of isoloss knows."""


class StoreUnavailable(StoreError):
    """The store did not answer: network, credentials, permissions, missing bucket."""


class BadStoreUri(StoreError):
    """The URI itself cannot be used."""


class StoreNotInstalled(StoreError):
    """The packages that reach the store are not installed; the message names the extra."""


def check_uri(uri: str) -> str:
    """Return `uri` without a trailing slash. Raises BadStoreUri for an unusable scheme or bucket."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise BadStoreUri(
            f"{uri}: the scheme must be one of {', '.join(s + '://' for s in SCHEMES)}"
        )
    if parts.scheme != "file" and not parts.netloc:
        raise BadStoreUri(f"{uri}: no bucket")
    if ".." in parts.path.split("/"):
        raise BadStoreUri(f"{uri}: '..' is not allowed")
    return uri.rstrip("/")


class Store:
    """A folder in object storage. Thread-safe; paths are relative to the folder."""

    def __init__(self, uri: str, *, attempts: int = 4) -> None:
        """Raises BadStoreUri, or StoreNotInstalled without the extra `store`."""
        self.uri = check_uri(uri)
        # No listing cache: the operator must see what pods have just written.
        options: dict[str, Any] = {"use_listings_cache": False}
        if self.uri.startswith("s3://"):
            options["config_kwargs"] = {"connect_timeout": 10, "read_timeout": 60}
        elif self.uri.startswith("file://"):
            options = {}
        try:
            from fsspec.core import url_to_fs

            self.filesystem, self._root = url_to_fs(self.uri, **options)
            self._retrying = _retrying(attempts)
        except ImportError as error:
            raise StoreNotInstalled(
                f"{uri}: object storage needs the extra 'store': pip install 'isoloss[store]' "
                f"({error})"
            ) from error

    def location(self, path: str) -> str:
        """The full URI of `path`."""
        return f"{self.uri}/{path}" if path else self.uri

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _ask(self, path: str, call: Callable[[], Answer]) -> Answer:
        """Run `call` with retries; library exceptions become ours here and nowhere else."""
        try:
            return self._retrying(call)
        except FileNotFoundError as error:
            raise NotFound(f"{self.location(path)}: not found") from error
        except Exception as error:
            # botocore, aiohttp and gcsfs share no base class: whatever is left is unavailability.
            detail = str(error) or type(error).__name__
            raise StoreUnavailable(f"{self.location(path)}: {detail[:400]}") from error

    def read(self, path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
        """The bytes at `path`. Raises NotFound, StoreUnavailable, or BadRecord if larger than `max_bytes`."""

        def call() -> bytes:
            with self.filesystem.open(self._path(path), "rb", cache_type="none") as file:
                # A local read allocates the size requested, however small the file.
                size = getattr(file, "size", None)
                limit = max_bytes if size is None else min(max_bytes, size)
                content: bytes = file.read(limit + 1)
                return content

        content = self._ask(path, call)
        if len(content) > max_bytes:
            raise BadRecord(f"{self.location(path)}: larger than {max_bytes} bytes")
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write an object atomically; on a file system by renaming."""

        def call() -> None:
            target = self._path(path)
            if not self.uri.startswith("file://"):
                self.filesystem.pipe_file(target, content)
                return
            create_folders(Path(target).parent)
            temporary = f"{target}.partial"
            self.filesystem.pipe_file(temporary, content)
            self.filesystem.mv(temporary, target)

        self._ask(path, call)

    def read_record(self, path: str, model: type[Model]) -> Model:
        """The record at `path`. Raises NotFound, StoreUnavailable, or BadRecord naming file and field."""
        return parse_record(self.read(path), model, self.location(path))

    def read_json_object(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`, with any keys. Raises NotFound, StoreUnavailable, BadRecord."""
        content = self.read(path, max_bytes=MAX_OBJECT_BYTES)
        return parse_json_object(content, self.location(path))

    def write_record(self, path: str, record: BaseModel) -> None:
        """Write a record as JSON."""
        self.write(path, record.model_dump_json(indent=1).encode())

    def exists(self, path: str) -> bool:
        """Whether there is an object at `path`."""
        return self._ask(path, lambda: bool(self.filesystem.exists(self._path(path))))

    def names(self, path: str) -> list[str]:
        """Sorted names of the objects and folders directly under `path`; [] if there are none."""
        try:
            entries = self._ask(path, lambda: self.filesystem.ls(self._path(path), detail=False))
        except NotFound:
            return []
        base = self._path(path).strip("/")
        names = {entry.strip("/").removeprefix(base).strip("/").split("/")[0] for entry in entries}
        return sorted(names - {""})

    def remove(self, path: str) -> None:
        """Remove an object or folder, if it exists."""
        try:
            self._ask(path, lambda: self.filesystem.rm(self._path(path), recursive=True))
        except NotFound:
            return

    def read_many(
        self, paths: Iterable[str], model: type[Model], *, workers: int = 16
    ) -> dict[str, Model | StoreError]:
        """Read records in parallel. The value of a path that fails is its error."""

        def read_one(path: str) -> Model | StoreError:
            try:
                return self.read_record(path, model)
            except StoreError as error:
                return error

        wanted = list(paths)
        with ThreadPoolExecutor(max_workers=workers) as pool:
            return dict(zip(wanted, pool.map(read_one, wanted), strict=True))


def parse_record(content: bytes, model: type[Model], source: str) -> Model:
    """Parse JSON strictly into `model`. Raises BadRecord naming `source` and the first bad field."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "(document)"
        raise BadRecord(f"{source}: {field}: {first['msg']}") from error


def parse_json_object(content: bytes, source: str) -> dict[str, Any]:
    """Parse one JSON object without NaN or Infinity. Raises BadRecord naming `source`."""
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise BadRecord(f"{source}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRecord(f"{source}: not a JSON object")
    return value


def parse_record_lines(content: bytes, model: type[Model], source: str) -> list[Model]:
    """Parse JSON lines strictly. Raises BadRecord naming `source`, line and field."""
    lines = content.split(b"\n")
    if lines and lines[-1] == b"":
        lines.pop()
    return [
        parse_record(line, model, f"{source}:{number}") for number, line in enumerate(lines, 1)
    ]


def _retrying(attempts: int) -> Retrying:
    """Retries with backoff; one object serves all threads."""
    from tenacity import (
        Retrying,
        retry_if_exception,
        stop_after_attempt,
        wait_exponential_jitter,
    )

    return Retrying(
        stop=stop_after_attempt(attempts),
        wait=wait_exponential_jitter(multiplier=0.2, max=5),
        retry=retry_if_exception(_is_transient),
        reraise=True,
    )


def _is_transient(error: BaseException) -> bool:
    """Whether a retry may help: not for absence, denied permissions or a missing bucket."""
    if isinstance(
        error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError
    ):
        return False
    return not isinstance(error, ValueError | TypeError | json.JSONDecodeError)
