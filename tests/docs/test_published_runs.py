"""The table of continued runs that others published: its rows, and what our two rules say of each."""

import csv
from typing import get_args

import numpy as np
import pytest

from isoloss import formatting
from isoloss.laws import Composition, Point
from isoloss.laws.answer.composition import composed
from isoloss.laws.answer.question import Question
from isoloss.laws.model import Interval
from tests.support.pages import CHECKOUT

EVIDENCE = CHECKOUT / "docs" / "evidence"
PAGE = (EVIDENCE / "published-runs.md").read_text()
with (EVIDENCE / "published_continued_runs.csv").open() as file:
    ROWS = list(csv.DictReader(file))
by_run = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["run"])


def share(row: dict[str, str]) -> float:
    """Of the compute, what is still to come."""
    past, budget = float(row["past"]), float(row["budget"])
    return budget / (past + budget)


def factors(composition: Composition, of: float) -> tuple[float, float]:
    """What the composition makes of a learning rate and a batch size of 1 at that share."""
    one = Interval(1.0, 1.0, 1.0)
    question = Question(
        log_params=None,
        flops_per_token=None,
        log_total=np.zeros(1),
        total_flops=one,
        equivalent_flops=None,
        target_loss=None,
        cpt_flops=of,
        place=None,
        batch_size=None,
        multiple=1.0,
        tolerance=None,
        composition=composition,
        composition_error=(0.0, 0.0),
        composes=True,
        past_flops=None,
    )
    found = composed(Point(one, one, total_flops=1.0), question, 0.8)
    return found.learning_rate.value, found.batch_size.value


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(";") if part]


def nearer(best: float, row: dict[str, str]) -> str:
    """The rule that is nearer in ln LR. By tokens the share is at least the given one: Measured says between √s and 1."""
    measured, _ = factors("Measured", share(row))
    if row["unit"] == "tokens" and measured < best < 1.0:
        return "open"
    return "Paper" if abs(np.log(best)) < abs(np.log(best / measured)) else "Measured"


@by_run
def test_the_page_has_the_row_of_the_file(row: dict[str, str]) -> None:
    write = formatting.count if row["unit"] == "tokens" else formatting.flops
    arrow = {"": "", "above": " ↑", "below": " ↓"}[row["beyond"]]
    cells = (
        row["run"],
        f"{write(float(row['past']))} → {write(float(row['budget']))}",
        f"{share(row):.2g}",
        row["rates"].replace(";", ", "),
        row["best"] + arrow,
        row["measured"],
        row["nearer"],
        f"{row['judged_by']}, {row['source']}",
    )
    assert f"| {' | '.join(cells)} |" in PAGE


@by_run
def test_what_our_rules_say_is_what_the_composition_does(row: dict[str, str]) -> None:
    for composition in get_args(Composition):
        found, _ = factors(composition, share(row))
        assert float(row[composition.lower()]) == float(f"{found:.2g}")
    assert row["nearer"] == nearer(float(row["best"]), row)


@by_run
def test_the_best_rate_is_that_of_the_results(row: dict[str, str]) -> None:
    """Of scores the highest; of losses the lowest of a parabola in ln LR."""
    rates, results = numbers(row["rates"]), numbers(row["results"])
    best = float(row["best"])
    assert row["source"]
    if not results:
        assert best in rates
    elif row["better"] == "high":
        assert best == rates[int(np.argmax(results))]
    else:
        square, slope, _ = np.polyfit(np.log(rates), results, 2)
        assert square > 0
        assert best == pytest.approx(np.exp(-slope / (2 * square)), abs=0.006)
        assert row["beyond"] == ("above" if best > max(rates) else "")


def test_the_page_counts_them() -> None:
    best = {row["run"]: float(row["best"]) for row in ROWS}
    message = {row["run"]: factors("Measured", share(row))[0] for row in ROWS}
    below = [run for run in best if message[run] < best[run]]
    further = [run for run in best if np.sqrt(message[run]) < best[run]]
    family = sum(run.startswith("Delphi") for run in below)
    assert f"√s is below the best rate in {len(below)} of {len(ROWS)} rows,** {family} of" in PAGE
    assert f"In {len(further)} rows 1 is nearer" in PAGE
    assert all(row["run"] in below for row in ROWS if row["judged_by"] == "loss")


@pytest.mark.parametrize(
    ("at", "rate", "batch"), [(ROWS[0], "(6e-5, 2600)", 1600), (ROWS[1], "(4.3e-5, 960)", 768)]
)
def test_the_answers_for_the_papers_runs(at: dict[str, str], rate: str, batch: float) -> None:
    of_rate, of_batch = factors("Measured", share(at))
    found = float(f"{float(at['reference_rate']) * of_rate:.2g}")
    assert f"`Measured` says {rate}" in PAGE
    assert rate == f"({found:.2g}, {float(f'{batch * of_batch:.2g}'):.0f})".replace("e-0", "e-")
