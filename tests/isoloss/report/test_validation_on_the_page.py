"""The answer with its validation on the page: every place with its loss, the verdict, the refined answer."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isoloss.laws import Interval, Laws, Prediction, loss_curvature
from isoloss.report.answer_figure import answer_figure, probes_table
from isoloss.report.drawing import Figure
from isoloss.report.page import render_report
from isoloss.report.probed import Probed, probed_by
from tests.support.pages import draw_empty_figures
from tests.support.synthetic_runs import answered, fitted_laws


def place(rate: str, batch: str, state: str = "Succeeded", **measured: str) -> dict[str, str]:
    return {"learningRate": rate, "batchSize": batch, "state": state, **measured}


VALIDATED = {
    "type": "Validated",
    "status": "False",
    "reason": "BetterAnswerNearby",
    "message": "The answer does not hold: <b>it loses</b> 0.03 nats.",
}
PLACES = [
    place("1.5e-3", "4", loss="3.61"),
    place("7.5e-4", "4", loss="3.70", standardError="0.0042"),
    place("3e-3", "4", loss="3.58", standardError="0.0042"),
    place("1.5e-3", "2", loss="3.60", standardError="0.0042"),
    place("1.5e-3", "8", "Diverged"),
]
PREDICTION: dict[str, Any] = {
    "status": {
        "conditions": [VALIDATED],
        "validation": {"tokens": 240_128, "places": PLACES},
        "refined": {
            "learningRate": {"value": "2.5e-3", "low": "1.9e-3", "high": "3.2e-3"},
            "batchSize": {"value": "4.4", "low": "3.1", "high": "6.2"},
        },
    },
}


def read_probed(prediction: dict[str, Any], laws_length: int | None) -> Probed:
    found = probed_by(prediction, laws_length)
    assert found is not None
    return found


def probed(**status: Any) -> Probed:
    changed = copy.deepcopy(PREDICTION)
    changed["status"].update(status)
    return read_probed(changed, 2048)


@pytest.fixture(scope="module")
def laws() -> Laws:
    return fitted_laws()


@pytest.fixture(scope="module")
def answer(laws: Laws) -> Prediction:
    return answered(laws, initial_loss=3.2, cpt_flops=1e19)


def test_a_probe_has_its_own_standard_error_not_that_of_a_difference() -> None:
    """A difference of two alike has twice the variance of each."""
    found = probed()
    assert found.places[0].standard_error == pytest.approx(0.0042 / 2**0.5)
    assert found.places[2].standard_error == pytest.approx(0.0042 / 2**0.5)


def test_a_probe_that_diverged_has_no_loss_and_is_in_the_table() -> None:
    found = probed()
    assert found.places[4].loss is None
    rows = probes_table(found).rows
    assert len(rows) == 5
    assert rows[0][:4] == ("1.5e-3", "4", "Succeeded", "3.6100")
    assert rows[4][2] == "Diverged"


def drawn(laws: Laws, answer: Prediction, found: Probed | None) -> Figure:
    return answer_figure(laws, answer, found)


def dots(figure: Figure) -> list[dict[float, float]]:
    """Of each panel: where a run is, and its loss above the answer's."""
    return [
        dict(zip(*axes.containers[0].lines[0].get_data(), strict=True)) if axes.containers else {}
        for axes in figure.axes
    ]


def keys(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].texts]


def test_each_panel_has_the_runs_beside_the_answer_with_their_distance_from_it(
    laws: Laws, answer: Prediction
) -> None:
    """Two learning rates at the answer's batch size; one batch size at its learning rate, another diverged."""
    rates, batches = dots(drawn(laws, answer, probed()))
    assert rates == pytest.approx({7.5e-4: 0.09, 3e-3: -0.03})
    assert batches == pytest.approx({2.0: -0.01})


def test_a_run_has_the_interval_of_its_difference(laws: Laws, answer: Prediction) -> None:
    rates, _ = drawn(laws, answer, probed()).axes
    (bars,) = rates.containers[0].lines[2]
    low, high = bars.get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(1.2816 * 0.0042, rel=1e-4)


def test_a_line_shows_what_the_answer_may_lose(laws: Laws, answer: Prediction) -> None:
    spec = {"validation": {"tolerance": "0.02"}}
    for found, below in (
        (probed(), 0.01),
        (read_probed({**PREDICTION, "spec": spec}, 2048), 0.02),
    ):
        for axes in drawn(laws, answer, found).axes:
            assert [-below, -below] in [list(line.get_ydata()) for line in axes.lines]
    for axes in drawn(laws, answer, None).axes:
        assert not [line for line in axes.lines if line.get_ydata()[0] < 0]


def crosses(figure: Figure) -> list[list[float]]:
    """Where each panel has crosses, all of them at its top."""
    at = []
    for axes in figure.axes:
        (line,) = (line for line in axes.lines if line.get_marker() == "x")
        assert line.get_transform() == axes.get_xaxis_transform()
        at.append(list(line.get_xdata()))
    return at


def test_a_place_that_diverged_is_a_cross_whether_it_has_a_loss_or_not(
    laws: Laws, answer: Prediction
) -> None:
    """The loss of one is the mean of those seeds that did not diverge."""
    changed = copy.deepcopy(PREDICTION)
    changed["status"]["validation"]["places"][2]["state"] = "Diverged"
    found = read_probed(changed, 2048)
    assert found.places[2].loss == 3.58
    assert found.places[2].standard_error is None
    figure = drawn(laws, answer, found)
    assert crosses(figure) == [[3e-3], [8.0]]
    assert list(dots(figure)[0]) == [7.5e-4]
    assert "diverged" in keys(figure)


def test_without_a_divergence_there_is_no_cross(laws: Laws, answer: Prediction) -> None:
    changed = copy.deepcopy(PREDICTION)
    changed["status"]["validation"]["places"].pop()
    figure = drawn(laws, answer, read_probed(changed, 2048))
    assert "diverged" not in keys(figure)
    assert all(line.get_marker() != "x" for axes in figure.axes for line in axes.lines)


def test_runs_without_a_loss_at_the_answer_are_compared_with_nothing(
    laws: Laws, answer: Prediction
) -> None:
    changed = copy.deepcopy(PREDICTION)
    del changed["status"]["validation"]["places"][0]["loss"]
    assert dots(drawn(laws, answer, read_probed(changed, 2048))) == [{}, {}]


def test_the_curve_is_what_missing_the_answer_costs(laws: Laws, answer: Prediction) -> None:
    for found in (None, probed()):
        for axes, own, bend in zip(
            drawn(laws, answer, found).axes,
            (answer.learning_rate, answer.batch_size),
            np.diag(loss_curvature(laws, np.log(answer.total_flops.value))),
            strict=True,
        ):
            x, y = axes.lines[0].get_data()
            assert y == pytest.approx(0.5 * bend * np.log(x / own.value) ** 2)
            low, high = axes.get_xlim()
            assert high / low >= 4.0, "a miss of a few per cent does not fill the panel"


def test_a_given_batch_size_has_no_panel(laws: Laws, answer: Prediction) -> None:
    given = replace(answer, batch_size_given=True)
    assert [axes.get_xlabel() for axes in drawn(laws, given, None).axes] == ["learning rate"]


def test_before_a_verdict_there_is_no_refined_answer(laws: Laws, answer: Prediction) -> None:
    found = probed(refined={}, conditions=[])
    assert (found.learning_rate, found.status, found.verdict) == (None, "Unknown", "")
    assert "laws and validation together" not in keys(drawn(laws, answer, found))
    assert "laws and validation together" in keys(drawn(laws, answer, probed()))


def test_the_refined_batch_size_is_in_the_sequences_of_the_probes(
    laws: Laws, answer: Prediction
) -> None:
    """A status has it in sequences of the target's length, and the probes in those of the sweep's."""
    assert laws.sequence_length == 2048
    found = read_probed({**PREDICTION, "spec": {"targetSequenceLength": 8192}}, 2048)
    assert found.places == probed().places
    assert found.batch_size == Interval(17.6, 12.4, 24.8)
    _, batches = drawn(laws, answer, found).axes
    assert batches.get_xlabel() == "batch size (sequences of 2048)"
    assert probes_table(found).heads[1] == "batch size (sequences of 2048)"
    with draw_empty_figures:
        page = render_report(laws, (), title="x", prediction=answer, probed=found)
    assert "18 [12, 25] sequences of 2048." in page


@pytest.mark.parametrize("spec", [{}, {"targetSequenceLength": 2048}])
def test_one_length_of_sequences_is_not_named(spec: dict[str, int]) -> None:
    found = read_probed({**PREDICTION, "spec": spec}, 2048)
    assert (found.batch_size, found.unit) == (Interval(4.4, 3.1, 6.2), "sequences")


def test_what_cannot_be_converted_is_not_drawn_beside_the_probes() -> None:
    found = read_probed({**PREDICTION, "spec": {"targetSequenceLength": 8192}}, None)
    assert (found.batch_size, found.unit) == (None, "sequences")


def test_the_page_has_the_verdict_and_escapes_its_message(laws: Laws, answer: Prediction) -> None:
    with draw_empty_figures:
        page = render_report(laws, (), title="demo", prediction=answer, probed=probed())
        plain = render_report(laws, (), title="demo", prediction=answer)
    assert '<h2 id="validation">' in page
    assert '<span class="status against">Better answer nearby</span>' in page
    assert "&lt;b&gt;it loses" in page
    assert "learning rate 2.5e-3" in page
    assert "expected to lose, before validation<b>" in page
    assert '<h2 id="validation">' not in plain
    assert "before validation" not in plain
    assert '<span class="status open">Not validated</span>' in plain


def test_the_badge_of_a_running_sweeps_answer_says_that_it_is_provisional(
    laws: Laws, answer: Prediction
) -> None:
    early = replace(answer, provisional=True)
    with draw_empty_figures:
        page = render_report(laws, (), title="demo", prediction=early)
        judged = render_report(laws, (), title="demo", prediction=early, probed=probed())
    assert '<span class="status open">Provisional</span>' in page
    assert "Better answer nearby</span>" in judged
    assert '<p class="refusal">The sweep is still running: every number here can change.' in judged
