"""The picture of a sweep as text: what each point does, what the sweep waits for, and when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isoloss.laws import fit_laws
from isoloss.progress.picture import bar_line, cost_line, document, loss_map, picture
from isoloss.progress.sweep_reading import laws_in_lines
from isoloss.progress.sweep_state import SweepState, sweep_state
from isoloss.stages import Stage
from isoloss_contract.ledger import (
    NOT_CHOSEN,
    AddedPoint,
    Attempts,
    Intent,
    IntentAction,
    PointState,
    Spend,
)
from tests.isoloss.progress.small_sweeps import done, ledger, record, report
from tests.support.planted_runs import planted_runs

PAUSE, PRUNE, RUN = IntentAction.PAUSE, IntentAction.PRUNE, IntentAction.RUN
SEARCHED = ledger(
    done(1, 4.1, batch=8, rate=1e-3, intent=Intent(RUN, 1_000_000, "Leader")),
    done(2, 4.3, batch=8, rate=2e-3, tokens=300_000, trained_for=300_000, reached_tokens=300_000, spent=Spend(1.8e12),
         intent=Intent(PRUNE, 300_000, "AboveLeader", 0.05)),
    done(3, 4.2, batch=16, rate=1e-3, tokens=600_000, trained_for=600_000, spent=Spend(3.6e12),
         intent=Intent(RUN, 600_000, "NotRuledOut")),
    record(4, batch=16, rate=2e-3, intent=Intent(PAUSE, reason=NOT_CHOSEN)),
    record(5, "small", rate=1e-3, intent=Intent(RUN, 500_000, "AimedByLaws")),
    record(6, "small", rate=2e-3, intent=Intent(RUN, 500_000, "BesideLeader"),
           attempts=Attempts(ended=1, last_failure="Interrupted")),
    record(7, "small", batch=16, state=PointState.DIVERGED, tokens=100_000,
           spent=Spend(6e11)),
    record(8, "small", batch=16, rate=2e-3, state=PointState.FAILED),
)  # fmt: skip
TRAINING = report(SEARCHED.points[4], 250_000)


def searched() -> SweepState:
    return sweep_state(SEARCHED, {TRAINING.key: TRAINING})


def test_every_point_is_in_the_stage_that_ledger_and_reports_give_it() -> None:
    assert [point.stage for point in searched().points] == [
        *(Stage.FINISHED, Stage.PRUNED, Stage.STOPPED, Stage.NOT_CHOSEN),
        *(Stage.TRAINING, Stage.WAITING, Stage.DIVERGED, Stage.FAILED),
    ]


@pytest.mark.parametrize(("attempt", "uid"), [(1, SEARCHED.uid), (2, "another-sweep")])
def test_a_report_of_an_attempt_that_ended_or_of_another_sweep_is_no_training(
    attempt: int, uid: str
) -> None:
    waiting = SEARCHED.points[5]
    state = sweep_state(SEARCHED, {waiting.key: report(waiting, 9, attempt=attempt, uid=uid)})
    assert state.points[5].stage is Stage.WAITING


def test_marks_differ_so_that_the_picture_needs_no_colour() -> None:
    assert len({stage.mark for stage in Stage}) == len(Stage)


def test_the_map_has_losses_shares_and_marks_at_their_places() -> None:
    tiny, small = searched().sizes
    assert loss_map(tiny, 80) == [
        "tiny: B over LR",
        "                1e-3        2e-3",
        "16        4.200 60%|           -",
        "8        *4.100    =  4.300 30%x",
    ]
    assert loss_map(small, 80)[-1] == "8        *4.500 25%>           ."


def test_only_points_that_came_furthest_are_compared() -> None:
    """A point at a third of its tokens has a higher loss than its final one: it is no rival yet."""
    low_early = done(9, 3.9, tokens=300_000, trained_for=300_000, intent=Intent(RUN, 300_000))
    best = sweep_state(ledger(done(1, 4.1), low_early), {}).sizes[0].best
    assert best is not None
    assert best.record.name == "tiny-b8-1"


def test_the_bar_shows_trained_wanted_and_the_rest_of_the_whole_grid() -> None:
    tiny, small = searched().sizes
    # 0.3 + 1 + 0.6 of 4 points.
    assert "48%" in bar_line(tiny, 5, 80)
    bar = bar_line(small, 5, 80)
    room = bar.index("]") - bar.index("[") - 1
    assert bar.count("#") == round(room * 0.35 / 4)
    assert bar.count("#") + bar.count("-") == round(room * 1.1 / 4)


def test_cost_counts_what_runs_and_compares_it_with_the_grid_without_added_points() -> None:
    added = AddedPoint("small", 16, 2e-3, "BeyondEdge")
    state = sweep_state(SEARCHED.replace(additions=(added,)), {TRAINING.key: TRAINING})
    assert state.planned_flops == 7 * 6e12
    assert state.spent_flops == pytest.approx(6e12 + 1.8e12 + 3.6e12 + 6e11 + 250_000 * 6e6)
    assert cost_line(state) == (
        "cost so far 1.35e13 FLOPs, 32% of the whole grid's 4.2e13; points added beyond it: 1"
    )


def test_cost_counts_what_is_trained_on_top_of_what_others_spent() -> None:
    """As the ledger will, once the attempts end."""
    running = report(record(1), 500_000)
    theirs = done(
        2, adopted=True, spent=Spend(), reached_tokens=1_000_000, wanted_tokens=2_000_000
    )
    continued = replace(theirs, state=PointState.PENDING)
    reports = {running.key: running, theirs.key: report(theirs, 1_500_000)}
    state = sweep_state(ledger(record(1), continued), reports)
    assert state.spent_flops == pytest.approx(500_000 * 6e6 + 500_000 * 6e6)


def test_what_is_under_way_names_the_slowest_point_and_the_failures() -> None:
    told = searched().under_way
    assert "1 training, the slowest small-b8-5 at 50%" in told
    assert "1 without a slot or a first report (1 after Interrupted)" in told


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_asked_for(width: int) -> None:
    rates = [1e-3 * 1.3**n for n in range(12)]
    wide = ledger(*(done(n, rate=rate) for n, rate in enumerate(rates)))
    for state in (searched(), sweep_state(wide, {})):
        lines = picture(state, width).splitlines()
        assert max(len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("loss", [3.5, 11.7, 123.4, 1e6])
@pytest.mark.parametrize("first", [1.25e-4, 1.25e-11])
def test_neither_learning_rates_nor_losses_touch(width: int, loss: float, first: float) -> None:
    rates = [first * 2 ** (n / 2) for n in range(8)]
    part = {"tokens": 300_000, "trained_for": 300_000, "intent": Intent(RUN, 300_000)}
    records = [done(n, loss - n / 100, rate=rate, **part) for n, rate in enumerate(rates)]
    (size,) = sweep_state(ledger(*records), {}).sizes
    _, head, row, *more = loss_map(size, width)
    heads = head.split()
    assert [float(each) for each in heads] == pytest.approx(rates[: len(heads)], rel=0.01)
    assert [int(line.split()[0]) for line in more] == ([8 - len(heads)] if len(heads) < 8 else [])
    cells = [cell for cell in row.replace(" 30%", "30%").split()[1:] if cell != "|"]
    assert len(cells) == len(heads)
    assert max(len(head), len(row)) <= width


def test_learning_rates_that_do_not_fit_are_counted_not_hidden() -> None:
    rates = [1e-3 * 1.3**n for n in range(12)]
    (size,) = sweep_state(ledger(*(done(n, rate=r) for n, r in enumerate(rates))), {}).sizes
    assert loss_map(size, 40)[-1] == "8 more learning rates do not fit here"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_long_names_of_sizes_leave_room_for_their_bars(width: int) -> None:
    names = [f"dense-{n}00m-with-a-long-name-of-its-own-{n}" for n in (1, 2)]
    text = picture(
        sweep_state(ledger(*(done(n, proxy=name) for n, name in enumerate(names))), {}), width
    )
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    labels = [line.split()[0] for line in lines if "[#" in line]
    assert len(set(labels)) == 2
    assert all(
        name.startswith(label.partition("..")[0]) and name.endswith(label.partition("..")[2])
        for name, label in zip(names, labels, strict=True)
    )


def test_before_there_are_points_the_picture_says_so() -> None:
    assert "no points yet" in picture(sweep_state(ledger(data_digest=""), {}), 80)


def test_a_program_gets_every_point_with_its_stage() -> None:
    found = document(searched())
    assert [point["stage"] for point in found["points"]][:2] == ["finished", "pruned"]
    assert found["points"][4]["tokens"] == 250_000


LAWS = tuple(f"law {number}: Provisional LR = 1e-3 * L^{number}" for number in range(4))


@pytest.mark.parametrize("height", [1, 2, 3, 5, 8, 12, 16, 20, 23, 24, 40])
@pytest.mark.parametrize("width", [40, 80])
def test_a_fitted_picture_is_no_taller_than_the_screen_and_says_what_is_waited_for(
    height: int, width: int
) -> None:
    state = replace(searched(), laws=LAWS)
    lines = picture(state, width, height).splitlines()
    assert len(lines) <= height
    whole = picture(state, width).splitlines()
    assert lines[0] == whole[0]
    assert height < 6 or lines[-1] == whole[-1]


def test_at_24_rows_header_bars_laws_and_the_map_where_something_trains_are_shown() -> None:
    text = picture(replace(searched(), laws=LAWS), 80, 23)
    assert text.startswith("research/dense: 8 points")
    assert "tiny   [" in text
    assert "small  [" in text
    assert "small: B over LR" in text
    assert "tiny: B over LR" not in text
    assert "--once prints all maps, and what the marks mean" in text
    assert all(law in text for law in LAWS)


def test_many_sizes_leave_the_bars_of_the_largest() -> None:
    records = [done(number, proxy=f"size-{number:02}") for number in range(30)]
    text = picture(sweep_state(ledger(*records), {}), 80, 24)
    assert "size-29  [" in text
    assert "size-00" not in text
    assert "smaller sizes are not shown here" in text


def test_a_law_refused_while_the_sweep_runs_is_not_yet_there() -> None:
    """Two sizes are wanted, one has runs: that is the way of every sweep, and no refusal."""
    laws = fit_laws(planted_runs(sizes=(30e6,)), provisional=True)
    running = laws_in_lines(laws, is_over=False)
    assert running[0] == "learning rate: not yet: one size so far"
    assert laws_in_lines(laws, is_over=True)[0] == "learning rate: Refused TooFewSizes"
