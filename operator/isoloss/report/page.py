"""The report: one self-contained HTML file, and its figures as PNG.

The template escapes everything that a user or the store can have written (names, messages, notes), the
XML writer escapes it in the figures, and the page's own policy lets no script run.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from isoloss import formatting
from isoloss.laws import Laws, Prediction, Run, refused_parts
from isoloss.published import PublishedOptimum
from isoloss.report import content, predicted
from isoloss.report.answer_figure import answer_figure, probes_table
from isoloss.report.content import PAGE_POLICY, PointRow
from isoloss.report.contour_figure import plot_contours
from isoloss.report.drawing import as_png
from isoloss.report.inline_svg import inline_svg
from isoloss.report.law_figure import plot_laws
from isoloss.report.probed import Probed
from isoloss.report.trajectory_figure import STRONG, plot_trajectories
from isoloss.savings import SearchCost
from isoloss.status import View, cost_line, headline, search_lines, size_lines, waited_for

MAX_POINT_ROWS = 400
"""The ledger has all rows; a page with more is slow to open and to print."""

NOT_IN_EVERY_REPORT = ("answer.png", "iso-loss.png", "trajectories.png")
"""Figures that some reports lack."""
NOTHING_TO_FIT = "Nothing to fit"
"""In place of the status of laws, on the page of a sweep whose points all lie around answers of predictions."""
SHOWN_CAVEATS = 3
"""The others are folded."""

_PROVISIONAL = ("The sweep is still running: every number here can change.",)

_ENVIRONMENT = Environment(
    loader=PackageLoader("isoloss.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["headings"] = lambda body: re.findall(r'<h2 id="([a-z-]+)">(.*?)</h2>', body)
"""(anchor, heading) of each section of a rendered body."""


def draw_figures(
    laws: Laws,
    runs: Sequence[Run],
    prediction: Prediction | None = None,
    *,
    initial_loss: float | None = None,
    probed: Probed | None = None,
    known_optimum: tuple[float, float] | None = None,
) -> dict[str, Figure]:
    """All figures by name, drawn once and saved in either format. Without runs there are no trajectories, and beside an answer no
    contours: they are on the page of the sweep. `known_optimum` is as for plot_laws."""
    figures: dict[str, Figure] = {}
    if prediction is not None:
        prediction = predicted.on_the_laws(prediction, laws.sequence_length)
        figures["answer"] = answer_figure(laws, prediction, probed)
    figures["laws"] = plot_laws(
        laws, prediction, initial_loss=initial_loss, known_optimum=known_optimum
    )
    if runs or prediction is None:
        figures["iso-loss"] = plot_contours(laws)
    if runs:
        figures["trajectories"] = plot_trajectories(laws, runs)
    return figures


def png_files(figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """File name -> PNG."""
    return {f"{name}.png": as_png(figure) for name, figure in figures.items()}


def render_report(
    laws: Laws,
    runs: Sequence[Run],
    *,
    title: str = "",
    facts: Mapping[str, str] | None = None,
    points: Sequence[PointRow] | None = None,
    prediction: Prediction | None = None,
    no_answer: Sequence[str] = (),
    initial_loss: float | None = None,
    parameters: float | None = None,
    opinions: Sequence[PublishedOptimum] = (),
    savings: SearchCost | None = None,
    warnings: Sequence[str] = (),
    figures: Mapping[str, Figure] | None = None,
    probed: Probed | None = None,
    status: View | None = None,
    is_over: bool = True,
) -> str:
    """The report as HTML.

    Without a `title` that of a page without a prediction says what the laws are of. `facts` are shown at the end. Without
    `points` the runs are listed, without `savings` the cost is left out, and without `figures` they are drawn here.
    `no_answer` is why there is no prediction although one was asked for. `probed` is the validation of the prediction. `status` is that of the sweep whose runs these are; unless it `is_over`, its progress
    is shown, and a refused law is not yet there. Of a sweep that has nothing to fit, no laws are shown.

    >>> page = isoloss.render_report(laws, runs.runs, prediction=answer, initial_loss=2.75)
    """
    drawn = figures or draw_figures(
        laws, runs, prediction, initial_loss=initial_loss, probed=probed
    )
    rows = content.point_rows(runs, laws) if points is None else tuple(points)
    fits_nothing = status is not None and status.fits_nothing
    fit_facts = content.fit_facts(laws, runs, version("isoloss"))
    badge, badge_style = _badge(laws, is_over=is_over)
    if fits_nothing:
        badge, badge_style, fit_facts = NOTHING_TO_FIT, "", {}
    if prediction is not None:
        badge, badge_style = _verdict(prediction, probed)
    of_answer = () if prediction is None else prediction.warnings
    return _ENVIRONMENT.get_template("report.html.j2").render(
        title=title or ("" if prediction else content.laws_in_words(laws)),
        policy=PAGE_POLICY,
        facts={**(facts or {}), **fit_facts},
        badge=badge,
        badge_style=badge_style,
        fits_nothing=fits_nothing,
        is_over=is_over,
        progress=() if is_over or status is None else _sentences(status),
        sizes=() if is_over or status is None else size_lines(status),
        search=" ".join(map(_sentence, search_lines(status))) if status is not None else "",
        level=f"{laws.options.interval:.0%}",
        laws=laws,
        formatting=formatting,
        laws_table=content.laws_table(laws, is_over=is_over),
        surface_fit=content.surface_sentence(laws),
        refusals=refused_parts(laws),
        optima=content.optima_table(laws),
        points=content.points_table(rows, MAX_POINT_ROWS) if rows else None,
        excluded=laws.excluded[:MAX_POINT_ROWS],
        warnings=[
            each for each in dict.fromkeys([*warnings, *laws.warnings]) if each not in of_answer
        ],
        prediction=prediction,
        no_answer=tuple(no_answer),
        **(
            _summary(laws, prediction, initial_loss, opinions, parameters)
            if prediction is not None
            else {}
        ),
        shown_caveats=SHOWN_CAVEATS,
        strong=STRONG,
        saving=content.saving_sentence(savings) if savings else None,
        probed=probed,
        probes=probes_table(probed) if probed is not None else None,
        images={
            name: Markup(inline_svg(figure, name))  # the XML writer escaped it
            for name, figure in drawn.items()
            if (name != "laws" or content.any_law(laws))
            and (name != "iso-loss" or laws.contours or is_over)
        },
    )


def _badge(laws: Laws, *, is_over: bool) -> tuple[str, str]:
    """What became of the laws, and how that is shown: "against", "open" or as settled."""
    word = content.status_word(laws) if is_over else "Provisional"
    return word, {"Refused": "against", "Fitted": ""}.get(word, "open")


def _verdict(answer: Prediction, probed: Probed | None) -> tuple[str, str]:
    """What is known of the answer, as _badge has it."""
    if probed is None or not probed.verdict:
        return ("Provisional" if answer.provisional else "Not validated"), "open"
    style = {"True": "", "False": "against"}.get(probed.status, "open")
    return f"{probed.verdict[0].upper()}{probed.verdict[1:]}", style


def _summary(
    laws: Laws,
    answer: Prediction,
    initial_loss: float | None,
    opinions: Sequence[PublishedOptimum],
    parameters: float | None,
) -> dict[str, Any]:
    """What the page says of a prediction, by the template's names."""
    unit = predicted.unit_of_batches(answer, laws.sequence_length)
    return {
        "question": predicted.question_in_words(answer, initial_loss, parameters),
        "caveats": (
            *(_PROVISIONAL if answer.provisional else ()),
            *predicted.disagreements(laws, answer),
            *answer.warnings,
        ),
        "unit_of_batches": unit,
        "prediction_facts": predicted.prediction_facts(answer, initial_loss, unit),
        "alternatives": predicted.alternatives_table(
            answer, [each for each in opinions if not each.warnings], laws.sequence_length
        ),
        "outside": predicted.outside_their_data(answer, opinions, laws.sequence_length),
        "interval_costs": predicted.interval_costs(laws, answer),
    }


def _sentences(status: View) -> tuple[str, ...]:
    """Where the sweep is, its cost, and what is waited for."""
    lines = (headline(status), cost_line(status), *waited_for(status).splitlines())
    return tuple(_sentence(line) for line in lines if line)


def _sentence(line: str) -> str:
    line = line.rstrip(".")
    return f"{line[0].upper()}{line[1:]}." if line else ""
