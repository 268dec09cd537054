"""Pages of resources: what is drawn, and drawing them alongside the fits."""

from __future__ import annotations

import time
from typing import Any

from isoloss_operator.fitting.fit_jobs import FitJob
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.services import Services


def page_of(uid: str) -> str:
    """Key under which the fitter keeps the page of a resource, next to its fit."""
    return f"{uid}/page"


def observed_page(services: Services, resource: Resource) -> dict[str, Any]:
    """The fields page_... of an ObservedResource."""
    page = services.fitter.outcome(page_of(resource.owner.uid))
    return {
        "page_seconds": time.monotonic() - resource.memory.page_at,
        "page_shows": resource.memory.page_shows,
        "page_drawn": page is not None and page.report_written,
    }


def draw(services: Services, resource: Resource, job: FitJob) -> None:
    """In the background, in turn with the fits."""
    memory = resource.memory
    services.fitter.start(page_of(resource.owner.uid), resource.key, job)
    memory.page_at, memory.page_shows = time.monotonic(), job.request.inputs
