"""Forwards TCP connections: in the place of kube-proxy, for the API server's Service alone."""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK = 64 * 1024


async def forward(listen: tuple[str, int], target: tuple[str, int]) -> None:
    """Accept connections at `listen` and join each with one to `target`, for ever."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    server = await asyncio.start_server(serve, *listen)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()


def main(host: str, port: str, target_host: str, target_port: str) -> None:
    """Forward until killed."""
    asyncio.run(forward((host, int(port)), (target_host, int(target_port))))


if __name__ == "__main__":
    main(*sys.argv[1:])
