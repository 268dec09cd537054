"""Forwards TCP connections: in the place of kube-proxy, for the API server's Service alone; and for meters of bytes."""

import asyncio
import contextlib
import sys
from collections import Counter

CHUNK = 2**18
Address = tuple[str, int]


async def forward(listen: Address, target: Address, traffic: Counter[str]) -> asyncio.Server:
    """Accept connections at `listen` and join each with one to `target`, counting the bytes "sent" there and "received"."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*target, limit=CHUNK)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            _copy(reader, there[1], traffic, "sent"), _copy(there[0], writer, traffic, "received")
        )

    return await asyncio.start_server(serve, *listen, limit=CHUNK)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, traffic: Counter[str], way: str
) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            traffic[way] += len(chunk)
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def _serve(listen: Address, target: Address) -> None:
    await (await forward(listen, target, Counter())).serve_forever()


def main(host: str, port: str, target_host: str, target_port: str) -> None:
    """Forward until killed."""
    asyncio.run(_serve((host, int(port)), (target_host, int(target_port))))


if __name__ == "__main__":
    main(*sys.argv[1:])
