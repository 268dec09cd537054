"""The report: one self-contained HTML file, and its figures as PNG.

The template escapes everything that a user or the store can have written (names, messages, notes), the
XML writer escapes it in the figures, and the page's own policy lets no script run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from isoloss import formatting
from isoloss.laws import Laws, Prediction, Run, refused_parts
from isoloss.progress.moment import Moment
from isoloss.progress.picture import cost_line, headline
from isoloss.progress.sweep_state import SweepState
from isoloss.published import PublishedOptimum
from isoloss.report import content, predicted
from isoloss.report.content import PAGE_POLICY, PointRow
from isoloss.report.contour_figure import plot_contours
from isoloss.report.drawing import as_png
from isoloss.report.inline_svg import inline_svg
from isoloss.report.law_figure import plot_laws
from isoloss.report.probed import Probed
from isoloss.report.probes_figure import probes_figure, probes_table
from isoloss.report.search_figure import search_map, search_sentence, search_table
from isoloss.report.surface_figure import surface_optima
from isoloss.report.trajectory_figure import plot_trajectories
from isoloss.savings import SearchCost

MAX_POINT_ROWS = 400
"""The ledger has all rows; a page with more is slow to open and to print."""

NOT_IN_EVERY_REPORT = ("surface.png", "search.png")
"""Figures that some reports lack."""

_ENVIRONMENT = Environment(
    loader=PackageLoader("isoloss.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["headings"] = lambda body: re.findall(r'<h2 id="([a-z-]+)">(.*?)</h2>', body)
"""(anchor, heading) of each section of a rendered body."""


@dataclass(frozen=True)
class ReportFigures:
    """The figures of the report, drawn once and saved in either format."""

    laws: Figure
    contours: Figure
    trajectories: Figure
    trajectories_remembered: bool
    """Whether the trajectories show only the tokens to each iso-loss level, without the runs."""
    surface: Figure | None = None
    """None if the joint surface was refused."""
    search: Figure | None = None
    """None if no search chose the points."""
    probes: Figure | None = None
    """None if no probes are shown."""


def draw_figures(
    laws: Laws,
    runs: Sequence[Run],
    prediction: Prediction | None = None,
    *,
    initial_loss: float | None = None,
    search: SweepState | None = None,
    probed: Probed | None = None,
) -> ReportFigures:
    """All figures. Without runs, the trajectories are drawn from the contours of the laws."""
    if prediction is not None:
        prediction = predicted.on_the_laws(prediction, laws.sequence_length)
    return ReportFigures(
        laws=plot_laws(laws, prediction, initial_loss=initial_loss),
        contours=plot_contours(laws),
        trajectories=plot_trajectories(laws, runs),
        trajectories_remembered=not runs,
        surface=surface_optima(laws),
        search=search_map(search) if search is not None else None,
        probes=probes_figure(probed) if probed is not None else None,
    )


def png_files(figures: ReportFigures) -> dict[str, bytes]:
    """File name -> PNG."""
    named = {
        "laws.png": figures.laws,
        "surface.png": figures.surface,
        "iso-loss.png": figures.contours,
        "trajectories.png": figures.trajectories,
        "search.png": figures.search,
    }
    return {name: as_png(figure) for name, figure in named.items() if figure is not None}


def render_report(
    laws: Laws,
    runs: Sequence[Run],
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    points: Sequence[PointRow] | None = None,
    prediction: Prediction | None = None,
    no_answer: Sequence[str] = (),
    initial_loss: float | None = None,
    opinions: Sequence[PublishedOptimum] = (),
    savings: SearchCost | None = None,
    warnings: Sequence[str] = (),
    figures: ReportFigures | None = None,
    search: SweepState | None = None,
    probed: Probed | None = None,
    watched: Moment | None = None,
) -> str:
    """The report as HTML.

    `facts` are shown under the title. Without `points` the runs are listed, without `savings` the cost
    is left out, and without `figures` they are drawn here. `no_answer` is why there is no prediction
    although one was asked for. `search` is the sweep whose points a
    sequential search chose, `probed` the probes of the prediction. `watched` is the sweep whose progress
    is shown: until it is over, a refused law is not yet there.
    """
    drawn = figures or draw_figures(
        laws,
        runs,
        prediction,
        initial_loss=initial_loss,
        search=search or (watched.state if watched is not None else None),
        probed=probed,
    )
    is_over = watched is None or watched.is_over
    rows = content.point_rows(runs, laws) if points is None else tuple(points)
    return _ENVIRONMENT.get_template("report.html.j2").render(
        title=title,
        policy=PAGE_POLICY,
        facts={**(facts or {}), **content.fit_facts(laws, runs, version("isoloss"))},
        status=content.status_word(laws) if is_over else "Provisional",
        is_over=is_over,
        watched=watched,
        progress=_progress(watched) if watched is not None else (),
        level=f"{laws.options.interval:.0%}",
        laws=laws,
        formatting=formatting,
        laws_table=content.laws_table(laws, is_over=is_over),
        refusals=refused_parts(laws),
        held_out=content.held_out_table(laws),
        optima=content.optima_table(laws),
        points=content.points_table(rows, MAX_POINT_ROWS) if rows else None,
        excluded=laws.excluded[:MAX_POINT_ROWS],
        warnings=list(dict.fromkeys([*warnings, *laws.warnings])),
        prediction=prediction,
        no_answer=tuple(no_answer),
        **(_told(laws, prediction, initial_loss, opinions) if prediction is not None else {}),
        saving=content.saving_sentence(savings) if savings else None,
        search=search,
        searched=search_table(search) if search is not None else None,
        search_sentence=search_sentence(search) if search is not None else "",
        probed=probed,
        probes=probes_table(probed) if probed is not None else None,
        remembered=drawn.trajectories_remembered,
        images={
            name: Markup(inline_svg(figure, name))  # the XML writer escaped it
            for name, figure in (
                ("laws", drawn.laws if content.any_law(laws) else None),
                ("surface", drawn.surface),
                ("search", drawn.search),
                ("probes", drawn.probes),
                ("contours", drawn.contours),
                ("trajectories", drawn.trajectories),
            )
            if figure is not None
        },
    )


def _told(
    laws: Laws,
    answer: Prediction,
    initial_loss: float | None,
    opinions: Sequence[PublishedOptimum],
) -> dict[str, Any]:
    """What the page says of a prediction, by the template's names."""
    unit = predicted.unit_of_batches(answer, laws.sequence_length)
    return {
        "unit_of_batches": unit,
        "prediction_facts": predicted.prediction_facts(answer, initial_loss, unit),
        "alternatives": predicted.alternatives_table(answer, opinions, laws.sequence_length),
        "interval_costs": predicted.interval_costs(laws, answer),
        "outside_band": predicted.outside_band(laws, answer),
    }


def _progress(watched: Moment) -> tuple[str, ...]:
    """Points by stage, cost, and what is waited for, in sentences."""
    told = [] if watched.state is None else [headline(watched.state), cost_line(watched.state)]
    lines = (line.rstrip(".") for line in (*told, *watched.waits_for.splitlines()))
    return tuple(f"{line[0].upper()}{line[1:]}." for line in lines if line)
