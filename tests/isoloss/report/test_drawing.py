"""Tables, ellipses and legends of the report."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from isoloss import formatting
from isoloss.report.content import Table
from isoloss.report.contour_figure import ellipse
from isoloss.report.drawing import as_png, as_svg, key, legend_below


def test_an_absent_number_is_a_dash_in_a_table_and_absent_text_is_empty() -> None:
    table = Table(("run", "loss", "note"), (("a", formatting.loss(None), ""),), frozenset({1}))
    assert table.rows == (("a", "–", ""),)


def test_the_ellipse_holds_its_share_of_the_distribution() -> None:
    covariance = np.array([[0.04, 0.015], [0.015, 0.02]])
    centre = np.array([-8.0, 5.0])
    drawn = np.random.default_rng(0).multivariate_normal(centre, covariance, 40_000)
    outline = ellipse(centre, covariance, 0.8)
    offset = outline.T - centre
    radius = np.einsum("ij,jk,ik->i", offset, np.linalg.inv(covariance), offset)
    assert radius == pytest.approx(radius[0])
    inside = (
        np.einsum("ij,jk,ik->i", drawn - centre, np.linalg.inv(covariance), drawn - centre)
        <= radius[0]
    )
    assert inside.mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("inches", [3.0, 5.2, 11.6])
def test_a_legend_stays_within_its_figure(inches: float) -> None:
    figure = Figure(figsize=(inches, 3), layout="constrained")
    figure.subplots()
    entries = [key(words, marker="o") for words in ("run, used", "loss not reached (bound)") * 3]
    legend_below(figure, entries)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_figure_is_the_same_whichever_of_its_formats_is_written_first() -> None:
    """A notebook shows PNGs, and a page has SVGs of the same figures."""

    def drawn() -> Figure:
        figure = Figure(figsize=(6, 3), layout="constrained")
        for axes in figure.subplots(1, 2):
            axes.set(xlabel="training tokens", ylabel="loss (nats per token)")
        return figure

    png_first, svg_first = drawn(), drawn()
    png, svg = as_png(png_first), as_svg(svg_first)
    assert as_svg(png_first) == svg
    assert as_png(svg_first) == png
