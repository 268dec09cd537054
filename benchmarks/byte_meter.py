"""Forwards TCP connections to a local port and counts the bytes of both directions.

    python -m benchmarks.byte_meter PORT

A process of its own, so that it takes no time of what it measures. Prints its port; then, for every
line on its standard input, a JSON object of what was sent to PORT and received from it.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter

from devcluster.container_node.forwarder import forward


class Meter:
    """A meter's process, seen from the benchmark."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.byte_meter", str(port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self._line())

    def read(self) -> Counter[str]:
        """Bytes "sent" and "received" since it started."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counter(json.loads(self._line()))

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


async def serve(port: int) -> None:
    """Forward until standard input ends."""
    traffic = Counter[str]()
    server = await forward(("127.0.0.1", 0), ("127.0.0.1", port), traffic)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(traffic), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
