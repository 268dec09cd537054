"""A TCP relay in front of a server that loses answers, stays silent, or refuses connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit


class FaultyProxy:
    """Relays 127.0.0.1:port to the server at `url`. Its faults may be set at any time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)
        self.answers_to_lose = 0
        """That many requests arrive, but their connections end in place of the answers."""
        self.silent = False
        """Connections are taken and nothing is ever said."""
        self.silent_about = b""
        """A request with these bytes is never answered."""
        self.forbids: Callable[[bytes], bool] = lambda request: False
        """Whether a request is answered with status 403, without asking the server."""
        self.requests = 0
        """That came while the proxy was not silent, each in one block at least."""
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on and end those that are open."""
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all open connections: clients keep idle ones for the next request."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if self.silent:
            return
        server = socket.create_connection(self._target)
        self._open.append(server)
        threading.Thread(target=self._relay, args=(client, server, False), daemon=True).start()
        self._relay(server, client, True)

    def _relay(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while block := source.recv(2**16):
                is_answer = answers and not block.startswith(b"HTTP/1.1 100 ")
                if is_answer and self.answers_to_lose > 0:
                    self.answers_to_lose -= 1
                    break
                if self.silent_about and self.silent_about in block and not answers:
                    continue
                self.requests += not answers
                if not answers and self.forbids(block):
                    source.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                    continue
                target.sendall(block)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
