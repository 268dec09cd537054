"""`Store`: a folder in object storage, whatever its kind.

Objects are untrusted: reads are bounded in size and parsed strictly. Callers distinguish three
kinds of errors without looking at a library's exceptions: absent (`NotFound`), unreadable
(`BadRecord`) and everything else (`StoreUnavailable`).

What reaches S3 and Google Cloud Storage comes with the extra `store` and is imported when a `Store`
is made, so that the library reads local tables without it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from isoloss_contract.store import errors, limits
from isoloss_contract.store.backend import Backend, Patience
from isoloss_contract.store.circuit import Circuit, NotAsked, check_time, is_timeout
from isoloss_contract.store.parsing import Model, parse_json_object, parse_record

if TYPE_CHECKING:
    from tenacity import Retrying

PART_BYTES = 2**26
"""Of what is read in parts: a request costs little beside so much."""
SCHEMES = ("s3", "gs", "file")
_LOCAL = "file://"

Answer = TypeVar("Answer")


def check_uri(uri: str) -> str:
    """Return `uri` without a trailing slash. Raises BadStoreUri for an unusable scheme or bucket."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise errors.BadStoreUri(
            f"{uri}: the scheme must be one of {', '.join(s + '://' for s in SCHEMES)}"
        )
    if parts.scheme != "file" and not parts.netloc:
        raise errors.BadStoreUri(f"{uri}: no bucket")
    if ".." in parts.path.split("/"):
        raise errors.BadStoreUri(f"{uri}: '..' is not allowed")
    return uri.rstrip("/")


class Store:
    """A folder in object storage. Thread-safe; paths are relative to the folder."""

    def __init__(
        self,
        uri: str,
        patience: Patience | None = None,
        *,
        anchor: str = "",
        follow_links: bool = False,
        circuit: Circuit | None = None,
    ) -> None:
        """On a file system, links are followed down to the folder `anchor`, `uri` itself by default.

        With `follow_links` they are followed everywhere, as a reader of its own folders may. While
        `circuit` holds the store for down, calls raise StoreUnavailable at once.

        Raises BadStoreUri, or StoreNotInstalled without the extra `store`.
        """
        self.uri = check_uri(uri)
        self._circuit = circuit
        patience = patience or Patience()
        try:
            self._backend = _backend(
                self.uri, patience, None if follow_links else anchor or self.uri
            )
            self._retrying = _retrying(patience)
        except ImportError as error:
            raise errors.StoreNotInstalled(
                f"{uri}: object storage needs isoloss with the extra 'store' "
                f"(pip install '.[store]' in a checkout): {error}"
            ) from error

    def location(self, path: str) -> str:
        """The full URI of `path`."""
        return f"{self.uri}/{path}" if path else self.uri

    def _ask(self, path: str, call: Callable[[], Answer]) -> Answer:
        """Run `call` with retries; library exceptions become ours here and nowhere else."""
        try:
            return self._retrying(lambda: self._try(call))
        except FileNotFoundError as error:
            raise errors.NotFound(f"{self.location(path)}: not found") from error
        except errors.Unusable as error:
            raise errors.BadRecord(f"{self.location(path)}: {error}") from error
        except errors.Changed as error:
            raise errors.WriteConflict(f"{self.location(path)}: another has written it") from error
        except (errors.Refused, PermissionError) as error:
            raise errors.StoreRefused(f"{self.location(path)}: {str(error)[:600]}") from error
        except Exception as error:
            # botocore, aiohttp and gcsfs share no base class: whatever is left is unavailability.
            detail = str(error) or type(error).__name__
            if type(error).__name__ == "NoCredentialsError":
                detail += ": set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise errors.StoreUnavailable(f"{self.location(path)}: {detail[:400]}") from error

    def _try(self, call: Callable[[], Answer]) -> Answer:
        check_time()
        if self._circuit is None:
            return call()
        answers = (FileNotFoundError, errors.Unusable, errors.Changed)
        with self._circuit.call(answers, refusals=(errors.Refused, PermissionError)):
            return call()

    def read(self, path: str, *, max_bytes: int = limits.LARGEST.max_bytes) -> bytes:
        """The bytes at `path`. Raises NotFound, StoreUnavailable, or BadRecord if larger than `max_bytes`."""
        return self.read_versioned(path, max_bytes=max_bytes)[0]

    def read_versioned(
        self, path: str, *, max_bytes: int = limits.LARGEST.max_bytes
    ) -> tuple[bytes, str]:
        """The bytes at `path` and their version, which only `write_if` understands. Raises as `read`."""
        return self._ask(path, lambda: self._backend.read(path, max_bytes))

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """`size` bytes from `start`. Raises NotFound, StoreUnavailable, or BadRecord if it ends before."""

        def call() -> bytes:
            content = self._backend.read_range(path, start, size)
            if len(content) != size:
                raise errors.Unusable(f"ends before byte {start + size}")
            return content

        return self._ask(path, call)

    def write(self, path: str, content: bytes) -> None:
        """Write an object atomically; on a file system by renaming."""
        self._ask(path, lambda: self._backend.write(path, content))

    def write_if(self, path: str, content: bytes, version: str | None) -> str:
        """Write an object that still has `version`, or, for None, that is not there; its new version.

        Of several writers with one version, one wins; the others get WriteConflict and must read
        again. After StoreUnavailable the write may or may not have taken place, and may yet: read
        again and compare before concluding anything. On a file system this excludes other calls
        of `write_if` only, not `write`.
        """
        mark = secrets.token_hex(16)

        def call() -> str:
            try:
                return self._backend.write_if(path, content, version, mark)
            except errors.Changed:
                # By an earlier try, whose answer was lost? HTTP libraries also repeat a PUT unasked.
                written = self._backend.version_marked(path, mark)
                if written is None:
                    raise
                return written

        return self._ask(path, call)

    def stamp(self, path: str) -> str:
        """Something that changes whenever the object at `path` is replaced, found without reading it.

        Raises NotFound, StoreUnavailable or BadRecord.
        """
        return self._ask(path, lambda: self._backend.stamp(path))

    def parts(self, path: str) -> Iterator[bytes]:
        """The bytes at `path` in parts of PART_BYTES, for what does not fit into memory; each is retried by itself.

        Raises as `read_range`, and StoreUnavailable after the last if they are not all of one object.
        """
        stamp, start = self.stamp(path), 0
        while part := self._ask(path, partial(self._backend.read_range, path, start, PART_BYTES)):
            yield part
            start += len(part)
        if self.stamp(path) != stamp:
            raise errors.StoreUnavailable(f"{self.location(path)}: was replaced while it was read")

    def read_record(self, path: str, model: type[Model]) -> Model:
        """The record at `path`. Raises NotFound, StoreUnavailable, or BadRecord naming file and field."""
        return parse_record(self.read(path), model, self.location(path))

    def read_json_object(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`, such as a config.json, with any keys. Raises NotFound, StoreUnavailable, BadRecord."""
        limit = limits.MODEL_CONFIG
        content = self.read(path, max_bytes=limit.max_bytes)
        return parse_json_object(content, self.location(path), limit)

    def write_record(self, path: str, record: BaseModel) -> None:
        """Write a record as JSON."""
        self.write(path, record.model_dump_json(indent=1).encode())

    def exists(self, path: str) -> bool:
        """Whether there is an object at `path`."""
        try:
            self.stamp(path)
        except errors.NotFound:
            return False
        return True

    def names(self, path: str) -> list[str]:
        """Sorted names of the objects and folders directly under `path`; [] if there are none."""
        try:
            found = self._ask(path, lambda: self._backend.names(path))
        except errors.NotFound:
            return []
        return sorted(set(found) - {""})

    def remove(self, path: str) -> None:
        """Remove an object or folder, if it exists."""
        self._ask(path, lambda: self._backend.remove(path))

    def read_many(
        self, paths: Iterable[str], model: type[Model], *, workers: int = 16
    ) -> dict[str, Model | errors.StoreError]:
        """Read records in parallel. The value of a path that fails is its error."""

        def read_one(path: str) -> Model | errors.StoreError:
            try:
                return self.read_record(path, model)
            except errors.StoreError as error:
                return error

        wanted = list(paths)
        with ThreadPoolExecutor(max_workers=workers) as pool:
            return dict(zip(wanted, pool.map(read_one, wanted), strict=True))


def _backend(uri: str, patience: Patience, anchor: str | None) -> Backend:
    scheme, _, root = uri.partition("://")
    if scheme == "file":
        from isoloss_contract.store.folder import FolderBackend

        anchored = None if anchor is None else Path(anchor.removeprefix(_LOCAL) or "/")
        return FolderBackend(Path(root), anchored, patience)
    if scheme == "gs":
        from isoloss_contract.store.gs import GsBackend

        return GsBackend(root, patience)
    from isoloss_contract.store.s3 import S3Backend

    return S3Backend(root, patience)


def _retrying(patience: Patience) -> Retrying:
    """Retries with growing pauses; one object serves all threads."""
    from tenacity import (
        Retrying,
        retry_if_exception,
        stop_after_attempt,
        wait_exponential_jitter,
    )

    return Retrying(
        stop=stop_after_attempt(patience.attempts),
        wait=wait_exponential_jitter(multiplier=0.2, max=patience.longest_pause_seconds),
        retry=retry_if_exception(lambda error: _is_transient(error, patience)),
        reraise=True,
    )


def _is_transient(error: BaseException, patience: Patience) -> bool:
    """Whether a retry may help: not for absence, denied permissions or a missing bucket."""
    if isinstance(
        error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError
    ):
        return False
    if isinstance(error, errors.Unusable | errors.Changed | errors.Refused | NotAsked):
        return False
    if is_timeout(error) and not patience.retry_timeouts:
        return False
    return not isinstance(error, ValueError | TypeError | json.JSONDecodeError)
