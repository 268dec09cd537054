"""Objects in S3. Conditional writes are If-Match and If-None-Match of PutObject.

Real S3 answers 412 if the condition does not hold, 409 if another request to the object is
under way, and 404 if an object to be replaced is gone: all three mean that it must be read
again. The role needs s3:GetObject in addition to s3:PutObject. botocore's and s3fs' own retries are off,
because they multiply: `Store` retries.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from botocore.exceptions import ClientError, FlexibleChecksumError
from botocore.handlers import add_expect_header
from fsspec.asyn import sync
from s3fs import S3FileSystem

from isoloss_contract.store.backend import Patience, check_names
from isoloss_contract.store.bounded_answers import BoundedSession, read_at_most
from isoloss_contract.store.errors import Changed, Refused, Unusable

Answer = TypeVar("Answer")
Client = Any
_ABSENT = ("NoSuchKey", "404")
_UNTRUE = ("PreconditionFailed", "412")
_CHANGED = (*_UNTRUE, "ConditionalRequestConflict", "409")
_BEYOND = ("InvalidRange", "416")
_DENIED = 403
_FOREVER = (
    "AccessDenied",
    "403",
    "MethodNotAllowed",
    "NotImplemented",
    "ObjectLocked",
    "InvalidRequest",
)
"""Codes of single objects in a deletion of several, which another try does not change."""
_UNKNOWN = 501
"""The status of a request that a server does not know, and will not know next time."""
_WITHOUT_CONDITIONS = ("NotImplemented", "501", "InvalidArgument", "InvalidRequest", "400")
"""Codes by which servers that know no conditional writes refuse one."""
_AT_ONCE = 1000
"""Objects that one request may delete."""
_AGAIN = ("408", "409", "429", "RequestTimeout", "BadDigest", "IncompleteBody", "OperationAborted")
"""Codes of 4xx after which another try may succeed; those of checksums tell of damage on the way."""
_CONNECTIONS = 128
"""Connections of all stores together, which share one client: what some hold without an answer must not keep others
out."""
_PART_BYTES = 2**24
"""Part size of a multipart upload: each is copied while the interpreter is held. s3fs takes parts from twice as much
on."""
_MARK = "isoloss-write"


class S3Backend:
    """The folder `root`, BUCKET/PREFIX."""

    def __init__(self, root: str, patience: Patience) -> None:
        self._bucket, _, self._prefix = root.partition("/")
        self._seconds = patience.attempt_seconds
        self._files = S3FileSystem(
            # No listing cache: the operator must see what pods have just written.
            use_listings_cache=False,
            config_kwargs={
                "connect_timeout": patience.connect_seconds,
                "read_timeout": patience.silence_seconds,
                "max_pool_connections": _CONNECTIONS,
                "retries": {"total_max_attempts": 1},
                "http_session_cls": BoundedSession,
            },
        )
        self._files.retries = 1

    def read(self, path: str, max_bytes: int) -> tuple[bytes, str]:
        """Content and ETag."""

        async def get(client: Client) -> tuple[bytes, str]:
            answer = await client.get_object(Bucket=self._bucket, Key=self._key(path))
            async with answer["Body"] as body:
                if answer.get("ContentLength", 0) > max_bytes:
                    raise Unusable(f"larger than {max_bytes} bytes")
                return await _at_most(body, max_bytes), answer.get("ETag", "")

        try:
            return self._ask(get, path)
        except FlexibleChecksumError:
            pass  # on the way, or where it lies: a second reading tells
        try:
            return self._ask(get, path)
        except FlexibleChecksumError as error:
            raise Unusable(f"damaged: {error}") from error

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """Without a checksum: S3 has those of whole objects only."""

        async def get(client: Client) -> bytes:
            answer = await client.get_object(
                Bucket=self._bucket, Key=self._key(path), Range=_range(start, size)
            )
            async with answer["Body"] as body:
                return await _at_most(body, size)

        try:
            return self._ask(get, path)
        except Refused as error:
            if _code(error.__cause__) in _BEYOND:
                return b""
            raise

    def write(self, path: str, content: bytes) -> None:
        """In parts if it is large. Any buffer whose slices are bytes will do."""
        body = content if len(content) >= 2 * _PART_BYTES else bytes(content)

        async def put() -> None:
            await self._client()
            await self._files._pipe_file(self._path(path), body, chunksize=_PART_BYTES)

        self._wait(put)

    def write_if(self, path: str, content: bytes, version: str | None, mark: str) -> str:
        """One PutObject under a condition."""
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}

        async def put(client: Client) -> str:
            try:
                answer = await client.put_object(
                    Bucket=self._bucket, Key=self._key(path), Body=content,
                    Metadata={_MARK: mark}, **condition,
                )  # fmt: skip
            except ClientError as error:
                # A missing bucket is NoSuchBucket.
                if _code(error) in (*_CHANGED, *_ABSENT):
                    raise Changed from error
                raise
            return cast("str", answer["ETag"])

        try:
            return self._ask(put)
        except Changed as error:
            if version is None and _code(error.__cause__) in _UNTRUE:
                self._tell_hidden(path)
            raise
        except Refused as error:
            if _code(error.__cause__) not in _WITHOUT_CONDITIONS:
                raise
            raise Refused(
                f"{error}. If it accepts other writes, it lacks conditional writes (If-Match, If-None-Match of PutObject), "
                "which keep two writers from overwriting each other: use another store, or a newer version of it"
            ) from error.__cause__

    def _tell_hidden(self, path: str) -> None:
        """Raises Refused where nothing is, though an object was refused as there: trying again would go on for ever."""
        try:
            self._head(path)
        except FileNotFoundError as error:
            raise Refused(
                "is not there, and the store refuses to make it: of a bucket that keeps versions, remove the delete marker of "
                "this object (ListObjectVersions shows it)"
            ) from error

    def version_marked(self, path: str, mark: str) -> str | None:
        """The version, if the object's metadata has the mark."""
        try:
            facts = self._head(path)
        except FileNotFoundError:
            return None
        return str(facts["ETag"]) if facts.get("Metadata", {}).get(_MARK) == mark else None

    def stamp(self, path: str) -> str:
        """The ETag; some gateways have none for files that were not written through them."""
        facts = self._head(path)
        return str(facts.get("ETag") or f"{facts['LastModified']}-{facts['ContentLength']}")

    def _head(self, path: str) -> dict[str, Any]:
        async def head(client: Client) -> dict[str, Any]:
            return cast(
                "dict[str, Any]",
                await client.head_object(Bucket=self._bucket, Key=self._key(path)),
            )

        return self._ask(head, path)

    def names(self, path: str) -> list[str]:
        """A thousand per request."""
        folder = f"{self._key(path)}/".lstrip("/")

        async def pages(client: Client) -> list[str]:
            query = {"Bucket": self._bucket, "Prefix": folder, "Delimiter": "/"}
            found: list[str] = []
            tokens: set[str] = set()
            while True:
                page = await client.list_objects_v2(**query)
                found += (each["Prefix"] for each in page.get("CommonPrefixes", ()))
                found += (each["Key"] for each in page.get("Contents", ()))
                check_names(len(found))
                if not page.get("IsTruncated"):
                    return found
                token = page["NextContinuationToken"]
                if token in tokens:
                    raise Unusable("its listing repeats a page")
                tokens.add(token)
                query["ContinuationToken"] = token

        return [name.removeprefix(folder).rstrip("/") for name in self._ask(pages)]

    def remove(self, path: str) -> None:
        """An object, or all below a folder."""
        key = self._key(path)
        keys = self._ask(lambda client: self._keys(client, key))
        for start in range(0, len(keys), _AT_ONCE):
            self._remove(keys[start : start + _AT_ONCE])

    def _remove(self, keys: list[str]) -> None:
        try:
            self._ask(lambda client: self._delete(client, keys))
        except Refused as error:
            if _status(error.__cause__) in (0, _DENIED):
                raise
            # Some servers know no deletion of several objects, or not in this form.
            for key in keys:
                self._ask(partial(self._delete_one, key=key))

    async def _keys(self, client: Client, key: str) -> list[str]:
        """The key itself and all below it, so far as objects have them."""
        query, found = {"Bucket": self._bucket, "Prefix": key}, list[str]()
        async for page in client.get_paginator("list_objects_v2").paginate(**query):
            names = (each["Key"] for each in page.get("Contents", ()))
            found += (name for name in names if name == key or name.startswith(f"{key}/"))
            check_names(len(found))
        return found

    async def _delete(self, client: Client, keys: list[str]) -> None:
        """Delete several objects. The answer is 200 even if none of them may be."""
        named = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = await client.delete_objects(Bucket=self._bucket, Delete=named)
        errors = [each for each in answer.get("Errors", ()) if each.get("Code") not in _ABSENT]
        if not errors:
            return
        first = errors[0]
        message = (
            f"{len(errors)} of {len(keys)} objects were not removed, the first {first.get('Key')}: {first.get('Code')}: "
            f"{first.get('Message')}"
        )
        if all(each.get("Code") in _FOREVER for each in errors):
            raise Refused(message)
        raise OSError(message)

    async def _delete_one(self, client: Client, *, key: str) -> None:
        await client.delete_object(Bucket=self._bucket, Key=key)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}".strip("/")

    def _path(self, path: str) -> str:
        return f"{self._bucket}/{self._key(path)}"

    def _ask(
        self, call: Callable[[Client], Coroutine[Any, Any, Answer]], read: str | None = None
    ) -> Answer:
        """`read`: the path of an object that is only read, which may be absent if it is denied."""

        async def asked() -> Answer:
            return await call(await self._client())

        try:
            return self._wait(asked)
        except Refused as error:
            if read is not None and _status(error.__cause__) == _DENIED:
                self._tell_denied_from_absent(read, error)
            raise

    def _tell_denied_from_absent(self, path: str, denied: Refused) -> NoReturn:
        """Who may not list a bucket gets 403 for what is not there, and from an older Ceph everybody."""

        async def is_listed(client: Client) -> bool:
            key = self._key(path)
            page = await client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
            return any(each["Key"] == key for each in page.get("Contents", ()))

        try:
            listed = self._ask(is_listed)
        except Refused:
            raise Refused(
                f"{denied}. S3 also answers this for an object that does not exist if the permission "
                "s3:ListBucket is missing"
            ) from denied.__cause__
        if listed:
            raise denied
        raise FileNotFoundError from denied

    async def _client(self) -> Client:
        await self._files.set_session()
        client = await self._files.get_s3(self._bucket)
        # A server that never says "100 Continue" would be waited for without any limit.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        client.meta.events.register(
            "before-call.s3.GetObject", _without_checksum_of_whole, unique_id=_MARK
        )
        return client

    def _wait(self, call: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        try:
            return cast("Answer", sync(self._files.loop, call, timeout=self._seconds))
        except (ClientError, OSError) as error:
            # s3fs has exceptions of its own for botocore's.
            cause = error if isinstance(error, ClientError) else error.__cause__
            if not isinstance(cause, ClientError):
                raise
            if _code(cause) in _ABSENT:
                raise FileNotFoundError from cause
            status = _status(cause)
            is_final = 400 <= status < 500 or status == _UNKNOWN
            if is_final and not {_code(cause), str(status)} & {*_AGAIN}:
                raise Refused(str(cause)) from cause
            raise cause from None


def _without_checksum_of_whole(params: dict[str, Any], **_: Any) -> None:
    """Of a part no checksum is asked for, nor heeded: some servers send the whole object's with it."""
    if "Range" in params["headers"]:
        params["headers"].pop("x-amz-checksum-mode", None)
        params["context"].get("checksum", {}).pop("response_algorithms", None)


async def _at_most(body: Any, max_bytes: int) -> bytes:
    """All of an object. Raises Unusable if it is longer."""
    content = await read_at_most(body, max_bytes)
    if content is None:
        raise Unusable(f"larger than {max_bytes} bytes")
    return content


def _range(start: int, size: int) -> str:
    return f"bytes={start}-{start + size - 1}"


def _code(error: BaseException | None) -> str:
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: BaseException | None) -> int:
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
