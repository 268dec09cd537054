"""The report on a sweep: laws, evidence and refusals on one self-contained page.

Names resolve on first use, because drawing imports matplotlib and most commands need only the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoloss.report.content import PAGE_POLICY, PointRow, point_rows

if TYPE_CHECKING:
    from isoloss.report.page import ReportFigures, draw_figures, png_files, render_report

NOT_IN_EVERY_REPORT = ("surface.png", "search.png")
"""Figures that some reports lack."""

__all__ = [
    "NOT_IN_EVERY_REPORT",
    "PAGE_POLICY",
    "PointRow",
    "ReportFigures",
    "draw_figures",
    "png_files",
    "point_rows",
    "render_report",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from isoloss.report import page

    return getattr(page, name)
