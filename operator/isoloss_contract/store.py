"""Object storage through fsspec, the same for operator, trainer and command line.

What comes from the store is untrusted: reads are bounded in size and parsed strictly. Errors are
of three kinds, so that callers can decide without looking at a library's exceptions: absent
(`NotFound`), unreadable content (`BadRecord`), and everything else (`StoreUnavailable`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from isoloss_contract.shared_folders import create_folders

SCHEMES = ("s3", "gs", "file")
MAX_RECORD_BYTES = 16 * 2**20
"""No record that isoloss writes comes near this size."""
MAX_OBJECT_BYTES = 2**20
"""Of a JSON object that others wrote, such as a model's config.json."""

Model = TypeVar("Model", bound=BaseModel)
Answer = TypeVar("Answer")


class StoreError(Exception):
    """Base of what can go wrong with the store; the message names the URI."""


class NotFound(StoreError):
    """Nothing lies at that URI."""


class BadRecord(StoreError):
    """Something lies there, but it is not what it should be."""


class StoreUnavailable(StoreError):
    """The store could not be asked: network, credentials, rights, missing bucket."""


class BadStoreUri(StoreError):
    """The URI itself can not be used."""


def check_uri(uri: str) -> str:
    """Return `uri` without a trailing slash; BadStoreUri where scheme or bucket is unusable."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise BadStoreUri(
            f"{uri}: the scheme must be one of {', '.join(s + '://' for s in SCHEMES)}"
        )
    if parts.scheme != "file" and not parts.netloc:
        raise BadStoreUri(f"{uri}: names no bucket")
    if ".." in parts.path.split("/"):
        raise BadStoreUri(f"{uri}: '..' is not allowed")
    return uri.rstrip("/")


class Store:
    """A folder in object storage. Thread-safe; paths are relative to the folder."""

    def __init__(self, uri: str, *, attempts: int = 4) -> None:
        self.uri = check_uri(uri)
        self._attempts = attempts
        # No listing cache: the operator must see what pods wrote a moment ago.
        options: dict[str, Any] = {"use_listings_cache": False}
        if self.uri.startswith("s3://"):
            options["config_kwargs"] = {"connect_timeout": 10, "read_timeout": 60}
        elif self.uri.startswith("file://"):
            options = {}
        self.filesystem, self._root = fsspec.core.url_to_fs(self.uri, **options)

    def location(self, path: str) -> str:
        """The full URI of `path`."""
        return f"{self.uri}/{path}" if path else self.uri

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _ask(self, path: str, call: Callable[[], Answer]) -> Answer:
        """Run `call` with retries; library exceptions become ours here and nowhere else."""
        retrying = Retrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential_jitter(multiplier=0.2, max=5),
            retry=retry_if_exception(_is_passing),
            reraise=True,
        )
        try:
            return retrying(call)
        except FileNotFoundError as error:
            raise NotFound(f"{self.location(path)}: not found") from error
        except Exception as error:
            # botocore, aiohttp and gcsfs share no base class; anything here means "could not ask".
            detail = str(error) or type(error).__name__
            raise StoreUnavailable(f"{self.location(path)}: {detail[:400]}") from error

    def read(self, path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
        """The bytes at `path`. Raises NotFound, StoreUnavailable, or BadRecord where larger than `max_bytes`."""

        def call() -> bytes:
            with self.filesystem.open(self._path(path), "rb", cache_type="none") as file:
                # Local files allocate what is asked for, however little there is to read.
                size = getattr(file, "size", None)
                limit = max_bytes if size is None else min(max_bytes, size)
                content: bytes = file.read(limit + 1)
                return content

        content = self._ask(path, call)
        if len(content) > max_bytes:
            raise BadRecord(f"{self.location(path)}: larger than {max_bytes} bytes")
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write an object whole. On a file system by rename, so that no reader sees half of it."""

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
        """Parse the JSON record at `path`. BadRecord names file and field."""
        return parse_record(self.read(path), model, self.location(path))

    def read_json_object(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`, whatever its keys. Raises NotFound, StoreUnavailable, BadRecord."""
        content = self.read(path, max_bytes=MAX_OBJECT_BYTES)
        return parse_json_object(content, self.location(path))

    def write_record(self, path: str, record: BaseModel) -> None:
        """Write a record as JSON."""
        self.write(path, record.model_dump_json(indent=1).encode())

    def exists(self, path: str) -> bool:
        """Whether an object lies at `path`."""
        return self._ask(path, lambda: bool(self.filesystem.exists(self._path(path))))

    def names(self, path: str) -> list[str]:
        """Names of the objects and folders directly under `path`, sorted; [] where nothing is there."""
        try:
            entries = self._ask(path, lambda: self.filesystem.ls(self._path(path), detail=False))
        except NotFound:
            return []
        base = self._path(path).strip("/")
        names = {entry.strip("/").removeprefix(base).strip("/").split("/")[0] for entry in entries}
        return sorted(names - {""})

    def remove(self, path: str) -> None:
        """Remove an object or folder; nothing happens where nothing is there."""
        try:
            self._ask(path, lambda: self.filesystem.rm(self._path(path), recursive=True))
        except NotFound:
            return

    def read_many(
        self, paths: Iterable[str], model: type[Model], *, workers: int = 16
    ) -> dict[str, Model | StoreError]:
        """Read records in parallel; a path's error is its value."""

        def read_one(path: str) -> Model | StoreError:
            try:
                return self.read_record(path, model)
            except StoreError as error:
                return error

        wanted = list(paths)
        with ThreadPoolExecutor(max_workers=workers) as pool:
            return dict(zip(wanted, pool.map(read_one, wanted), strict=True))


def parse_record(content: bytes, model: type[Model], source: str) -> Model:
    """Parse JSON strictly into `model`; BadRecord names `source` and the first wrong field."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "(document)"
        raise BadRecord(f"{source}: {field}: {first['msg']}") from error


def parse_json_object(content: bytes, source: str) -> dict[str, Any]:
    """Parse one JSON object, without NaN and Infinity; BadRecord names `source`."""
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise BadRecord(f"{source}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRecord(f"{source}: not a JSON object")
    return value


def parse_record_lines(content: bytes, model: type[Model], source: str) -> list[Model]:
    """Parse JSON lines strictly; BadRecord names `source`, the line and the field."""
    lines = content.split(b"\n")
    if lines and lines[-1] == b"":
        lines.pop()
    return [
        parse_record(line, model, f"{source}:{number}") for number, line in enumerate(lines, 1)
    ]


def _is_passing(error: BaseException) -> bool:
    """Whether trying again may help: not for absence, refused rights or a missing bucket."""
    if isinstance(
        error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError
    ):
        return False
    return not isinstance(error, ValueError | TypeError | json.JSONDecodeError)
