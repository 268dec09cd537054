"""The report on a sweep: laws, evidence and refusals on one self-contained page."""

from isoloss.report.content import PointRow, point_rows
from isoloss.report.page import ReportFigures, draw_figures, png_files, render_report

__all__ = ["PointRow", "ReportFigures", "draw_figures", "png_files", "point_rows", "render_report"]
