"""`isoloss watch --serve` and `isoloss open`: the page on this machine, and nothing else."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoloss.cli.serving import PageServer, SweepPage
from isoloss.errors import BadInput
from isoloss.report.content import PAGE_POLICY
from isoloss_contract.store import Store
from tests.isoloss.cli.conftest import PutInCluster
from tests.isoloss.progress.small_sweeps import done, ledger, record
from tests.support.command_line import Isoloss
from tests.support.ledgers import write_ledger
from tests.support.watched import resource, write_watched

pytestmark = pytest.mark.usefixtures("without_figures")


def pages() -> Iterator[str]:
    yield "<p>one</p>"
    raise BadInput("the store does not answer")


@pytest.fixture
def server() -> Iterator[PageServer]:
    each = pages()
    serving = PageServer(lambda: next(each))
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()
    thread.join()


def answer(
    server: PageServer, method: str = "GET", path: str = "/", host: str | None = None
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    found = connection.getresponse()
    text = found.read().decode()
    connection.close()
    return found.status, text, dict(found.getheaders())


def test_the_page_is_served_under_a_policy_that_lets_no_script_run(server: PageServer) -> None:
    status, text, headers = answer(server)
    assert (status, text) == (200, "<p>one</p>")
    assert headers["Content-Security-Policy"] == PAGE_POLICY
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_a_store_that_fails_is_told_and_the_server_goes_on(server: PageServer) -> None:
    assert answer(server)[0] == 200
    assert answer(server)[:2] == (502, "the store does not answer")
    assert answer(server, path="/other")[0] == 404


def test_nothing_can_be_written_and_no_other_site_can_read(server: PageServer) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert answer(server, method)[0] == 501
    assert answer(server, host=f"evil.example:{server.server_port}")[0] == 403
    assert answer(server, host=f"localhost:{server.server_port}")[0] == 200


def test_at_the_port_of_http_browsers_name_no_port(server: PageServer) -> None:
    assert answer(server, host="127.0.0.1")[0] == 200


def test_a_browser_that_is_closed_while_the_page_is_drawn_leaves_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked, is_gone = threading.Event(), threading.Event()

    def page() -> str:
        asked.set()
        is_gone.wait(10)
        return "drawn"

    serving = PageServer(page)
    listening = threading.Thread(target=serving.serve_forever)
    listening.start()
    others = set(threading.enumerate())
    browser = socket.create_connection(("127.0.0.1", serving.server_port))
    browser.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{serving.server_port}\r\n\r\n".encode())
    assert asked.wait(10)
    # Closing resets the connection.
    browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    browser.close()
    is_gone.set()
    for answering in set(threading.enumerate()) - others:
        answering.join(10)
    serving.shutdown()
    serving.server_close()
    listening.join()
    assert capsys.readouterr().err == ""


def test_a_running_sweep_has_its_progress_on_a_page_that_loads_again(store: Store) -> None:
    write_ledger(store, ledger(done(1), record(2, rate=2e-3)))
    page = SweepPage(store.uri, 7.0)()
    assert '<meta http-equiv="refresh" content="7">' in page
    assert "2 points: 1 finished, 1 waiting." in page
    assert "Not yet" in page
    assert "Refused" not in page.partition("</style>")[2]


def test_the_page_is_read_again_after_its_seconds_and_drawn_again_after_a_change(
    store: Store,
) -> None:
    now = [0.0]
    write_ledger(store, ledger(done(1), record(2)))
    page = SweepPage(store.uri, 5.0, lambda: now[0])
    first = page()
    over = ledger(done(1), done(2))
    write_watched(store, over, ("Ready", "True", "Fitted"))
    now[0] = 4.0
    assert page() is first
    now[0] = 6.0
    last = page()
    assert "Sweep: Fitted: why." in last
    assert 'http-equiv="refresh"' not in last
    now[0] = 20.0
    assert page() is last


def test_a_prediction_is_not_served_and_its_page_is_named(isoloss: Isoloss) -> None:
    ended = isoloss("watch", "hpred/next", "--serve")
    assert "--serve: serves the page of a sweep: isoloss open hpred/next opens" in ended.error


def test_a_taken_port_is_named(server: PageServer) -> None:
    with pytest.raises(BadInput, match=f"--port {server.server_port}: "):
        PageServer(lambda: "", server.server_port)


# ----------------------------------------------------------------------------------- open


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def open_it(url: str) -> bool:
        found.append(url)
        return True

    monkeypatch.setattr("isoloss.cli.opening.webbrowser.open", open_it)
    return found


def test_the_page_that_a_status_names_is_fetched_and_opened(
    isoloss: Isoloss, store: Store, tmp_path: Path, opened: list[str], put_in_cluster: PutInCluster
) -> None:
    path = "sweeps/dense-1/report.html"
    store.write(path, b"<h1>dense</h1><script>alert(1)</script>")
    shown = resource(reportUri=store.location(path))
    put_in_cluster(scalingsweep__dense=shown)
    out = tmp_path / "page.html"
    ended = isoloss("open", "scalingsweep/dense", "-n", "research", "--out", out)
    assert (ended.code, ended.out.strip()) == (0, str(out))
    assert opened == [out.as_uri()]
    # What the store had runs nothing: a policy comes before it.
    assert out.read_text().startswith(
        f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">'
    )


def test_a_prediction_without_a_page_of_its_own_opens_its_sweeps(
    isoloss: Isoloss, store: Store, put_in_cluster: PutInCluster
) -> None:
    store.write("sweeps/dense-1/report.html", b"the sweep")
    store.write("predictions/next-1/report.html", b"the prediction")
    sweep = resource(reportUri=store.location("sweeps/dense-1/report.html"))
    own = resource(reportUri=store.location("predictions/next-1/report.html"))
    for prediction, expected in ((resource(), "the sweep"), (own, "the prediction")):
        put_in_cluster(scalingsweep__dense=sweep, hyperparamprediction__next=prediction)
        ended = isoloss("open", "hpred/next", "--json")
        assert Path(ended.document["page"]).read_text().endswith(expected)


def test_a_sweep_without_a_page_says_what_to_do(
    isoloss: Isoloss, store: Store, put_in_cluster: PutInCluster
) -> None:
    put_in_cluster(scalingsweep__dense=resource())
    assert "isoloss watch scalingsweep/dense" in isoloss("open", "scalingsweep/dense").error
    write_ledger(store, ledger(done(1)))
    assert "isoloss report draws one" in isoloss("open", store.uri).error
