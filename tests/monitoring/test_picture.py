"""The picture of the dashboard shows what the dashboard's JSON says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.monitoring.dashboard import Cell, Panel, Target, dashboard_panels
from tests.monitoring.drawing import COLUMNS, UNITS, Series, draw, png

LABELS = {"namespace": "research", "name": "dense", "state": "running", "reason": "Invalid"}
PANEL = Panel("timeseries", "Jobs", Cell(0, 0, 8, 7), targets=(Target("jobs", "{{state}}"),))


@dataclass
class Canned:
    """The same answer to every query; remembers what was asked."""

    found: Sequence[Series]
    start: float = 0.0
    end: float = 600.0
    asked: list[tuple[str, str]] = field(default_factory=list)

    def over_time(self, expression: str) -> Sequence[Series]:
        self.asked.append(("over time", expression))
        return self.found

    def now(self, expression: str) -> Sequence[Series]:
        self.asked.append(("now", expression))
        return self.found


def canned(*values: float) -> Canned:
    times = tuple(60.0 * minute for minute in range(len(values)))
    return Canned([Series(LABELS, times, values)])


def texts(figure: Figure) -> list[str]:
    figure.draw_without_rendering()
    found = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [text.get_text() for text in found if text.get_visible()]


@pytest.mark.parametrize("values", [(1.0, 3.0, 2.0), (0.0,), (math.nan, math.nan), ()])
def test_every_panel_is_drawn_with_its_title_and_asked_what_it_asks(
    values: tuple[float, ...],
) -> None:
    panels = dashboard_panels()
    answers = canned(*values) if values else Canned([])
    figure = draw(panels, answers)
    shown = texts(figure)
    for panel in panels:
        assert (f"▾ {panel.title}" if panel.kind == "row" else panel.title) in shown
    assert sorted(answers.asked) == sorted(
        ("now" if panel.kind == "table" else "over time", target.expression)
        for panel in panels
        for target in panel.targets
    )
    assert png(figure).startswith(b"\x89PNG")


def test_no_panel_leaves_the_page_or_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard_panels():
        cell = panel.cell
        places = {
            (x, y)
            for x in range(cell.x, cell.x + cell.width)
            for y in range(cell.y, cell.y + cell.height)
        }
        assert max(x for x, _ in places) < COLUMNS, panel.title
        assert not places & taken, panel.title
        taken |= places


def test_legends_name_the_labels_of_a_series() -> None:
    assert "running" in texts(draw([PANEL], canned(1.0, 2.0)))


def test_ticks_are_in_the_unit_of_the_panel() -> None:
    shown = texts(draw([replace(PANEL, unit="percentunit", minimum=0)], canned(0.0, 1.0)))
    assert {"0%", "50%", "100%"} <= set(shown)


def test_a_stat_shows_the_last_value_and_its_name() -> None:
    panel = replace(PANEL, kind="stat", targets=(Target("leader", "leaders"),))
    assert {"leaders", "7"} <= set(texts(draw([panel], canned(1.0, 7.0))))


def test_a_table_shows_the_labels_that_its_query_leaves_open() -> None:
    panel = replace(PANEL, kind="table", targets=(Target('x{state="running"}', ""),))
    shown = texts(draw([panel], canned(1.0)))
    assert {"namespace", "research", "reason", "Invalid", "Value", "1"} <= set(shown)
    assert "running" not in shown


@pytest.mark.parametrize("kind", ["timeseries", "stat", "table"])
def test_a_panel_without_data_says_so(kind: str) -> None:
    assert "No data" in texts(draw([replace(PANEL, kind=kind)], Canned([])))


def test_a_line_breaks_where_samples_are_missing() -> None:
    answers = Canned([Series(LABELS, (0.0, 60.0, 300.0, 360.0), (1.0, 1.0, 2.0, 2.0))])
    (axes,) = draw([PANEL], answers).axes
    (line,) = axes.get_lines()
    assert np.isnan(line.get_ydata()).tolist() == [False, False, True, False, False]


def test_a_kind_of_panel_that_cannot_be_drawn_is_named() -> None:
    with pytest.raises(ValueError, match=r"'Jobs' .* 'heatmap'"):
        draw([replace(PANEL, kind="heatmap")], canned(1.0))


def test_a_unit_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ValueError, match=r"'Jobs' .* 'celsius'"):
        draw([replace(PANEL, unit="celsius")], canned(1.0))


@pytest.mark.parametrize(
    ("unit", "value", "written"),
    [
        ("short", 0, "0"),
        ("short", 1500, "1.5 K"),
        ("short", 0.25, "0.25"),
        ("percentunit", 0.125, "12.5%"),
        ("s", 0.0025, "2.5 ms"),
        ("s", 90, "1.5 min"),
        ("h", 0.5, "0.5 h"),
        ("ops", 2, "2 ops/s"),
        ("reqps", 12, "12 req/s"),
        ("bytes", 128 * 2**20, "128 MiB"),
    ],
)
def test_values_are_written_in_their_unit(unit: str, value: float, written: str) -> None:
    assert UNITS[unit](value) == written
