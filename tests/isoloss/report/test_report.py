"""The report: everything promised is on the page, nothing on it runs or is fetched."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version

import numpy as np
import pytest
from matplotlib.figure import Figure

from isoloss.laws import (
    FitOptions,
    Laws,
    Prediction,
    Refusal,
    RefusalReason,
    Run,
    SurfaceLaw,
    fit_laws,
)
from isoloss.published import published_opinions
from isoloss.report.content import PointRow, optima_table, point_rows, surface_sentence
from isoloss.report.contour_figure import LABEL_ROOM, plot_contours
from isoloss.report.law_figure import plot_laws
from isoloss.report.page import draw_figures, png_files, render_report
from isoloss.report.trajectory_figure import plot_trajectories
from isoloss.savings import SearchCost
from isoloss.status import View
from tests.support.pages import BLANK, BLANK_ANSWER
from tests.support.paper_costs import PAPER_COSTS
from tests.support.synthetic_runs import answered, synthetic_runs
from tests.support.watched import resource

HOSTILE = "<script>alert('x')</script>\"'&{{ 7919*7907 }} $\\frac$"


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    return synthetic_runs()


@pytest.fixture(scope="module")
def laws(runs: tuple[Run, ...]) -> Laws:
    return fit_laws(runs)


@pytest.fixture(scope="module")
def prediction(laws: Laws) -> Prediction:
    return answered(laws, initial_loss=2.75, cpt_flops=3e19, params=1e9)


@pytest.fixture(scope="module")
def figures(laws: Laws, runs: tuple[Run, ...], prediction: Prediction) -> dict[str, Figure]:
    return draw_figures(laws, runs, prediction, initial_loss=2.75)


@pytest.fixture(scope="module")
def page(
    laws: Laws, runs: tuple[Run, ...], prediction: Prediction, figures: dict[str, Figure]
) -> str:
    return whole_page(laws, runs, prediction, figures)


def whole_page(
    laws: Laws, runs: tuple[Run, ...], prediction: Prediction, figures: dict[str, Figure]
) -> str:
    return render_report(
        laws,
        runs,
        title="dense",
        facts={"namespace": "research"},
        prediction=prediction,
        initial_loss=2.75,
        parameters=1e9,
        opinions=published_opinions(total_flops=prediction.total_flops.value, params=1e9)[0],
        savings=PAPER_COSTS["dense-8b"],
        figures=figures,
    )


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> _Elements:
    elements = _Elements()
    elements.feed(page)
    return elements


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    for tag, attributes in parsed(page).tags:
        assert tag not in ("script", "link", "iframe", "object")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            # Pictures inside the page, and places on it.
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))


def test_all_sections_are_there(page: str) -> None:
    headings = re.findall(r"<h2 id=.*?>(.*?)</h2>", page)
    assert headings == [
        *("Laws", "Iso-loss contours", "Trajectories", "How it was computed"),
        *("Cost", "Optima", "Points", "Data"),
    ]
    assert page.count("<svg ") == 4
    described = [found for _, found in parsed(page).tags if found.get("role") == "img"]
    assert len(described) == 4
    assert all(len(found["aria-label"] or "") > 20 for found in described)


def test_the_contents_link_to_every_section(page: str) -> None:
    contents = re.findall(r'<li><a href="#(.*?)">(.*?)</a>', page)
    assert contents == re.findall(r'<h2 id="(.*?)">(.*?)</h2>', page)
    assert len(contents) == 8


def test_no_id_is_used_twice_and_every_reference_has_its_target(page: str) -> None:
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)


def test_the_marks_of_the_figures_name_their_runs(page: str, runs: tuple[Run, ...]) -> None:
    titles = set(re.findall(r"<title>([^<]*)\nlearning rate", page))
    assert {run.name for run in runs if not run.diverged} <= titles
    assert any(title.startswith("optimum at loss") for title in titles)


def test_a_name_that_xml_cannot_hold_does_not_break_the_page(
    laws: Laws, runs: tuple[Run, ...]
) -> None:
    odd = (replace(runs[0], name="a\x0b\ufffe--<b>&"), *runs[1:])
    figures = {**BLANK, "trajectories": plot_trajectories(laws, odd)}
    page = render_report(laws, odd, title="x", figures=figures)
    assert "a--&lt;b&gt;&amp;\nlearning rate" in page


def test_the_chain_of_the_prediction_is_told(page: str, prediction: Prediction) -> None:
    for words in (
        "C_pre",
        "C_cpt",
        "C_total",
        "target loss",
        "variant A",
        "published law step-law",
    ):
        assert words in page
    assert f"{prediction.batch_size.value:.0f}" in page


def test_savings_are_stated_and_so_is_a_loss(laws: Laws) -> None:
    saved = render_report(laws, (), title="x", savings=PAPER_COSTS["moe-3b"], figures=BLANK)
    assert "73.1% saved" in saved
    lost = render_report(laws, (), title="x", savings=SearchCost(1e20, 3e20), figures=BLANK)
    assert "the direct grid would be cheaper" in lost


def test_what_users_wrote_is_shown_as_text(laws: Laws, runs: tuple[Run, ...]) -> None:
    hostile = (replace(runs[0], name=HOSTILE), *runs[1:])
    page = render_report(
        replace(laws, warnings=(HOSTILE,)),
        hostile,
        title=HOSTILE,
        facts={HOSTILE: HOSTILE},
        points=[PointRow(HOSTILE, 1e8, 64, 1e-3, 1e9, 3.0, HOSTILE, HOSTILE)],
        warnings=(HOSTILE + "2",),
        figures=BLANK,
    )
    elements = parsed(page)
    assert "script" not in [tag for tag, _ in elements.tags]
    assert elements.text.count(HOSTILE) >= 7
    assert str(7919 * 7907) not in elements.text


def test_excluded_points_come_first_with_their_reason(laws: Laws, runs: tuple[Run, ...]) -> None:
    rows = list(point_rows(runs, laws))
    rows[-1] = replace(rows[-1], note="ran out of memory: needed 96 GiB")
    page = render_report(laws, runs, title="x", points=rows, figures=BLANK)
    table = page[page.index('<h2 id="points">') :]
    assert table.index("ran out of memory") < table.index(rows[0].name)
    assert "Diverged" in table


def test_refusals_are_told_in_words_and_draw_no_curve() -> None:
    few = synthetic_runs(sizes=(30e6, 100e6), batches=(32, 128, 512), rates=(2e-5, 4e-5, 8e-5))
    refused = fit_laws(few)
    assert refused.learning_rate.refusal is not None
    page = render_report(refused, few, title="x")
    text = parsed(page).text
    assert "What the data do not support" in text
    assert refused.learning_rate.refusal.reason.value in text
    assert refused.learning_rate.refusal.message in text
    assert page.count("<svg ") == 2


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_the_thinnest_data_still_make_a_page(runs: tuple[Run, ...], kept: int) -> None:
    few = runs[:kept]
    page = render_report(fit_laws(few), few, title="x")
    assert "Refused" in page


def test_why_there_is_no_prediction_is_in_its_place_and_escaped(laws: Laws) -> None:
    page = render_report(laws, (), title="x", no_answer=(HOSTILE,), figures=BLANK)
    assert HOSTILE in parsed(page.partition("<nav")[0]).text
    assert '<h2 id="prediction">' not in page


def test_a_provisional_report_says_that_numbers_can_change(runs: tuple[Run, ...]) -> None:
    page = render_report(fit_laws(runs, provisional=True), runs, title="x", figures=BLANK)
    assert "still running: every number here can change" in page


def test_a_linear_law_in_ln_compute_is_drawn_over_compute(runs: tuple[Run, ...]) -> None:
    linear = fit_laws(runs, FitOptions(form="LinearInLogCompute"))
    labels = [axes.get_xlabel() for axes in plot_laws(linear).axes]
    assert labels.count("compute (FLOPs)") == 3


def test_levels_without_an_optimum_are_left_out_with_one_line(laws: Laws) -> None:
    refusal = Refusal(RefusalReason.OPTIMUM_ON_BATCH_SIZE_EDGE, "why")
    smallest = min(laws.data.sizes)
    optima = tuple(
        replace(each, status="refused", refusal=refusal) if each.params == smallest else each
        for each in laws.optima
    )
    figure = plot_contours(replace(laws, optima=optima))
    count = sum(contour.params == smallest for contour in laws.contours)
    assert figure.get_suptitle() == (
        f"Left out: {count} loss levels without an optimum inside the grid (optimum on batch size edge)."
    )
    assert "30M parameters\nlearning rate" not in {axes.get_ylabel() for axes in figure.axes}
    assert plot_contours(laws).get_suptitle() == ""
    none = plot_contours(replace(laws, optima=()))
    assert [text.get_text() for text in none.axes[0].texts] == [
        f"Left out: {len(laws.contours)} loss levels without an optimum inside the grid."
    ]


def test_the_labels_of_contours_are_off_the_runs_the_spines_and_one_another(
    figures: dict[str, Figure],
) -> None:
    labels = 0
    for axes in figures["iso-loss"].axes:
        low, high = np.log([axes.get_xlim(), axes.get_ylim()]).T
        places = [(np.log(text.get_position()) - low) / (high - low) for text in axes.texts]
        marks = [
            (np.log(np.column_stack(line.get_data())) - low) / (high - low) for line in axes.lines
        ]
        others = np.concatenate(marks)
        for index, place in enumerate(places):
            assert np.minimum(place, 1 - place).min() > 0.9 * LABEL_ROOM
            assert np.linalg.norm(others - place, axis=1).min() > 0.9 * LABEL_ROOM
            for other in places[:index]:
                assert np.linalg.norm(other - place) > 0.9 * LABEL_ROOM
        labels += len(places)
    assert labels > 20


def test_residuals_of_a_few_percent_do_not_fill_their_panels(figures: dict[str, Figure]) -> None:
    panels = [axes for axes in figures["laws"].axes if axes.get_ylabel() == "residual (%)"]
    assert [axes.get_ylim() for axes in panels] == [(-20.0, 20.0)] * 2


def test_axes_carry_units(figures: dict[str, Figure]) -> None:
    labels = {
        label
        for figure in figures.values()
        for axes in figure.axes
        for label in (axes.get_xlabel(), axes.get_ylabel())
    }
    assert {
        *("loss (nats per token)", "compute (FLOPs)", "batch size (sequences)"),
        *("training tokens", "validation loss (nats per token)", "learning rate"),
    } <= labels


def test_the_same_laws_give_the_same_page(
    laws: Laws, runs: tuple[Run, ...], prediction: Prediction, page: str
) -> None:
    again = draw_figures(laws, runs, prediction, initial_loss=2.75)
    assert whole_page(laws, runs, prediction, again) == page


def test_without_runs_there_are_no_trajectories_and_beside_an_answer_no_contours(
    laws: Laws, prediction: Prediction
) -> None:
    """Both are on the page of the sweep, and take most of the time of a page: there may be 200 predictions."""
    alone, answered_ = draw_figures(laws, ()), draw_figures(laws, (), prediction)
    assert set(alone) == {"laws", "iso-loss"}
    assert set(png_files(answered_)) == {"answer.png", "laws.png"}
    page = render_report(laws, (), title="x", prediction=prediction, figures=answered_)
    assert page.count("<svg ") == 2
    assert '<h2 id="trajectories">' not in page


def test_the_page_says_how_to_repeat_the_fit(runs: tuple[Run, ...]) -> None:
    laws = fit_laws(runs, FitOptions(irreducible_loss=1.5, bootstrap_samples=50, seed=7))
    text = parsed(render_report(laws, runs, title="x", figures=BLANK)).text
    assert f"isoloss {version('isoloss')}" in text
    options = "PowerLawOfLoss, irreducible loss fixed at 1.5000, 50 bootstrap draws, seed 7"
    assert options in text


def test_sizes_between_the_trained_ones_are_marked(laws: Laws) -> None:
    """The frontier runs through compute-optimal sizes, of which few were trained."""
    sizes = [row[2] for row in optima_table(laws).rows]
    assert {"30M", "100M", "300M"} <= set(sizes)
    between = {size for size in sizes if size.endswith(" (not trained)")}
    assert between
    assert not between & {f"{size} (not trained)" for size in ("30M", "100M", "300M")}


def test_the_page_says_how_far_the_surface_is_from_the_optima_of_single_sizes(
    laws: Laws,
) -> None:
    """In place of a figure of the residuals."""
    output = surface_sentence(laws)
    found = re.fullmatch(
        r"A check of the joint surface: half of the (\d+) optima found for single sizes are within ([\d.]+)% of its learning rate and "
        r"([\d.]+)% of its batch size\.",
        output,
    )
    assert found is not None
    trends = laws.surface.optimum
    assert trends is not None
    optima = [o for o in laws.optima if o.params and o.tokens and o.learning_rate and o.batch_size]
    assert int(found[1]) == len(optima)
    off = [
        abs(np.log(o.learning_rate) - trends.at(np.log(o.params), np.log(o.tokens))[0])
        for o in optima
        if o.learning_rate and o.params and o.tokens
    ]
    assert float(found[2]) == pytest.approx(100 * np.expm1(np.median(off)), abs=0.06)
    assert output in render_report(laws, (), title="x", figures=BLANK)
    refused = replace(laws, surface=SurfaceLaw("refused"))
    assert surface_sentence(refused) == ""


def test_the_question_the_answer_its_figure_and_the_caveats_come_first_and_files_last(
    page: str, prediction: Prediction
) -> None:
    head = page.partition("<nav")[0].partition("</style>")[2]
    marks = (
        "<h1>1B parameters, loss 2.75, 5B more tokens (3e19 FLOPs)</h1>",
        *("learning rate<b>", "batch size (sequences)<b>", "expected to lose<b>"),
        *('<span class="status open">Not validated</span>', "<svg ", '<p class="refusal">'),
    )
    places = [head.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "sha256" not in head
    assert page.index('<h2 id="data">') > page.index('<h2 id="points">')
    assert page.index("sha256") > page.index('<h2 id="data">')


def test_the_title_is_the_question_or_what_the_laws_are_of(
    laws: Laws, prediction: Prediction
) -> None:
    asked = render_report(laws, (), prediction=prediction, parameters=1e9, figures=BLANK_ANSWER)
    assert "<title>1B parameters, 5B more tokens (3e19 FLOPs) – isoloss</title>" in asked
    plain = render_report(laws, (), figures=BLANK)
    of = "Scaling laws of 75 runs, 30M to 300M parameters"
    assert f"<title>{of} – isoloss</title>" in plain
    assert f"<h1>{of}</h1>" in plain


def test_published_laws_outside_their_own_data_are_folded_with_the_reason_first(
    page: str,
) -> None:
    computed = page[page.index('<h2 id="computation">') :]
    table, _, folded = computed.partition("<details>")
    assert "published law step-law" in table
    assert "cpt-dense" not in table
    assert folded.startswith("<summary>2 published laws far outside their own data</summary>")
    reason = "cpt-dense: learning rate 0.009"
    assert folded.index(reason) < folded.index("It gives 9.03e-3")


def test_three_caveats_are_shown_and_the_others_are_folded(
    laws: Laws, prediction: Prediction
) -> None:
    warned = replace(prediction, warnings=tuple(f"caveat {n}." for n in range(5)))
    page = render_report(laws, (), title="x", prediction=warned, figures=BLANK_ANSWER)
    head = page.partition("<nav")[0]
    shown, _, folded = head.partition("<details>")
    assert [n for n in range(5) if f"caveat {n}." in shown] == [0, 1, 2]
    assert "caveat 3." in folded
    assert "more caveats" in folded


def test_a_running_sweep_shows_its_status_and_its_sizes(laws: Laws) -> None:
    view = View(
        resource(
            ("Ready", "False", "Training"),
            points={"total": 9, "succeeded": 4},
            plannedFlops="4e19",
            spentFlops="1e19",
            sizes=[{"proxy": "tiny", "progress": "4/9", "trained": 47, "loss": "2.5650"}],
            search={"finished": 3, "added": 1, "savedFlops": "1e19", "message": "1 chosen: small"},
        )
    )
    page = render_report(laws, (), title="x", status=view, is_over=False, figures=BLANK)
    assert "Points 4/9, 0 active, Training." in page
    assert "Cost so far 1e19 FLOPs, 25% of the whole grid&#39;s 4e19." in page
    assert "Sweep: Training: why." in page
    assert '<progress max="100" value="47"' in page
    assert "3 finished, 1 added to the grid; 1e19 FLOPs saved. 1 chosen: small." in page
    del view.sweep["status"]["search"]["savedFlops"]
    goes_on = render_report(laws, (), title="x", status=view, is_over=False, figures=BLANK)
    assert "3 finished, 1 added to the grid. 1 chosen: small." in goes_on
    view.sweep["status"]["search"]["savedFlops"] = "1e19"
    over = render_report(laws, (), title="x", status=view, figures=BLANK)
    assert "Sweep: Training" not in over
    assert "1e19 FLOPs saved" in over


def test_a_sweep_with_nothing_to_fit_says_so_and_shows_no_laws(runs: tuple[Run, ...]) -> None:
    """Its points lie around a prediction's answer, which they judge."""
    points = {"total": 5, "succeeded": 5}
    view = View(resource(("Ready", "True", "NothingToFit"), points=points))
    laws = fit_laws((), provisional=True)
    training = resource(("Ready", "False", "Training"), points={"total": 5, "active": 5})
    training["status"]["conditions"] += resource(("FitReady", "False", "NothingToFit"))["status"][
        "conditions"
    ]
    page = render_report(
        laws, runs[:5], title="x", status=View(training), is_over=False, figures=BLANK
    )
    assert '<span class="status ">Nothing to fit</span>' in page
    assert "Not yet" not in page
    page = render_report(laws, runs[:5], title="x", status=view, is_over=False, figures=BLANK)
    assert '<span class="status ">Nothing to fit</span>' in page
    assert "All points lie around answers of predictions." in page
    assert "Points 5/5, nothing to fit." in page
    headings = re.findall(r"<h2 id=.*?>(.*?)</h2>", page)
    assert headings == ["Progress", "Trajectories", "Points", "Data"]
    assert "Provisional</span>" not in page
    assert "fitted with" not in page
    assert "refused" not in page.partition("<body>")[2]
