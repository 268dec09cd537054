"""What a notebook shows of laws, answers and refusals: a small table, not every number of a fit."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

import isoloss
from isoloss import datasets
from isoloss.laws import Interval, RefusalReason
from tests.support.synthetic_runs import answered

FEW = isoloss.FitOptions(bootstrap_samples=20)


@pytest.fixture(scope="module")
def table() -> isoloss.RunSet:
    return datasets.load_sample_runs()


@pytest.fixture(scope="module")
def laws(table: isoloss.RunSet) -> isoloss.Laws:
    return isoloss.fit_laws(table, FEW)


def cells(html: str) -> list[list[str]]:
    """The rows of its table; fails where it is not well-formed."""
    page = ElementTree.fromstring(f"<div>{html}</div>")
    return [[cell.text or "" for cell in row] for row in page.iter("tr")]


def test_runs_and_laws_have_a_representation_of_one_line(
    table: isoloss.RunSet, laws: isoloss.Laws
) -> None:
    assert repr(table) == "<RunSet: 75 runs of 30M, 100M, 300M parameters>"
    assert repr(laws) == "<Laws: fitted, of 3 sizes; summary() shows them>"


def test_what_a_notebook_shows_has_at_most_three_lines_and_six_digits(
    table: isoloss.RunSet, laws: isoloss.Laws
) -> None:
    answer = laws.predict(initial_loss=2.75, cpt_tokens=5e9, params=1e9)
    refused = laws.predict(total_flops=1e27)
    assert isinstance(answer, isoloss.Prediction)
    assert repr(table.runs[0]) == (
        "<Run n30m-b32-lr0.000125: 30M parameters, learning rate 1.25e-4, batch size 32 x 2048, "
        "24 evaluations to 4.8B tokens, last loss 3.7156>"
    )
    assert repr(refused) == "<Refused: ExtrapolationTooFar; summary() says what to change>"
    for shown in map(repr, (table.runs[0], answer, answer.learning_rate, refused, laws, table)):
        assert len(shown.splitlines()) <= 3
        found = re.findall(r"[1-9][\d.]*", shown)
        assert all(len(digits.strip(".").replace(".", "")) <= 6 for digits in found), shown
    assert "batch size" in repr(answer)
    assert (
        repr(Interval(1 / 3, 0.1, 2e7 / 3))
        == "Interval(value=0.333333, low=0.1, high=6.66667e+06)"
    )


def test_a_run_without_an_evaluation_has_a_representation(table: isoloss.RunSet) -> None:
    nothing = replace(table.runs[0], tokens=[], losses=[], diverged=True)  # type: ignore[arg-type]
    assert repr(nothing).endswith("no evaluation, diverged>")


def test_laws_answer_what_the_library_answers(laws: isoloss.Laws) -> None:
    question = {"initial_loss": 2.75, "cpt_tokens": 5e9, "params": 1e9}
    assert laws.predict(**question) == isoloss.predict(laws, isoloss.PredictionQuery(**question))
    with pytest.raises(TypeError, match="cpt_token"):
        laws.predict(initial_loss=2.75, cpt_token=5e9)
    with pytest.raises(ValueError, match="cpt_tokens needs params"):
        laws.predict(initial_loss=2.75, cpt_tokens=5e9)


def test_laws_are_shown_as_a_table_of_their_formulas(laws: isoloss.Laws) -> None:
    head, *rows = cells(laws._repr_html_())
    assert head == ["law", "status", "formula", "fit"]
    assert [row[0] for row in rows] == [
        *("learning rate", "batch size", "loss over compute", "joint surface")
    ]
    assert len(laws._repr_html_()) < 2000
    for _, status, formula, quality in rows:
        assert status == "Fitted"
        assert formula in laws.summary()
        assert quality in laws.summary()


def test_a_refused_law_is_shown_with_its_reason_and_what_to_change(
    table: isoloss.RunSet,
) -> None:
    one = isoloss.fit_laws([run for run in table.runs if run.params < 5e7], FEW)
    assert "TooFewSizes" in cells(one._repr_html_())[1]
    for shown in (one.summary(), one._repr_html_()):
        assert "train another size" in shown


def test_an_answer_is_shown_with_its_intervals_and_warnings(laws: isoloss.Laws) -> None:
    answer = answered(laws, datasets.QUESTION)
    head, rate, batch, *_ = cells(answer._repr_html_())
    assert head == ["", "80% interval"]
    for row in (rate, batch):
        assert row[1] in answer.summary()
        assert "[" in row[1]
    assert answer.warnings
    for warning in answer.warnings:
        assert warning in answer.summary()


def test_what_the_question_gives_is_shown_as_given(laws: isoloss.Laws) -> None:
    answer = answered(laws, total_flops=1e20, params=1e9, batch_size=64)
    _, rate, batch, total, *_ = cells(answer._repr_html_())
    assert "[" in rate[1]
    assert (batch[1], total[1]) == ("64 (given)", "1e20 (given)")


def test_a_refusal_is_shown_in_words_that_html_cannot_misread(laws: isoloss.Laws) -> None:
    refused = isoloss.predict(laws, isoloss.PredictionQuery(total_flops=1e27))
    assert isinstance(refused, isoloss.Refused)
    sentence = str(refused.refusals[0])
    assert sentence.startswith("ExtrapolationTooFar: The total compute, 1e+27 ")
    assert refused.summary().startswith(f"Refused: {sentence}")
    odd = isoloss.Refusal(RefusalReason.LAW_REFUSED, "a < b & c", {})
    assert "a &lt; b &amp; c" in isoloss.Refused((odd,))._repr_html_()


def test_a_fit_has_its_tables_as_arrow_and_as_data_frames(laws: isoloss.Laws) -> None:
    optima = laws.to_pandas()
    frontier = optima[optima["of"] == "frontier"]
    assert len(frontier) == len(laws.frontier)
    assert frontier["learning_rate"].tolist()[-1] == laws.frontier[-1].learning_rate
    assert laws.to_arrow("laws").column("law").to_pylist()[0] == "learning rate"
    assert laws.to_arrow("excluded").column_names == ["run", "reason"]
    with pytest.raises(ValueError, match="must be one of optima, laws, excluded, not 'runs'"):
        laws.to_arrow("runs")  # type: ignore[arg-type]


def test_an_answer_has_a_row_for_each_quantity(laws: isoloss.Laws) -> None:
    answer = answered(laws, total_flops=3e19, params=1e9)
    rows = {row["quantity"]: row for row in answer.to_arrow().to_pylist()}
    assert rows["learning_rate"]["high"] == answer.learning_rate.high
    assert "equivalent_flops" not in rows, "nothing was inverted"
