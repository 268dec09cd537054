"""Pages as ever, but for their figures, which take ten times as long as all else about a page."""

from dataclasses import replace
from typing import Any
from unittest import mock

from isoloss.report import page
from isoloss.report.drawing import Figure

BLANK = page.ReportFigures(Figure((1, 1)), Figure((1, 1)), Figure((1, 1)))
"""Without an answer."""
BLANK_ANSWER = replace(BLANK, answer=Figure((1, 1)))


def drawn_empty(
    _laws: Any, _runs: Any, prediction: Any = None, **_options: Any
) -> page.ReportFigures:
    """In place of draw_figures."""
    return replace(BLANK, answer=Figure() if prediction is not None else None)


draw_empty_figures = mock.patch.object(page, "draw_figures", drawn_empty)
"""As long as it is started: for tests that look at no figure."""
