"""What the page says about a prediction's uncertainty, its data and its place among the figures."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes

from isoloss.laws import (
    FitOptions,
    HyperparameterLaw,
    Interval,
    Laws,
    Prediction,
    Run,
    RunNoise,
    SurfaceLaw,
    fit_laws,
)
from isoloss.report.bands import band_at
from isoloss.report.content import data_digest, fit_facts
from isoloss.report.law_figure import plot_laws
from isoloss.report.page import render_report
from isoloss.report.predicted import interval_costs, outside_band
from isoloss.report.trajectory_figure import MAX_KNOTS, Envelope, _lines, plot_trajectories
from tests.support.empty_figures import BLANK, BLANK_ANSWER
from tests.support.synthetic_laws import answered
from tests.support.synthetic_runs import synthetic_runs

ASKED = {"initial_loss": 2.75, "cpt_flops": 3e19, "params": 1e9}


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    return synthetic_runs(evaluations=12)


@pytest.fixture(scope="module")
def laws(runs: tuple[Run, ...]) -> Laws:
    return fit_laws(runs, FitOptions(bootstrap_samples=50))


@pytest.fixture(scope="module")
def answer(laws: Laws) -> Prediction:
    return answered(laws, **ASKED)


@pytest.fixture(scope="module")
def at_64(laws: Laws) -> Prediction:
    return answered(laws, **ASKED, batch_size=64)


# ------------------------------------------------------------------- the cost of the interval's ends


def test_the_ends_of_the_intervals_cost_what_the_surface_says(
    laws: Laws, answer: Prediction
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


def test_a_wider_interval_costs_more(laws: Laws, answer: Prediction) -> None:
    rate = answer.learning_rate
    wider = replace(answer, learning_rate=Interval(rate.value, rate.low / 2, rate.high * 2))
    narrow, wide = interval_costs(laws, answer), interval_costs(laws, wider)
    assert narrow is not None
    assert wide is not None
    assert all(
        float(b[3]) > float(a[3]) for a, b in list(zip(narrow.rows, wide.rows, strict=True))[:2]
    )


def test_a_given_batch_size_is_said_to_be_and_has_neither_an_interval_nor_a_cost_of_its_ends(
    laws: Laws, answer: Prediction, at_64: Prediction
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
    laws: Laws, runs: tuple[Run, ...], answer: Prediction
) -> None:
    bare = replace(laws, surface=SurfaceLaw("refused"))
    assert interval_costs(bare, answer) is None
    page = render_report(bare, runs, title="x", prediction=answer, figures=BLANK_ANSWER)
    assert "the cost of missing the optimum by an interval is unknown" in page
    assert "noise</dt><dd>not known" in page


# ---------------------------------------------------------------------------- data, noise, options


def test_the_digest_of_the_data_depends_on_numbers_alone(runs: tuple[Run, ...]) -> None:
    renamed = tuple(replace(run, name=f"other {i}") for i, run in enumerate(reversed(runs)))
    assert data_digest(renamed) == data_digest(runs)
    changed = replace(runs[0], losses=runs[0].losses + 1e-12)
    assert data_digest((changed, *runs[1:])) != data_digest(runs)
    assert data_digest(runs[1:]) != data_digest(runs)


def test_the_page_has_the_digest_and_the_noise(laws: Laws, runs: tuple[Run, ...]) -> None:
    facts = fit_facts(laws, runs, "1.2.3")
    assert facts["data"] == f"sha256:{data_digest(runs)}"
    assert "nats per evaluation" in facts["noise"]
    page = render_report(laws, runs, title="x", figures=BLANK)
    assert facts["data"] in page
    assert facts["noise"] in page
    assert "the runs were not given" in render_report(laws, (), title="x", figures=BLANK)


# ---------------------------------------------------------------------------------------- the band


def middle_of_band(laws: Laws, law: HyperparameterLaw, answer: Prediction) -> float:
    band = band_at(laws, law, answer)
    assert band is not None
    return float(np.sqrt(band[0] * band[1]))


def test_a_prediction_outside_the_band_says_so_in_words_and_in_the_figure(
    laws: Laws, runs: tuple[Run, ...], answer: Prediction
) -> None:
    band = band_at(laws, laws.learning_rate, answer)
    assert band is not None
    far = 2 * band[1]
    outside = replace(answer, learning_rate=Interval(far, far / 1.1, far * 1.1), route="surface")
    sentences = [s for s in outside_band(laws, outside) if "learning rate" in s]
    assert len(sentences) == 1
    assert "joint surface" in sentences[0]
    assert sentences[0] in render_report(
        laws, runs, title="x", prediction=outside, figures=BLANK_ANSWER
    )
    assert labels(laws, outside)[0] == ["prediction outside the band"]


def test_a_prediction_inside_the_band_is_drawn_without_a_remark(
    laws: Laws, answer: Prediction
) -> None:
    inside = answer
    for law in (laws.learning_rate, laws.batch_size):
        middle = middle_of_band(laws, law, answer)
        inside = replace(inside, **{law.quantity: Interval(middle, middle, middle)})
    assert outside_band(laws, inside) == ()
    assert labels(laws, inside) == ([], [])


def without_past(laws: Laws, answer: Prediction) -> Prediction:
    """An answer whose estimate for a run from scratch is in the middle of both bands."""
    own, paper = answer.best, answer.variants["paper"]
    for law in (laws.learning_rate, laws.batch_size):
        middle = middle_of_band(laws, law, answer)
        factor = getattr(own, law.quantity).value / getattr(paper, law.quantity).value
        moved = Interval(middle * factor, middle * factor, middle * factor)
        answer = replace(answer, **{law.quantity: moved})
    return replace(answer, batch_size_raw=answer.batch_size.value)


def test_an_answer_outside_the_band_as_a_continued_run_alone_does_not_blame_its_estimate(
    laws: Laws, answer: Prediction
) -> None:
    """The band is of runs from scratch: learning rate times the root of the share, batch size times two less it."""
    assert answer.composition == "Measured"
    assert answer.cpt_flops is not None
    share = answer.cpt_flops / answer.total_flops.value
    moved = without_past(laws, answer)
    rate, batch = outside_band(laws, moved)
    assert "inside it" in rate
    assert f"a continued run takes that times {share**0.5:.2g}." in rate
    assert f"a continued run takes that times {2 - share:.2g}." in batch
    told = "prediction outside the band,\nwhich is of runs from scratch"
    assert labels(laws, moved) == ([told], [told])


def test_an_answer_of_the_papers_composition_is_compared_as_it_is(laws: Laws) -> None:
    paper = answered(laws, **ASKED, composition="Paper")
    far = paper.learning_rate.value * 3
    sentence = outside_band(laws, replace(paper, learning_rate=Interval(far, far, far)))[0]
    assert sentence.endswith("the joint surface gives it.")


def test_an_estimate_that_is_outside_by_itself_is_named_with_what_it_gives_from_scratch(
    laws: Laws, answer: Prediction
) -> None:
    far = answer.learning_rate.value * 6
    outside = replace(answer, learning_rate=Interval(far, far, far))
    sentence = outside_band(laws, outside)[0]
    assert "the joint surface gives" in sentence
    assert "outside it as well" in sentence
    assert labels(laws, outside)[0] == ["prediction outside the band"]


def test_a_batch_size_that_is_outside_for_its_rounding_is_said_to_be(
    laws: Laws, answer: Prediction
) -> None:
    middle, far = middle_of_band(laws, laws.batch_size, answer), 1024.0
    rounded = replace(answer, batch_size=Interval(far, middle, middle), batch_size_raw=middle)
    assert f"it is rounded from {middle:.0f}." in outside_band(laws, rounded)[-1]
    assert labels(laws, rounded)[1] == ["prediction outside the band"]


def test_a_batch_size_that_was_given_is_not_measured_by_the_band(
    laws: Laws, at_64: Prediction
) -> None:
    assert not [s for s in outside_band(laws, at_64) if "predicted batch size" in s]
    assert labels(laws, at_64)[1] == ["batch size given"]


def labels(laws: Laws, answer: Prediction) -> tuple[list[str], list[str]]:
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
    laws: Laws, answer: Prediction, ratio: float
) -> None:
    total = answer.total_flops.value
    before = Interval(total / ratio, total / ratio / 1.1, total / ratio * 1.1)
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


# ---------------------------------------------------------------------------------- trajectories


def test_below_each_size_its_runs_are_shown_as_loss_minus_the_best(
    laws: Laws, runs: tuple[Run, ...]
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


def test_the_best_is_taken_at_the_same_tokens_only(runs: tuple[Run, ...]) -> None:
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


def test_the_legend_names_the_noise(laws: Laws, runs: tuple[Run, ...]) -> None:
    words = [text.get_text() for text in plot_trajectories(laws, runs).legends[0].get_texts()]
    assert any(re.fullmatch(r"residual of the surface, [\d.e-]+ nats", word) for word in words)
    measured = replace(laws, run_noise=RunNoise(4 * 0.0021**2, 4))
    words = [text.get_text() for text in plot_trajectories(measured, runs).legends[0].get_texts()]
    assert "noise between seeds, 0.0021 nats" in words
    facts = fit_facts(measured, runs, "1")
    assert facts["noise"].startswith("0.0021 nats between seeds (4 degrees of freedom); ")
    assert "residuals of the joint surface" in facts["noise"]


def test_of_many_runs_the_best_are_shown_as_differences_and_the_panel_says_so() -> None:
    """Two thousand lines hide the few that decide."""
    rates = tuple(np.geomspace(1.25e-4, 2e-3, 16))
    many = synthetic_runs(sizes=(30e6,), rates=rates, evaluations=8)
    figure = plot_trajectories(fit_laws(()), many)
    lower = next(axes for axes in figure.axes if axes.get_xlabel() == "training tokens")
    assert lower.get_title(loc="left") == "the 60 best of 80 runs"
    lines = [line for line in lower.get_lines() if len(np.atleast_1d(line.get_xdata())) > 1]
    assert len(lines) == 60
