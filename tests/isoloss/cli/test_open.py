"""`isoloss open`: the page that the operator drew, on this machine."""

from pathlib import Path

import pytest

from isoloss.report.content import PAGE_POLICY
from isoloss_contract.store import Store
from tests.isoloss.cli.conftest import PutInCluster
from tests.support.command_line import Isoloss
from tests.support.ledgers import done, ledger, write_ledger
from tests.support.watched import resource


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
