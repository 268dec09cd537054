"""The probes of a prediction on the page: every place with its loss, the verdict, the refined answer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from isoloss.laws import Interval, Laws, fit_laws
from isoloss.report.drawing import as_png
from isoloss.report.page import draw_figures, render_report
from isoloss.report.probed import Probed, probed_by
from isoloss.report.probes_figure import probes_figure, probes_table
from tests.support.empty_figures import draw_empty_figures
from tests.support.planted_laws import fitted_laws


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


def test_each_panel_has_the_places_on_its_line_through_the_answer() -> None:
    """Three learning rates at the answer's batch size; two batch sizes at its learning rate, the third diverged."""
    rates, batches = probes_figure(probed()).axes
    drawn = [axes.containers[0].lines[0].get_xdata().tolist() for axes in (rates, batches)]
    assert drawn == [[7.5e-4, 1.5e-3, 3e-3], [2.0, 4.0]]


def crosses(found: Probed) -> list[list[float]]:
    """Where each panel has crosses, all of them at its top."""
    at = []
    for axes in probes_figure(found).axes:
        (line,) = (line for line in axes.lines if line.get_marker() == "x")
        assert line.get_linestyle() == "None"
        assert line.get_transform() == axes.get_xaxis_transform()
        assert set(line.get_ydata()) == {0.97}
        at.append(line.get_xdata().tolist())
    return at


def test_a_place_that_diverged_is_a_cross_and_no_probe_whether_it_has_a_loss_or_not() -> None:
    """The loss of one is the mean of those seeds that did not diverge."""
    changed = copy.deepcopy(PREDICTION)
    changed["status"]["validation"]["places"][2]["state"] = "Diverged"
    found = read_probed(changed, 2048)
    assert found.places[2].loss == 3.58
    assert found.places[2].standard_error is None
    assert crosses(found) == [[3e-3], [8.0]]
    rates, _ = probes_figure(found).axes
    assert rates.containers[0].lines[0].get_xdata().tolist() == [7.5e-4, 1.5e-3]
    assert all(3.58 not in line.get_ydata() for line in rates.lines)
    keys = [text.get_text() for text in probes_figure(found).legends[0].texts]
    assert "diverged" in keys


def test_without_a_divergence_there_is_no_cross() -> None:
    changed = copy.deepcopy(PREDICTION)
    changed["status"]["validation"]["places"].pop()
    figure = probes_figure(read_probed(changed, 2048))
    assert "diverged" not in [text.get_text() for text in figure.legends[0].texts]
    assert all(line.get_marker() != "x" for axes in figure.axes for line in axes.lines)


def test_answer_and_refined_answer_are_told_apart_by_their_lines() -> None:
    rates, _ = probes_figure(probed()).axes
    upright = {
        line.get_linestyle(): line.get_xdata()[0]
        for line in rates.lines
        if len(set(line.get_xdata())) == 1 and line.get_linestyle() in ("--", "-.")
    }
    assert upright == {"--": 1.5e-3, "-.": 2.5e-3}


def test_probes_without_a_verdict_yet_are_drawn_without_a_refined_answer() -> None:
    found = probed(refined={}, conditions=[])
    assert (found.learning_rate, found.verdict) == (None, "Validated=Unknown")
    assert "refined" not in [text.get_text() for text in probes_figure(found).legends[0].texts]


def test_the_refined_batch_size_is_in_the_sequences_of_the_probes(laws: Laws) -> None:
    """A status has it in sequences of the target's length, and the probes in those of the sweep's."""
    assert laws.sequence_length == 2048
    found = read_probed({**PREDICTION, "spec": {"targetSequenceLength": 8192}}, 2048)
    assert found.places == probed().places
    assert found.batch_size == Interval(17.6, 12.4, 24.8)
    _, batches = probes_figure(found).axes
    assert batches.get_xlabel() == "batch size (sequences of 2048)"
    assert probes_table(found).heads[1] == "batch size (sequences of 2048)"
    with draw_empty_figures:
        page = render_report(laws, (), title="x", probed=found)
    assert "18 [12, 25] sequences of 2048." in page


@pytest.mark.parametrize("spec", [{}, {"targetSequenceLength": 2048}])
def test_one_length_of_sequences_is_not_named(spec: dict[str, int]) -> None:
    found = read_probed({**PREDICTION, "spec": spec}, 2048)
    assert (found.batch_size, found.unit) == (Interval(4.4, 3.1, 6.2), "sequences")


def test_what_cannot_be_converted_is_not_drawn_beside_the_probes() -> None:
    found = read_probed({**PREDICTION, "spec": {"targetSequenceLength": 8192}}, None)
    assert (found.batch_size, found.unit) == (None, "sequences")


def test_the_page_has_the_verdict_and_escapes_its_message(laws: Laws) -> None:
    with draw_empty_figures:
        page = render_report(laws, (), title="demo", probed=probed())
        plain = render_report(laws, (), title="demo")
    assert ">Validation</h2>" in page
    assert "BetterAnswerNearby" in page
    assert "&lt;b&gt;it loses" in page
    assert "learning rate 2.5e-3" in page
    assert ">Validation</h2>" not in plain


def test_the_figure_is_drawn_where_there_are_probes() -> None:
    drawn = draw_figures(fit_laws(()), (), probed=probed()).probes
    assert drawn is not None
    assert as_png(drawn) == as_png(probes_figure(probed()))
    assert draw_figures(fit_laws(()), ()).probes is None
