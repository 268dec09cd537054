"""Pages as ever, but for their figures, which take ten times as long as all else about a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from isoloss.report import page
from isoloss.report.drawing import Figure

BLANK = page.ReportFigures(Figure((1, 1)), Figure((1, 1)), Figure((1, 1)), False)
"""Without any of a search or probes."""


def drawn_empty(
    *_drawn: Any, search: Any = None, probed: Any = None, **_options: Any
) -> page.ReportFigures:
    """In place of draw_figures."""
    return replace(
        BLANK,
        search=Figure() if search is not None else None,
        probes=Figure() if probed is not None else None,
    )


draw_empty_figures = mock.patch.object(page, "draw_figures", drawn_empty)
"""As long as it is started: for tests that look at no figure."""
