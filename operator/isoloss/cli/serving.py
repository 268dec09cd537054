"""`isoloss watch --serve`: the page of a sweep on this machine, read-only, drawn again as the sweep goes on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from isoloss.errors import BadInput
from isoloss.laws import Laws, fit_laws
from isoloss.progress.moment import Moment
from isoloss.progress.sweep_reading import StoredSweepReader
from isoloss.report.content import PAGE_POLICY
from isoloss.report.page import render_report
from isoloss.runs import RunSet
from isoloss.stored_sweeps import open_sweep, sweep_runs

ADDRESS: Final = "127.0.0.1"


class SweepPage:
    """The page of a sweep in the store, drawn when it is asked for, at most once in `seconds`.

    A page that takes seconds to draw is drawn once for all that ask, and only if something has changed.
    """

    def __init__(
        self,
        uri: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the sweep. Raises BadInput if that fails."""
        self._reader = StoredSweepReader(uri)
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._moment = self._reader.read()
        self._read_at, self._page = clock(), ""

    def __call__(self) -> str:
        """HTML. Raises BadInput if nothing was ever drawn and the store cannot be read."""
        with self._lock:
            is_new = not self._page
            if self._clock() - self._read_at >= self._seconds:
                self._read_at = self._clock()
                before, self._moment = self._moment, self._reader.read()
                is_new = is_new or before != self._moment
            if is_new:
                self._page = self._drawn(self._moment)
            return self._page

    def _drawn(self, moment: Moment) -> str:
        sweep = open_sweep(self._reader.uri)
        try:
            found = sweep_runs(sweep)
        except BadInput as error:  # progress and laws are worth showing without the trajectories
            found = RunSet((), (f"no trajectories: {error}",))
        state = moment.state
        assert state is not None  # it was read from the store
        return render_report(
            self._reader.laws or _no_laws(),
            found.runs,
            title=f"{state.ledger.namespace}/{state.ledger.sweep}",
            facts={"sweep": sweep.uri},
            search=state if state.searches else None,
            watched=moment,
            refresh_seconds=None if moment.is_over else self._seconds,
            # Of a running sweep most points have no run yet.
            warnings=found.warnings if moment.is_over or not found.runs else (),
        )


def _no_laws() -> Laws:
    """What there is before the first fit: every law is still to come."""
    return fit_laws((), provisional=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of /; there is no other method and no other path."""

    server: PageServer
    server_version, sys_version = "isoloss", ""

    def do_GET(self) -> None:
        """Send the page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Send its head."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in (ADDRESS, "localhost"):
            # Another site's name for this address: its scripts must not read the page.
            self._send(HTTPStatus.FORBIDDEN, f"open http://{ADDRESS}/", with_body=with_body)
        elif self.path.partition("?")[0] != "/":
            self._send(HTTPStatus.NOT_FOUND, "the page is at /", with_body=with_body)
        else:
            try:
                self._send(HTTPStatus.OK, self.server.page(), with_body=with_body)
            except BadInput as error:
                self._send(HTTPStatus.BAD_GATEWAY, str(error), with_body=with_body)

    def _send(self, status: HTTPStatus, text: str, *, with_body: bool) -> None:
        content = text.encode()
        kind = "text/html" if status is HTTPStatus.OK else "text/plain"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", PAGE_POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal has the address and no more."""


class PageServer(ThreadingHTTPServer):
    """Serves one page at http://127.0.0.1:PORT/ to browsers of this machine."""

    def __init__(self, page: Callable[[], str], port: int = 0) -> None:
        """Listen; 0 takes a free port. Raises BadInput if the port is taken."""
        self.page = page
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise BadInput(f"--port {port}: {error.strerror}") from error

    @property
    def url(self) -> str:
        """For the browser."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a browser that was closed, or loaded the page again, while it was drawn."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
