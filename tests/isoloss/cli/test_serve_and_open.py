"""`isoloss watch --serve` and `isoloss open`: the page on this machine, and nothing else."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoloss.cli.serving import PageServer, SweepPage
from isoloss.errors import BadInput
from isoloss.laws import FitOptions, fit_laws, laws_to_json
from isoloss.report import PAGE_POLICY
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.store import Store
from tests.isoloss.cli.test_watch_and_explain import put_kubectl, resource, write_status
from tests.isoloss.progress.small_sweeps import done, ledger, record
from tests.support.command_line import Isoloss
from tests.support.ledgers import write_ledger
from tests.support.planted_runs import planted_runs

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


def pages() -> Iterator[str]:
    yield "<p>one</p>"
    raise BadInput("the store does not answer")


@pytest.fixture
def server() -> Iterator[PageServer]:
    each = pages()
    serving = PageServer(lambda: next(each))
    thread = threading.Thread(target=serving.serve)
    thread.start()
    yield serving
    serving.close()
    thread.join()


def answer(
    server: PageServer, method: str = "GET", path: str = "/", host: str | None = None
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    found = connection.getresponse()
    text = found.read().decode()
    connection.close()
    return found.status, text, dict(found.getheaders())


def test_the_page_is_served_under_a_policy_that_lets_no_script_run(server: PageServer) -> None:
    status, text, headers = answer(server)
    assert (status, text) == (200, "<p>one</p>")
    assert headers["Content-Security-Policy"] == PAGE_POLICY
    assert server.url == f"http://127.0.0.1:{server.port}/"


def test_a_store_that_fails_is_told_and_the_server_goes_on(server: PageServer) -> None:
    assert answer(server)[0] == 200
    assert answer(server)[:2] == (502, "the store does not answer")
    assert answer(server, path="/other")[0] == 404


def test_nothing_can_be_written_and_no_other_site_can_read(server: PageServer) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert answer(server, method)[0] == 501
    assert answer(server, host=f"evil.example:{server.port}")[0] == 403
    assert answer(server, host=f"localhost:{server.port}")[0] == 200


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
    write_ledger(store, over)
    write_status(store, over, ("Ready", "True", "Fitted"))
    now[0] = 4.0
    assert page() is first
    now[0] = 6.0
    last = page()
    assert "Sweep: Fitted: why." in last
    assert 'http-equiv="refresh"' not in last
    now[0] = 20.0
    assert page() is last


def write_fit(store: Store, of: Ledger) -> None:
    """Final laws of all points, as the operator leaves them."""
    laws = fit_laws(planted_runs(), FitOptions(bootstrap_samples=20))
    content = json.dumps(laws_to_json(laws)).encode()
    fit = {
        "version": 1,
        "inputs": "x",
        "ledger_sha256": of.digest,
        "points": len(of.points),
        "laws_sha256": hashlib.sha256(content).hexdigest(),
        "report_written": True,
        "error": "",
    }
    folder = layout.sweep_folder(of.sweep, of.uid)
    store.write(layout.laws_in(folder), content)
    store.write(layout.fit_in(folder), json.dumps(fit).encode())


def test_a_prediction_is_on_the_page_of_its_sweep_and_drawn_again_when_it_changes(
    store: Store,
) -> None:
    over = ledger(done(1), done(2))
    write_ledger(store, over)
    write_fit(store, over)
    stated: dict[str, object] = {
        "kind": "HyperparamPrediction",
        "metadata": {"name": "next"},
        "spec": {"checkpoint": {}, "budget": {"flops": "3e19"}, "targetParameters": 10**9},
    }
    now = [0.0]
    page = SweepPage(store.uri, 5.0, lambda: now[0], lambda: dict(stated))
    in_its_place = page().partition('<h2 id="prediction">')[2].partition("<h2")[0]
    assert (
        "prediction next: status.initialLoss: the checkpoint&#39;s loss is not measured"
        in in_its_place
    )
    stated["status"] = {"initialLoss": {"value": "2.75", "low": "2.74", "high": "2.76"}}
    now[0] = 6.0
    assert '<div class="answer">' in page()


def test_a_taken_port_is_named(server: PageServer) -> None:
    with pytest.raises(BadInput, match=f"--port {server.port}: "):
        PageServer(lambda: "", server.port)


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
    isoloss: Isoloss,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: list[str],
) -> None:
    path = "sweeps/dense-1/report.html"
    store.write(path, b"<h1>dense</h1><script>alert(1)</script>")
    shown = resource(reportUri=store.location(path))
    put_kubectl(tmp_path, monkeypatch, scalingsweep__dense=shown)
    out = tmp_path / "page.html"
    ended = isoloss("open", "scalingsweep/dense", "-n", "research", "--out", out)
    assert (ended.code, ended.out.strip()) == (0, str(out))
    assert opened == [out.as_uri()]
    # What the store had runs nothing: a policy comes before it.
    assert out.read_text().startswith(
        f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">'
    )


def test_a_prediction_without_a_page_of_its_own_opens_its_sweeps(
    isoloss: Isoloss, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("sweeps/dense-1/report.html", b"the sweep")
    store.write("predictions/next-1/report.html", b"the prediction")
    sweep = resource(reportUri=store.location("sweeps/dense-1/report.html"))
    own = resource(reportUri=store.location("predictions/next-1/report.html"))
    for prediction, expected in ((resource(), "the sweep"), (own, "the prediction")):
        put_kubectl(
            tmp_path,
            monkeypatch,
            scalingsweep__dense=sweep,
            hyperparamprediction__next=prediction,
        )
        ended = isoloss("open", "hpred/next", "--json")
        assert Path(ended.document["page"]).read_text().endswith(expected)


def test_a_sweep_without_a_page_says_what_to_do(
    isoloss: Isoloss, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_kubectl(tmp_path, monkeypatch, scalingsweep__dense=resource())
    early = isoloss("open", "scalingsweep/dense")
    assert early.code == 2
    assert "isoloss watch scalingsweep/dense" in early.err
    write_ledger(store, ledger(done(1)))
    stored = isoloss("open", store.uri)
    assert stored.code == 2
    assert "isoloss report draws one" in stored.err


# ------------------------------------------------------------------ report --prediction FILE


def prediction_file(folder: Path, name: str = "prediction.json", **changes: object) -> Path:
    found = {
        "kind": "HyperparamPrediction",
        "spec": {
            "sweepRef": {"name": "dense"},
            "checkpoint": {"uri": "s3://models/dense-1b"},
            "budget": {"tokens": 5_000_000_000},
            "batchSizeMultipleOf": 8,
        },
        "status": {
            "initialLoss": {"value": "2.75", "low": "2.7436", "high": "2.7564"},
            "plannedFlops": "3e19",
            "extrapolation": {"parametersFactor": "3.33333"},
        },
    }
    path = folder / name
    path.write_text(json.dumps(found | changes))
    return path


def test_a_prediction_in_a_file_asks_its_question_without_a_number_typed(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path
) -> None:
    """The same page as with the numbers of its spec and status on the command line."""
    by_file, by_hand = tmp_path / "file.html", tmp_path / "hand.html"
    asked = ("report", planted_laws, "--out", by_file)
    ended = isoloss(*asked, "--prediction", prediction_file(tmp_path), "--json")
    assert ended.code == 0
    numbers = ("--initial-loss", "2.75", "--initial-loss-standard-error", "0.004994")
    more = ("--cpt-flops", "3e19", "--params", "999999000", "--round-to", "8")
    assert isoloss("report", planted_laws, "--out", by_hand, *numbers, *more).code == 0
    answers = [path.read_text().partition('<div class="answer">')[2][:600] for path in
               (by_file, by_hand)]  # fmt: skip
    assert answers[0] == answers[1]
    assert "learning rate<b>" in answers[0]


def test_a_manifest_in_yaml_beside_its_sweep_is_enough_where_it_states_the_loss(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "both.yaml"
    manifest.write_text(
        "kind: ScalingSweep\nmetadata: {name: dense}\n---\nkind: HyperparamPrediction\n"
        'spec: {initialLoss: "2.75", budget: {tokens: 5000000000}, targetParameters: 1000000000}\n'
    )
    out = tmp_path / "page.html"
    ended = isoloss("report", planted_laws, "--out", out, "--prediction", manifest)
    assert ended.code == 0
    assert '<div class="answer">' in out.read_text()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": {}}, "status.initialLoss: the checkpoint's loss is not measured yet"),
        ({"spec": {"initialLoss": "2.7", "budget": {}}, "status": {}}, "spec.budget: give flops"),
        (
            {"spec": {"initialLoss": "2.7", "budget": {"tokens": 5}}, "status": {}},
            "spec.targetParameters",
        ),
        ({"spec": {"initialLoss": "high", "budget": {"flops": "1e19"}}}, "cannot be read"),
        (
            {"spec": {"initialLoss": "2,75", "budget": {"flops": "1e19"}}},
            "spec.initialLoss: '2,75' cannot be read as a number",
        ),
        (
            {"spec": {"initialLoss": "2.75", "budget": "1e19"}},
            "spec.budget: '1e19' has no field flops",
        ),
        (
            {"spec": {"initialLoss": "2.75", "budget": {"flops": 1e19}, "batchSizeMultipleOf": 0}},
            "spec.batchSizeMultipleOf: 0 is not a positive, finite number",
        ),
        (
            {
                "spec": {
                    "initialLoss": "2.75",
                    "budget": {"flops": 1e19},
                    "batchSizeMultipleOf": 1.5,
                }
            },
            "spec.batchSizeMultipleOf: 1.5 is not a whole number",
        ),
        (
            {"spec": {"initialLoss": "2.75", "budget": {"flops": 1e19}, "composition": "Best"}},
            "spec.composition: 'Best' cannot be read: write Measured or Paper",
        ),
        (
            {
                "spec": {
                    "initialLoss": "2.75",
                    "budget": {"flops": 3e19},
                    "targetParameters": 1e9,
                },
                "status": {"learningRate": {"low": "2,5e-4"}},
            },
            "status.learningRate.low: '2,5e-4' cannot be read as a number",
        ),
        ({"kind": "ScalingSweep"}, "holds 0 objects of kind HyperparamPrediction"),
    ],
)
def test_a_file_that_asks_no_answerable_question_names_the_field(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    path = prediction_file(tmp_path, **changes)
    out = tmp_path / "page.html"
    ended = isoloss("report", planted_laws, "--out", out, "--prediction", path)
    assert ended.code == 2
    assert str(path) in ended.err
    assert says in ended.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # To Kubernetes a date is text, one that there is not as well.
        ("a: 2024-13-45", "holds 0 objects of kind HyperparamPrediction"),
        (
            "kind: HyperparamPrediction\nspec:\n  batchSize: 8\n  batchSize: 16\n",
            "neither JSON nor YAML: batchSize is in line 3 already: keep one of them",
        ),
        ("[" * 200_000, "neither JSON nor YAML: its brackets are nested too deeply"),
        ("a: " + "9" * 5000, "neither JSON nor YAML: Exceeds the limit"),
        ('{"a": ' + "9" * 5000 + "}", "neither JSON nor YAML: Exceeds the limit"),
    ],
    ids=["date", "a key twice", "brackets", "number", "number in JSON"],
)
def test_a_file_that_is_neither_json_nor_yaml_is_named(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "prediction.yaml"
    path.write_text(text)
    asked = ("report", planted_laws, "--out", tmp_path / "page.html", "--prediction", path)
    ended = isoloss(*asked, "--json")
    assert ended.code == 2
    assert ended.document["error"]["message"].startswith(f"--prediction {path}: {says}")


def test_an_answer_from_other_laws_than_the_status_has_is_told(
    isoloss: Isoloss, planted_laws: Path, tmp_path: Path
) -> None:
    spec = {"initialLoss": "2.75", "budget": {"flops": "3e19"}, "targetParameters": 10**9}
    stale = {"learningRate": {"value": "9e-1"}}
    path = prediction_file(tmp_path, spec=spec, status=stale)
    ended = isoloss("report", planted_laws, "--out", tmp_path / "x.html", "--prediction", path)
    assert ended.code == 0
    assert "status says a learning rate of 9e-1, which came from other laws" in ended.err
