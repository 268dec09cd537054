"""What the page says about a prediction's uncertainty, its data and its place among the figures."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation

from isoloss import laws as engine
from isoloss.report.bands import band_at
from isoloss.report.content import data_digest, fit_facts
from isoloss.report.drawing import FAINT
from isoloss.report.law_figure import plot_laws
from isoloss.report.page import render_report
from isoloss.report.predicted import disagreements, interval_costs
from isoloss.report.trajectory_figure import MAX_KNOTS, Envelope, _lines, plot_trajectories
from tests.support.pages import BLANK, BLANK_ANSWER
from tests.support.synthetic_runs import answered, synthetic_runs

ASKED = {"initial_loss": 2.75, "cpt_flops": 3e19, "params": 1e9}


@pytest.fixture(scope="module")
def runs() -> tuple[engine.Run, ...]:
    return synthetic_runs(evaluations=12)


@pytest.fixture(scope="module")
def laws(runs: tuple[engine.Run, ...]) -> engine.Laws:
    return engine.fit_laws(runs, engine.FitOptions(bootstrap_samples=50))


@pytest.fixture(scope="module")
def answer(laws: engine.Laws) -> engine.Prediction:
    return answered(laws, **ASKED)


@pytest.fixture(scope="module")
def at_64(laws: engine.Laws) -> engine.Prediction:
    return answered(laws, **ASKED, batch_size=64)


# ------------------------------------------------------------------- the cost of the interval's ends


def test_the_ends_of_the_intervals_cost_what_the_surface_says(
    laws: engine.Laws, answer: engine.Prediction
) -> None:
    table = interval_costs(laws, answer)
    assert table is not None
    assert len(table.rows) == 4
    assert laws.surface.curvature is not None
    assert laws.loss_compute.curve is not None
    rate = answer.learning_rate
    wasted = 0.5 * laws.surface.curvature[0, 0] * np.log(rate.low / rate.value) ** 2
    assert float(table.rows[0][1].removesuffix("%")) == pytest.approx(
        100 * np.expm1(wasted), rel=0.06
    )
    # The loss of a run that is `wasted` shorter, from the law itself.
    total = np.log(answer.total_flops.value)
    curve = laws.loss_compute.curve
    lost = float(curve.loss(total - wasted) - curve.loss(total))
    assert float(table.rows[0][3]) == pytest.approx(lost, rel=0.1)


def test_a_given_batch_size_is_said_to_be_and_has_neither_an_interval_nor_a_cost_of_its_ends(
    laws: engine.Laws, answer: engine.Prediction, at_64: engine.Prediction
) -> None:
    both, costs = interval_costs(laws, answer), interval_costs(laws, at_64)
    assert both is not None
    assert costs is not None
    assert [row[0].split()[0] for row in costs.rows] == ["learning", "learning"]
    page = render_report(laws, (), title="x", prediction=at_64, figures=BLANK_ANSWER)
    head = page.partition('<div class="answer"')[2].partition("</dl>")[0]
    assert re.search(r"batch size \(sequences\)<b>64</b>\s*<span>\(given\)</span>", head)
    assert "64 to 64" not in head
    assert "before rounding" not in head
    assert "<dd>131k (given)</dd>" in head
    assert "64 [64, 64]" not in page
    plain = render_report(laws, (), title="x", prediction=answer, figures=BLANK_ANSWER)
    assert "(given)" not in plain
    assert "before rounding" in plain


def test_without_a_surface_the_page_says_that_the_cost_is_not_known(
    laws: engine.Laws, runs: tuple[engine.Run, ...], answer: engine.Prediction
) -> None:
    bare = replace(laws, surface=engine.SurfaceLaw("refused"))
    assert interval_costs(bare, answer) is None
    page = render_report(bare, runs, title="x", prediction=answer, figures=BLANK_ANSWER)
    assert "the cost of missing the optimum by an interval is unknown" in page
    assert "noise</dt><dd>not known" in page


# ---------------------------------------------------------------------------- data, noise, options


def test_the_digest_of_the_data_depends_on_numbers_alone(runs: tuple[engine.Run, ...]) -> None:
    renamed = tuple(replace(run, name=f"other {i}") for i, run in enumerate(reversed(runs)))
    assert data_digest(renamed) == data_digest(runs)
    changed = replace(runs[0], losses=runs[0].losses + 1e-12)
    assert data_digest((changed, *runs[1:])) != data_digest(runs)
    assert data_digest(runs[1:]) != data_digest(runs)


def test_the_page_has_the_digest_and_the_noise(
    laws: engine.Laws, runs: tuple[engine.Run, ...]
) -> None:
    facts = fit_facts(laws, runs, "1.2.3")
    assert facts["data"] == f"sha256:{data_digest(runs)}"
    assert "nats per evaluation" in facts["noise"]
    page = render_report(laws, runs, title="x", figures=BLANK)
    assert facts["data"] in page
    assert facts["noise"] in page
    plain = render_report(laws, (), title="x", figures=BLANK)
    assert "sha256" not in plain
    assert "not given" not in plain


# ---------------------------------------------------------------------------------------- the band


def test_an_arrow_leads_from_the_run_from_scratch_to_the_continued_run(
    laws: engine.Laws, answer: engine.Prediction
) -> None:
    """Learning rate times the root of the share, batch size times two less it."""
    assert answer.cpt_flops is not None
    share = answer.cpt_flops / answer.total_flops.value
    figure = plot_laws(laws, answer, initial_loss=2.75)
    for axes, name, factor in zip(
        figure.axes, ("learning_rate", "batch_size"), (share**0.5, 2 - share), strict=False
    ):
        assert words_in(axes) == [f"continued run: × {factor:.2f}"]
        (arrow,) = [each for each in axes.texts if getattr(each, "arrow_patch", None)]
        assert isinstance(arrow, Annotation)
        own, scratch = getattr(answer, name).value, getattr(answer.variants["paper"], name).value
        assert arrow.xy[1] == pytest.approx(own)
        assert arrow.xyann[1] == pytest.approx(scratch)
        assert own == pytest.approx(factor * scratch, rel=0.01)


def test_a_run_from_scratch_has_no_arrow(laws: engine.Laws) -> None:
    assert labels(laws, answered(laws, total_flops=5e19, params=1e9)) == ([], [])
    assert labels(laws, answered(laws, **ASKED, composition="Paper")) == ([], [])


def test_the_known_optimum_is_marked_at_the_answer(
    laws: engine.Laws, answer: engine.Prediction
) -> None:
    figure = plot_laws(laws, answer, initial_loss=2.75, known_optimum=(2.89e-4, 175))
    assert answer.target_loss is not None
    for axes, value in zip(figure.axes, (2.89e-4, 175), strict=False):
        (mark,) = (line for line in axes.lines if line.get_marker() == "x")
        assert list(mark.get_xdata()) == [answer.target_loss.value]
        assert list(mark.get_ydata()) == [value]


def test_estimates_that_differ_by_more_than_their_intervals_are_a_caveat(
    laws: engine.Laws, runs: tuple[engine.Run, ...], answer: engine.Prediction
) -> None:
    assert disagreements(laws, answer) == ()
    band = band_at(laws, laws.learning_rate, answer)
    assert band is not None
    far = engine.Interval(4 * band[1], 3 * band[1], 5 * band[1])
    moved = replace(answer.variants["paper"], learning_rate=far)
    outside = replace(answer, variants={**answer.variants, "paper": moved}, route="surface")
    (sentence,) = disagreements(laws, outside)
    assert sentence.startswith("Two estimates of the learning rate of a run from scratch differ: ")
    assert "joint surface" in sentence
    page = render_report(laws, runs, title="x", prediction=outside, figures=BLANK_ANSWER)
    assert page.partition('<p class="refusal">')[2].startswith(sentence)


def test_what_speaks_against_an_answer_comes_before_what_was_done_to_it(
    laws: engine.Laws, answer: engine.Prediction
) -> None:
    """The page shows three caveats."""
    done = ("Adjusted for continued training", "The intervals also cover")
    assert [warning.startswith(done) for warning in answer.warnings[-2:]] == [True, True]
    assert not any(warning.startswith(done) for warning in answer.warnings[:-2])
    assert laws.data.highest_loss is not None
    high = answered(laws, **{**ASKED, "initial_loss": 1.02 * laws.data.highest_loss})
    assert high.warnings[0].startswith("The initial loss")


def test_of_the_papers_composition_the_answer_itself_is_compared(laws: engine.Laws) -> None:
    paper = answered(laws, **ASKED, composition="Paper")
    far = paper.learning_rate.value * 8
    moved = replace(paper, learning_rate=engine.Interval(far, far / 1.5, far * 1.5))
    assert len(disagreements(laws, moved)) == len(disagreements(laws, paper)) + 1


def test_a_batch_size_that_was_given_is_not_measured_by_the_band(
    laws: engine.Laws, at_64: engine.Prediction
) -> None:
    assert not [s for s in disagreements(laws, at_64) if "batch size of" in s]
    assert labels(laws, at_64)[1] == ["batch size given"]


def labels(laws: engine.Laws, answer: engine.Prediction) -> tuple[list[str], list[str]]:
    """The words beside the stars of learning rate and batch size."""
    axes = plot_laws(laws, answer, initial_loss=2.75).axes
    return words_in(axes[0]), words_in(axes[1])


def words_in(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


@pytest.mark.parametrize(
    "ratio",
    [
        *(1.02, 3.0, 3000.0),
        *(pytest.param(between, marks=pytest.mark.whole) for between in (1.3, 30.0)),
    ],
)
def test_the_labels_of_the_computes_do_not_overlap(
    laws: engine.Laws, answer: engine.Prediction, ratio: float
) -> None:
    total = answer.total_flops.value
    before = engine.Interval(total / ratio, total / ratio / 1.1, total / ratio * 1.1)
    curve = laws.loss_compute.curve
    assert curve is not None
    start = float(curve.loss(np.log(before.value)))
    figure = plot_laws(laws, replace(answer, equivalent_flops=before), initial_loss=start)
    figure.draw_without_rendering()
    shown = [t for t in figure.axes[2].texts if "C_{" in t.get_text()]
    boxes = [text.get_window_extent() for text in shown]
    overlaps = [a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :]]
    assert len(shown) >= 2
    assert not any(overlaps)
    assert max(box.x1 for box in boxes) <= figure.axes[2].bbox.x1


# ---------------------------------------------------------------------------------- trajectories


def test_below_each_size_its_runs_are_shown_as_loss_minus_the_best(
    laws: engine.Laws, runs: tuple[engine.Run, ...]
) -> None:
    figure = plot_trajectories(laws, runs)
    lower = [axes for axes in figure.axes if axes.get_ylabel().startswith("loss minus the best")]
    assert len(lower) == 1  # labelled once per row
    panels = [axes for axes in figure.axes if axes.get_xlabel() == "training tokens"]
    assert len(panels) == len(laws.data.sizes)
    for axes in panels:
        shown = np.concatenate([np.asarray(line.get_ydata()) for line in axes.get_lines()])
        assert np.nanmin(shown) == pytest.approx(0.0, abs=1e-12)
        assert axes.get_ylim()[1] > 3 * (laws.surface.residual_rms or 0.0)


def test_the_best_is_taken_at_the_same_tokens_only(runs: tuple[engine.Run, ...]) -> None:
    """A longer run does not make shorter ones worse, and what nobody else reached is the best."""
    short, long = runs[0], runs[1]
    short = replace(short, tokens=short.tokens[:5], losses=short.losses[:5] - 0.5)
    lines = _lines([short, long])
    by_size = {len(line.tokens): line for line in lines}
    longer = by_size[len(long.tokens)]
    excess = Envelope.of(lines).excess(longer.tokens, longer.losses)
    assert np.all(excess[:5] > 0)
    assert np.all(excess[5:] == 0)


def test_the_best_of_many_different_tokens_is_off_by_less_than_the_noise() -> None:
    """Above MAX_KNOTS the best is interpolated between fewer tokens than there are evaluations."""
    rates = tuple(np.geomspace(1.25e-4, 2e-3, 32))
    many = synthetic_runs(sizes=(30e6,), rates=rates, evaluations=60)
    shifted = [replace(run, tokens=run.tokens * (1 + i / 7000)) for i, run in enumerate(many)]
    lines = _lines(shifted)
    best = Envelope.of(lines)
    assert best.log_tokens.size == MAX_KNOTS < sum(run.tokens.size for run in shifted)
    few = lines[::20]
    for line in few:
        exact = np.min(
            [
                np.interp(np.log(line.tokens), np.log(o.tokens), o.losses, left=99, right=99)
                for o in lines
            ],
            axis=0,
        )
        found = line.losses - best.excess(line.tokens, line.losses)
        assert found == pytest.approx(exact, abs=2e-4)


def test_the_legend_names_the_noise(laws: engine.Laws, runs: tuple[engine.Run, ...]) -> None:
    words = [text.get_text() for text in plot_trajectories(laws, runs).legends[0].get_texts()]
    assert any(re.fullmatch(r"residual of the surface, [\d.e-]+ nats", word) for word in words)
    measured = replace(laws, run_noise=engine.RunNoise(4 * 0.0021**2, 4))
    words = [text.get_text() for text in plot_trajectories(measured, runs).legends[0].get_texts()]
    assert "noise between seeds, 0.0021 nats" in words
    facts = fit_facts(measured, runs, "1")
    assert facts["noise"].startswith("0.0021 nats between seeds (4 degrees of freedom); ")
    assert "residuals of the joint surface" in facts["noise"]


@pytest.mark.parametrize("count", [5, 16])
def test_nine_runs_of_a_size_are_drawn_strongly_and_the_others_in_grey(count: int) -> None:
    """Two thousand lines hide the few that decide."""
    rates = tuple(np.geomspace(1.25e-4, 2e-3, count))
    many = synthetic_runs(sizes=(30e6,), rates=rates, evaluations=8)
    figure = plot_trajectories(engine.fit_laws(()), many)
    for axes in figure.axes[:2]:
        lines = [line for line in axes.get_lines() if len(np.atleast_1d(line.get_xdata())) > 1]
        assert len(lines) == len(many) == 5 * count
        strong = [line for line in lines if str(line.get_color()) != FAINT]
        assert len(strong) == 9
    ends = [float(line.get_ydata()[-1]) for line in lines if not line.get_rasterized()]
    best = sorted(float(line.get_ydata()[-1]) for line in lines)[:9]
    assert sorted(float(line.get_ydata()[-1]) for line in strong) == pytest.approx(best)
    assert len(ends) == (9 if count == 16 else len(many))
