"""Free ports on the loopback interface, where no proxy must stand in between."""

import json
import os
import random
import socket
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path

from devcluster.files import exclusive, write_private

RANGE = range(20000, 32000)
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
ATTEMPTS = 4
VARIABLES = ("no_proxy", "NO_PROXY")
"""Programs read the one or the other."""
ADDRESSES = ("127.0.0.1", "localhost")
RESERVATIONS = Path(tempfile.gettempdir()) / f"devcluster-ports-{os.getuid()}"
KEPT = "ports.json"
"""File with the ports of the server whose folder it is in."""


class PortTakenError(RuntimeError):
    """Another process has taken a port between its choice and the server's start."""


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def kept_ports(count: int, owner: Path, *, replace_taken: bool = False) -> list[int]:
    """The ports of the server in the folder `owner`: those of its last start, or reserved for the first one.

    With `replace_taken` others are reserved if another process listens on one of them by now.
    """
    path = owner / KEPT
    if path.exists():
        kept: list[int] = json.loads(path.read_text())
        if not replace_taken or all(map(is_free, kept)):
            return kept
    found = reserved_ports(count, owner)
    write_private(path, json.dumps(found))
    return found


def reserved_ports(count: int, owner: Path) -> list[int]:
    """`count` different free ports that nobody else here gets as long as the folder `owner` exists.

    A server that stops and starts again keeps its port: another one that took it meanwhile would
    answer its clients. Raises RuntimeError if the range is exhausted.
    """
    owner.mkdir(parents=True, exist_ok=True)
    with exclusive(RESERVATIONS / "lock"):
        _remove_abandoned()
        found = free_ports(count)
        for port in found:
            (RESERVATIONS / str(port)).write_text(str(owner.absolute()))
    return found


def free_ports(count: int) -> list[int]:
    """`count` different free ports, chosen at random so that two sessions rarely collide.

    Raises RuntimeError if the range is exhausted.
    """
    found: list[int] = []
    ephemeral = _ephemeral()
    candidates = [port for port in RANGE if port not in ephemeral] or list(RANGE)
    for port in random.sample(candidates, len(candidates)):
        if is_free(port) and not _is_reserved(port):
            found.append(port)
        if len(found) == count:
            return found
    message = f"no {count} free ports between {RANGE.start} and {RANGE.stop}"
    raise RuntimeError(message)


def start_on_free_ports(start: Callable[[], None]) -> None:
    """Call `start`, which chooses free ports, again if another process has taken one by then.

    Raises PortTakenError if that happens time and again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return start()
        except PortTakenError:
            continue
    return start()


def _remove_abandoned() -> None:
    """Remove the reservations of folders that are gone; only whoever holds the lock may."""
    for reservation in RESERVATIONS.iterdir():
        if reservation.name.isdigit() and not _is_reserved(int(reservation.name)):
            reservation.unlink(missing_ok=True)


def _is_reserved(port: int) -> bool:
    try:
        return Path((RESERVATIONS / str(port)).read_text()).exists()
    except OSError:
        return False


def _ephemeral() -> range:
    """Ports that outgoing connections get: most begin at 32768, some sandboxes at 16000 or below.

    A client that keeps dialling one of them while its server is down may get it as its source port
    and connect to itself; then the server cannot bind it again.
    """
    try:
        first, last = EPHEMERAL.read_text().split()
    except OSError:
        return range(0)
    return range(int(first), int(last) + 1)


def pass_proxies_by(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and those that it starts reach this machine without the proxy of the environment."""
    given = {name: environment.get(name, "") for name in VARIABLES}
    for name, other in (VARIABLES, VARIABLES[::-1]):
        listed = [each.strip() for each in (given[name] or given[other]).split(",")]
        if "*" not in listed:  # which must stand alone, and is for all addresses
            listed += [each for each in ADDRESSES if each not in listed]
        environment[name] = ",".join(filter(None, listed))
