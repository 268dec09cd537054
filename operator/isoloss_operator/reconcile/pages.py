"""Pages of resources: what is drawn, and drawing them alongside the fits."""

import time
from typing import Any

from isoloss_operator.decide.fits import PAGE_SECONDS
from isoloss_operator.fitting.fit_jobs import FitJob
from isoloss_operator.reconcile.resource import Resource, Services


def page_of(uid: str) -> str:
    """Key under which the fitter keeps the page of a resource, next to its fit."""
    return f"{uid}/page"


def look_for_page(services: Services, resource: Resource, store_uri: str, path: str) -> None:
    """Once in each store that it may be in: a page from an earlier process says itself what it shows."""
    memory, uri = resource.memory, f"{store_uri}/{path}"
    if memory.page_uri == uri:
        return
    services.fitter.forget(page_of(resource.owner.uid))
    is_there = (resource.body.get("status") or {}).get("reportUri") == uri
    memory.page_shows = services.storage.page_shows(store_uri, path) if is_there else ""
    memory.page_uri = uri


def observed_page(services: Services, resource: Resource) -> dict[str, Any]:
    """The fields page_... of an ObservedResource. One that could not be drawn is none a minute later."""
    page, memory = services.fitter.outcome(page_of(resource.owner.uid)), resource.memory
    seconds, is_drawn = time.monotonic() - memory.page_at, page is not None and page.report_written
    is_lost = page is not None and page.inputs == memory.page_shows and not is_drawn
    return {
        "page_seconds": seconds,
        "page_shows": "" if is_lost and seconds >= PAGE_SECONDS else memory.page_shows,
        "page_drawn": is_drawn,
    }


def draw(services: Services, resource: Resource, job: FitJob) -> None:
    """In the background, in turn with the fits."""
    memory = resource.memory
    services.fitter.start(page_of(resource.owner.uid), resource.key, job)
    memory.page_at, memory.page_shows = time.monotonic(), job.request.inputs
