"""Free ports on the loopback interface."""

from __future__ import annotations

import random
import socket

# Below Linux's ephemeral range (32768 and up). A client that keeps dialling a port in that range
# while its server is down may get the same port as its source port and connect to itself; then the
# server cannot bind it again.
RANGE = range(20000, 32000)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different free ports, chosen at random so that two sessions rarely collide.

    Raises RuntimeError if the range is exhausted.
    """
    found: list[int] = []
    for port in random.sample(RANGE, len(RANGE)):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    message = f"no {count} free ports between {RANGE.start} and {RANGE.stop}"
    raise RuntimeError(message)
