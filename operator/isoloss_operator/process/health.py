"""Serves /healthz, /readyz and /metrics on one port, from threads of its own.

Probes are answered even while the event loop and all workers are busy, and report when they are stuck.
"""

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Check = Callable[[], str]
"""Returns what is wrong in a sentence; empty: nothing."""
PLAIN = "text/plain; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HealthServer:
    """Serves until `stop`."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        healthy: Check,
        ready: Check,
        metrics: Callable[[], bytes],
    ) -> None:
        """Binds the port; 0 takes any free one. Raises OSError if it is in use."""
        pages = {
            "/healthz": lambda: _probe_response(healthy()),
            "/readyz": lambda: _probe_response(ready()),
            "/metrics": lambda: (HTTPStatus.OK, METRICS_TYPE, metrics()),
        }

        class Handler(_Handler):
            answers = pages

        self._server = _Server(address, port, Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Listens at an IPv4 or IPv6 address; at `::` to both families."""

    daemon_threads = True

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        """Bind, to both families where the system can."""
        if self.address_family == socket.AF_INET6 and socket.has_dualstack_ipv6():
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


Response = tuple[HTTPStatus, str, bytes]


def _probe_response(problem: str) -> Response:
    if problem:
        return HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN, f"{problem}\n".encode()
    return HTTPStatus.OK, PLAIN, b"ok\n"


class _Handler(BaseHTTPRequestHandler):
    """Looks up the path."""

    answers: dict[str, Callable[[], Response]]
    timeout = 10

    def do_GET(self) -> None:
        """Answer a GET."""
        answer = self.answers.get(self.path.partition("?")[0])
        status, kind, content = (
            answer() if answer else (HTTPStatus.NOT_FOUND, PLAIN, b"not found\n")
        )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""
