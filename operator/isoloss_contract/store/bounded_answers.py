"""What an S3 server sends apart from the content of objects (errors, listings, receipts), limited in length.

aiobotocore reads all of that into memory before anything can look at its length: an error without end took the
process with it, and with the process every tenant's sweeps.
"""

from typing import Any, Final

from aiobotocore.httpsession import AIOHTTPSession

MAX_BYTES: Final = 4 * 2**20
"""A page of a thousand names of 1,024 bytes takes 3.3 MB if every character is escaped."""
PART: Final = 2**20


class AnswerTooLong(Exception):
    """Whatever it says, nobody can read it; the object that was asked for may be sound."""


class BoundedSession(AIOHTTPSession):
    """Reads answers that are no object's content by itself, up to MAX_BYTES."""

    async def send(self, request: Any) -> Any:
        """As the base class does it. Raises AnswerTooLong."""
        is_object = request.stream_output
        request.stream_output = True  # or the base class reads all of it
        answer = await super().send(request)
        if not is_object or answer.status_code >= 300:
            answer._content = await _bounded(answer.raw)
        return answer


async def read_at_most(stream: Any, max_bytes: int) -> bytes | None:
    """All that `stream` has, whatever length was announced; None if it is more. A checksum is checked at its end."""
    content = bytearray()
    while part := await stream.read(PART):
        content += part
        if len(content) > max_bytes:
            return None
    return bytes(content)


async def _bounded(response: Any) -> bytes:
    try:
        content = await read_at_most(response.content, MAX_BYTES)
        if content is None:
            raise AnswerTooLong(f"the server's answer is longer than {MAX_BYTES} bytes")
    except BaseException:
        response.close()
        raise
    response.release()
    return content
