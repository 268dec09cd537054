"""Objects in Google Cloud Storage. Conditional writes are ifGenerationMatch, with 0 for "none there".

gcsfs repeats each request six times by itself; here it asks once, because `Store` retries and has
to know whether an earlier try went unanswered.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from aiohttp import ClientTimeout
from fsspec.asyn import sync
from gcsfs import GCSFileSystem
from gcsfs.retry import HttpError

from isoloss_contract.store.backend import Patience, check_names
from isoloss_contract.store.errors import Changed, Refused, Unusable

Answer = TypeVar("Answer")
_ask_once = getattr(GCSFileSystem._request, "__wrapped__", GCSFileSystem._request)
_OBJECT = "b/{}/o/{}"
_MARK = "isoloss-write"
_BEYOND = 416
"""The object ends before the range."""
_LATER = (401, 408, 429)
"""The statuses of 4xx by which a server asks to be asked again, 401 with a new token."""


class GsBackend:
    """The folder `root`, BUCKET/PREFIX."""

    def __init__(self, root: str, patience: Patience) -> None:
        self._bucket, _, self._prefix = root.partition("/")
        self._seconds = patience.attempt_seconds
        self._known_plain: dict[str, dict[str, str | None]] = {}
        """States of objects that parts were read of, by path, so that each part costs one request."""
        self._files = GCSFileSystem(
            use_listings_cache=False,
            requests_timeout=ClientTimeout(
                total=None,
                sock_connect=patience.connect_seconds,
                sock_read=patience.silence_seconds,
            ),
        )

    def read(self, path: str, max_bytes: int) -> tuple[bytes, str]:
        """Content and generation."""

        async def get() -> tuple[bytes, str]:
            facts = await self._facts(path)
            if int(facts.get("size", 0)) > max_bytes:
                raise Unusable(f"larger than {max_bytes} bytes")
            content = await self._content(path, _plain(facts))
            return content, str(facts["generation"])

        return self._wait(get)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """Without reading the rest."""
        headers = {"Range": f"bytes={start}-{start + size - 1}"}

        async def get() -> bytes:
            state = self._known_plain.get(path) or _plain(await self._facts(path))
            self._known_plain.pop(path, None)  # until it is known to be still so
            content = await self._content(path, state, headers=headers)
            self._known_plain[path] = state
            return content

        try:
            return self._wait(get)
        except Refused as error:
            if isinstance(error.__cause__, HttpError) and error.__cause__.code == _BEYOND:
                return b""
            raise

    def write(self, path: str, content: bytes) -> None:
        """In parts if it is large."""
        self._wait(lambda: self._files._pipe_file(f"{self._bucket}/{self._key(path)}", content))

    def write_if(self, path: str, content: bytes, version: str | None, mark: str) -> str:
        """One upload under a condition."""
        facts = json.dumps({"name": self._key(path), "metadata": {_MARK: mark}})
        head = f"--{mark}\r\nContent-Type: application/json\r\n\r\n{facts}\r\n"
        head += f"--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n"
        body = head.encode() + content + f"\r\n--{mark}--\r\n".encode()

        async def put() -> str:
            try:
                answer = await self._ask(
                    "POST", f"{self._files._location}/upload/storage/v1/b/{self._bucket}/o",
                    data=body, headers={"Content-Type": f"multipart/related; boundary={mark}"},
                    uploadType="multipart", ifGenerationMatch=version or "0",
                )  # fmt: skip
            except FileExistsError as error:  # gcsfs' word for status 412
                raise Changed from error
            return str(json.loads(answer)["generation"])

        return self._wait(put)

    def version_marked(self, path: str, mark: str) -> str | None:
        """The version, if the object's metadata has the mark."""
        try:
            facts = self._wait(lambda: self._facts(path))
        except FileNotFoundError:
            return None
        return str(facts["generation"]) if facts.get("metadata", {}).get(_MARK) == mark else None

    def stamp(self, path: str) -> str:
        """The generation."""
        return str(self._wait(lambda: self._facts(path))["generation"])

    def names(self, path: str) -> list[str]:
        """A thousand per request."""
        folder = f"{self._key(path)}/".lstrip("/")

        async def pages() -> list[str]:
            query: dict[str, str] = {"prefix": folder, "delimiter": "/"}
            found: list[str] = []
            while True:
                try:
                    answer = await self._ask("GET", "b/{}/o", self._bucket, **query)
                except FileNotFoundError as error:  # a folder that is not there has no names
                    raise Refused(f"there is no bucket {self._bucket}") from error
                page = json.loads(answer)
                found += page.get("prefixes", ())
                found += (each["name"] for each in page.get("items", ()))
                check_names(len(found))
                if "nextPageToken" not in page:
                    return found
                query["pageToken"] = page["nextPageToken"]

        return [name.removeprefix(folder).rstrip("/") for name in self._wait(pages)]

    def remove(self, path: str) -> None:
        """An object, or all below a folder."""
        try:
            target = f"{self._bucket}/{self._key(path)}"
            self._wait(lambda: self._files._rm(target, recursive=True))
        except FileNotFoundError:
            return

    async def _facts(self, path: str) -> dict[str, Any]:
        """The object's metadata."""
        answer = await self._ask("GET", _OBJECT, self._bucket, self._key(path))
        return cast("dict[str, Any]", json.loads(answer))

    async def _content(self, path: str, state: dict[str, str | None], **options: Any) -> bytes:
        """The object in that state. Changed in between, the answer is 412, and the next try asks for the new one."""
        return await self._ask(
            "GET", _OBJECT, self._bucket, self._key(path), alt="media", **state, **options
        )

    async def _ask(self, method: str, path: str, *names: str, **options: Any) -> bytes:
        _, _, _, content = await _ask_once(self._files, method, path, *names, **options)
        return cast("bytes", content)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}".strip("/")

    def _wait(self, call: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        try:
            return cast("Answer", sync(self._files.loop, call, timeout=self._seconds))
        except HttpError as error:
            if (
                error.code is not None
                and 400 <= int(error.code) < 500
                and error.code not in _LATER
            ):
                raise Refused(str(error)) from error
            raise
        except (OSError, ValueError) as error:  # gcsfs' words for statuses 403 and 400
            if str(error).startswith(("Forbidden: ", "Bad Request: ")):
                raise Refused(str(error)) from error
            raise


def _plain(facts: dict[str, Any]) -> dict[str, str | None]:
    """The condition that the object is still as `facts` say, which are of one that is read as it is stored.

    Others are refused: they would be decompressed whole, whatever their limit and the range asked for. Nothing of ours
    is stored so. The encoding can be changed without a new generation.
    """
    if encoding := facts.get("contentEncoding"):
        raise Unusable(f"is stored with Content-Encoding {str(encoding)[:40]}: store it without")
    return {
        "ifGenerationMatch": str(facts["generation"]),
        "ifMetagenerationMatch": facts.get("metageneration"),
    }
