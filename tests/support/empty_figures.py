"""Pages as ever, but for their figures, which take ten times as long as all else about a page."""

from __future__ import annotations

from typing import Any
from unittest import mock

from isoloss.report import page
from isoloss.report.drawing import Figure


def _empty(
    *_drawn: Any, search: Any = None, probed: Any = None, **_options: Any
) -> page.ReportFigures:
    return page.ReportFigures(
        laws=Figure(),
        contours=Figure(),
        trajectories=Figure(),
        trajectories_remembered=False,
        search=Figure() if search is not None else None,
        probes=Figure() if probed is not None else None,
    )


draw_empty_figures = mock.patch.object(page, "draw_figures", _empty)
"""As long as it is started: for tests that look at no figure."""
