"""What a pass knows of the page of an answer: where it is, and whether it could be drawn."""

from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_operator.cluster.client import PREDICTION, ResourceKey
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.fits import PAGE_SECONDS, FitOutcome
from isoloss_operator.reconcile import pages
from isoloss_operator.reconcile.memory import Memory
from isoloss_operator.reconcile.pages import look_for_page, observed_page
from isoloss_operator.reconcile.resource import Resource

HERE, PATH = "s3://here", "predictions/dense-8b-uid-p/report.html"


class Fitter:
    """Knows the outcome of one page."""

    def __init__(self, drawn: FitOutcome | None = None) -> None:
        self.drawn = drawn

    def outcome(self, _: str) -> FitOutcome | None:
        return self.drawn

    def forget(self, _: str) -> None:
        self.drawn = None


def prediction(**memory: Any) -> Resource:
    """With a page, as its status says."""
    owner = Owner(PREDICTION, "research", "dense-8b", "uid-p")
    key = ResourceKey(PREDICTION, "research", "dense-8b")
    body = {"status": {"reportUri": f"{HERE}/{PATH}"}}
    return Resource(key, owner, body, Memory("uid-p", **memory))


def services(fitter: Fitter) -> Any:
    return SimpleNamespace(
        fitter=fitter, storage=SimpleNamespace(page_shows=lambda uri, _: f"that of {uri}")
    )


def test_a_page_from_an_earlier_process_is_looked_for_once() -> None:
    resource, shell = prediction(), services(Fitter())
    look_for_page(shell, resource, HERE, PATH)
    assert observed_page(shell, resource)["page_shows"] == "that of s3://here"
    resource.memory.page_shows = "the next"
    look_for_page(shell, resource, HERE, PATH)
    assert observed_page(shell, resource)["page_shows"] == "the next"


def test_a_page_in_the_store_of_a_former_sweep_is_none_in_that_of_the_next() -> None:
    """status.reportUri would name a page that was never drawn."""
    drawn = FitOutcome(inputs="i", laws=None, report_written=True)
    resource, shell = (
        prediction(page_uri=f"{HERE}/{PATH}", page_shows="i"),
        services(Fitter(drawn)),
    )
    look_for_page(shell, resource, HERE, PATH)
    assert observed_page(shell, resource)["page_drawn"]
    look_for_page(shell, resource, "s3://there", PATH)
    found = observed_page(shell, resource)
    assert (found["page_shows"], found["page_drawn"]) == ("", False)


@pytest.mark.parametrize(("seconds", "shows"), [(PAGE_SECONDS - 1, "i"), (PAGE_SECONDS, "")])
def test_a_page_that_could_not_be_drawn_is_drawn_again_a_minute_later(
    monkeypatch: pytest.MonkeyPatch, seconds: float, shows: str
) -> None:
    """Else a prediction that is ready would have none until its answer changes."""
    monkeypatch.setattr(pages, "time", SimpleNamespace(monotonic=lambda: seconds))
    resource, shell = prediction(page_at=0.0, page_shows="i"), services(Fitter())
    shell.fitter.drawn = FitOutcome(inputs="i", laws=None)
    assert observed_page(shell, resource)["page_shows"] == shows
