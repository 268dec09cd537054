"""The search on the page: every point in its panel, reasons and bounds in the table, nothing without a search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from isoloss.laws import Laws, fit_laws
from isoloss.progress.sweep_state import SweepState, sweep_state
from isoloss.report.content import point_rows
from isoloss.report.drawing import as_png
from isoloss.report.page import draw_figures, png_files, render_report
from isoloss.report.search_figure import search_map, search_sentence, search_table
from isoloss.report.trajectory_figure import plot_trajectories
from isoloss.stages import stopped_in_words
from isoloss_contract.ledger import NOT_CHOSEN, AddedPoint, Intent, IntentAction
from tests.isoloss.progress.small_sweeps import done, ledger, record
from tests.support.empty_figures import BLANK, draw_empty_figures
from tests.support.planted_laws import fitted_laws
from tests.support.planted_runs import planted_runs

BOUND = Intent(IntentAction.PRUNE, 300_000, "AboveLeader", 0.05)
BEYOND = Intent(IntentAction.RUN, 1_000_000, "BeyondEdge")
PART = {"tokens": 300_000, "trained_for": 300_000, "flops": 1.8e12}


@pytest.fixture(scope="module")
def laws() -> Laws:
    return fitted_laws()


def searched() -> SweepState:
    points = (
        done(1, 4.1, rate=1e-3, intent=Intent(IntentAction.RUN, 1_000_000, "Leader")),
        done(2, 4.3, rate=2e-3, **PART, intent=BOUND),
        done(3, 4.2, rate=5e-4, intent=BEYOND),
        record(4, batch=16, intent=Intent(IntentAction.PAUSE, reason=NOT_CHOSEN)),
        record(5, "small<b>", intent=Intent(IntentAction.RUN, 500_000, "AimedByLaws")),
    )
    added = AddedPoint("tiny", 8, 5e-4, "BeyondEdge")
    return sweep_state(ledger(*points, additions=(added,)), {})


def test_the_table_has_what_was_pruned_and_added_with_reason_and_bound() -> None:
    rows = search_table(searched()).rows
    assert [row[:4] for row in rows] == [
        ("tiny-b8-2", "pruned", "300k", "30.0%"),
        ("tiny-b8-3", "finished", "1M", "100.0%"),
    ]
    assert "at least 0.05 nats above the leader" in rows[0][4]
    assert rows[1][4].startswith("added (BeyondEdge: ")


def test_a_repeat_is_in_the_table_and_its_point_stays_one_of_the_grid() -> None:
    leader = done(1, 4.1, rate=1e-3, intent=Intent(IntentAction.RUN, 1_000_000, "Leader"))
    reason = Intent(IntentAction.RUN, 600_000, "Replicate")
    repeat = done(2, 4.1, rate=1e-3, name="tiny-b8-1-s7", intent=reason)
    added = AddedPoint("tiny", 8, 1e-3, "Replicate", seed=7)
    state = sweep_state(ledger(leader, repeat, additions=(added,)), {})
    ((name, *_, why),) = search_table(state).rows
    assert name == "tiny-b8-1-s7"
    assert why.startswith("added (Replicate: another seed of the best point")
    assert "repeats with other seeds: 1" in search_sentence(state)
    (panel,) = (axes for axes in search_map(state).axes if axes.get_visible())
    markers = [line.get_marker() for line in panel.lines]
    assert markers.count("o") == 2, "the ring and the disk of one point"
    assert "s" not in markers


def test_the_sentence_counts_points_under_way_without_knowing_their_pods() -> None:
    told = search_sentence(searched())
    assert told.startswith(
        "5 points: 2 finished, 1 pruned, 1 not chosen, 1 under way; cost so far"
    )


def test_the_map_has_a_panel_per_size_and_the_bound_at_its_point() -> None:
    figure = search_map(searched())
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["tiny", "small<b>"]
    assert [text.get_text() for text in panels[0].texts] == ["+0.05"]


def test_the_lowest_loss_is_seen_on_a_disk_that_fills_its_ring() -> None:
    """Point 1 is trained to its end and the best of its size: nothing about its ring could be seen."""
    panel = search_map(searched()).axes[0]
    (star,) = (line for line in panel.lines if line.get_marker() == "*")
    assert [*star.get_xdata(), *star.get_ydata()] == [8.0, 1e-3]
    below = [line for line in panel.lines if line.get_zorder() < star.get_zorder()]
    disks = [line for line in below if [*line.get_ydata()] == [1e-3]]
    assert max(line.get_markersize() for line in disks) > star.get_markersize()


def test_a_report_has_the_section_where_there_is_a_search_alone(laws: Laws) -> None:
    runs = planted_runs()
    with draw_empty_figures:
        assert ">Search</h2>" in render_report(laws, runs, title="dense", search=searched())
        assert ">Search</h2>" not in render_report(laws, runs, title="dense")
    drawn = draw_figures(fit_laws(()), (), search=searched()).search
    assert png_files(replace(BLANK, search=drawn))["search.png"] == as_png(search_map(searched()))
    assert "search.png" not in png_files(BLANK)


def test_what_a_search_stopped_is_not_said_to_train(laws: Laws) -> None:
    """Every point of a finished search but the last ones: neither in the table nor in the figure."""
    goes_on, *others = [run for run in planted_runs() if not run.diverged]
    stopped = [replace(run, finished=False, stopped="pruned") for run in others]
    states = [row.state for row in point_rows(stopped, laws)]
    assert set(states) == {"Pruned"}
    assert "still training" not in _words(plot_trajectories(laws, stopped))
    running = [*stopped, replace(goes_on, finished=False)]
    assert [row.state for row in point_rows(running, laws)].count("Training") == 1
    assert "still training" in _words(plot_trajectories(laws, running))


def test_a_stored_point_says_why_it_goes_on_no_more() -> None:
    short = done(2, 4.3, **PART, intent=Intent(IntentAction.RUN, 300_000, "Rung"))
    assert stopped_in_words(done(2, 4.3, **PART, intent=BOUND)) == "pruned"
    assert stopped_in_words(short) == "stopped on the way"
    assert stopped_in_words(done(1, 4.1)) == ""
    assert stopped_in_words(record(5, intent=Intent(IntentAction.RUN, 500_000))) == ""


def _words(figure: Figure) -> str:
    legends = figure.legends
    return " ".join(text.get_text() for legend in legends for text in legend.get_texts())
