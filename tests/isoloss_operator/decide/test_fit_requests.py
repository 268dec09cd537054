"""Which fit is asked for while another one runs."""

from dataclasses import replace
from typing import Any

import pytest

from isoloss_operator.decide.fits import FitOutcome, FitRequest, SweepPage
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.decide.sweep import decide_sweep
from tests.support.builders import (
    after,
    complete,
    condition,
    job,
    observed,
    parsed,
    points,
    progress,
    result,
    sweep_spec,
)
from tests.support.synthetic_runs import fitted_laws

POINTS = points()


def done(count: int, **changes: Any) -> ObservedSweep:
    """A sweep with its first points done."""
    jobs = tuple(complete(point) for point in POINTS[:count])
    found = {point.key: result(point) for point in POINTS[:count]}
    world = observed(jobs=jobs, results=found)
    return after(world, decide_sweep(world), **changes)


def asked(world: ObservedSweep) -> FitRequest:
    request = decide_sweep(world).fit
    assert request is not None
    return request


def test_more_points_do_not_end_a_provisional_fit() -> None:
    """Where they come faster than fits end, there would never be one."""
    running = asked(done(4))
    assert running.provisional
    assert decide_sweep(done(6, fit_running=running)).fit is None
    assert asked(done(6)).inputs != running.inputs


def test_the_final_fit_does_not_wait_for_a_provisional_one() -> None:
    final = asked(done(len(POINTS), fit_running=asked(done(6))))
    assert not final.provisional


def test_provisional_fits_rest_after_each_other_and_the_final_one_does_not_wait() -> None:
    """A sweep of thousands would be fitted without end, on a core that its Jobs could use."""
    assert decide_sweep(done(4, fit_in_backoff=True)).fit is None
    assert not asked(done(len(POINTS), fit_in_backoff=True)).provisional


def test_laws_whose_report_was_never_drawn_stand_while_the_fit_is_made_again_for_it() -> None:
    """An operator was killed between the two; its successor finds the laws of just these points."""
    final = asked(done(len(POINTS)))
    found = FitOutcome(final.inputs, fitted_laws(), laws_sha256="a" * 64, points=len(POINTS))
    undrawn = decide_sweep(done(len(POINTS), fit=found, report_missing=True))
    said = {each.type: (each.status, each.reason) for each in undrawn.status.conditions}
    assert said["Ready"] == ("True", "Fitted")
    assert said["Reconciling"] == ("True", "Converging")
    assert undrawn.status.laws_sha256 == "a" * 64
    assert undrawn.fit == final
    drawing = done(len(POINTS), fit=found, report_missing=True, fit_running=final)
    assert decide_sweep(drawing).fit is None
    assert decide_sweep(done(len(POINTS), fit=found)).fit is None, "one is tried once"


@pytest.mark.parametrize("fit", [{"weights": "Raw"}, {"irreducibleLoss": "1.69"}])
def test_a_fit_made_otherwise_than_the_spec_asks_is_not_waited_for(fit: dict[str, str]) -> None:
    """Its laws would be of no use."""
    running = asked(done(4))
    changed = done(4, fit_running=running, spec=parsed(sweep_spec(fit=fit)), generation=2)
    assert asked(changed).provisional
    assert (running.weights, asked(changed).weights) == (
        "averaged",
        fit.get("weights", "Averaged").lower(),
    )


def test_provisional_laws_of_another_spec_are_not_shown_until_more_points_are_done() -> None:
    """The next one may be days away, and the status says that it is of the present generation."""
    request = asked(done(6))
    laws = replace(
        fitted_laws(provisional=True),
        options=request.options,
        loss_kind=request.weights,
    )
    made = FitOutcome(request.inputs, laws, laws_sha256="a" * 64, points=6)
    assert decide_sweep(done(6, fit=made)).fit is None
    assert decide_sweep(done(6, fit=replace(made, inputs="of other names"))).fit is None
    assert asked(
        done(6, fit=made, spec=parsed(sweep_spec(fit={"weights": "Raw"})), generation=2)
    ).provisional


def test_a_final_fit_of_a_sweep_that_grew_since_is_not_waited_for() -> None:
    running = replace(asked(done(len(POINTS))), inputs="of a smaller grid")
    assert asked(done(len(POINTS), fit_running=running)).inputs != running.inputs


def test_a_fit_that_an_edit_asked_for_takes_no_place_of_laws_once_the_edit_is_taken_back() -> None:
    """Ready would turn False when it ends, and the laws in the store be others than the status names."""
    final = asked(done(len(POINTS)))
    laws = FitOutcome(final.inputs, fitted_laws(), laws_sha256="a" * 64, points=len(POINTS))
    edited = done(len(POINTS), fit=laws, spec=parsed(sweep_spec(fit={"weights": "Raw"})))
    reverted = done(len(POINTS), fit=laws, fit_running=asked(edited))
    assert asked(reverted) == final
    assert condition(decide_sweep(reverted), "Ready")[:2] == ("True", "Fitted")
    assert decide_sweep(replace(reverted, fit_running=final)).fit is None


# ---------------------------------------------------------------------- pages of a sweep on the way


def on_the_way(tokens: int = 500_000, **changes: Any) -> ObservedSweep:
    """Its first point trains and has reported; no page was asked for within the last minute."""
    first = POINTS[0]
    world = observed(jobs=(job(first),), progress={first.key: progress(first, tokens)})
    started = after(world, decide_sweep(world))
    return replace(started, **{"page_seconds": 60.0, **changes})


def page(world: ObservedSweep) -> SweepPage | None:
    return decide_sweep(world).page


def test_a_page_is_drawn_from_the_first_report_on_without_waiting_for_a_fit() -> None:
    asked_for = page(on_the_way())
    assert asked_for is not None
    assert asked_for.laws is None
    (size, *_) = asked_for.resource["status"]["sizes"]
    assert (size["progress"], size["trained"] > 0) == ("0/4", True)
    assert asked_for.resource["metadata"]["namespace"] == "research"
    assert "spec" not in asked_for.resource
    assert page(on_the_way(tokens=0)) is None, "nothing is reported"


def test_a_page_is_drawn_once_a_minute_at_most_and_only_if_it_shows_something_new() -> None:
    first = page(on_the_way())
    assert first is not None
    assert page(on_the_way(page_seconds=59.0)) is None
    assert page(on_the_way(fit_in_backoff=True)) is None, "as provisional fits rest"
    assert page(on_the_way(page_shows=first.inputs)) is None
    assert page(on_the_way(tokens=600_000, page_shows=first.inputs)) is not None


def test_fits_draw_the_page_themselves_and_a_finished_sweep_has_its_report() -> None:
    """A page that is drawn beside a fit would be older than the fit's own."""
    fits = done(4, page_seconds=3600.0)
    assert asked(fits).provisional
    assert page(fits) is None
    over = done(len(POINTS), page_seconds=3600.0)
    assert not asked(over).provisional
    assert page(over) is None


def test_the_report_uri_is_there_once_a_page_is_and_outlives_a_restart() -> None:
    without = decide_sweep(on_the_way()).status
    assert without.report_uri == ""
    world = on_the_way(page_drawn=True)
    drawn = decide_sweep(world)
    assert drawn.status.report_uri.endswith("/report.html")
    restarted = replace(after(world, drawn), page_drawn=False)
    assert decide_sweep(restarted).status.report_uri == drawn.status.report_uri


def test_laws_that_wait_for_a_process_are_said_to_wait() -> None:
    """With one process and two hundred pages before them, they were "being fitted" for minutes."""
    fitted = condition(decide_sweep(done(len(POINTS))), "Ready")
    assert fitted[1:] == ("Fitting", f"The laws are being fitted to {len(POINTS)} points.")
    waits = condition(decide_sweep(done(len(POINTS), fit_waits=True)), "Ready")
    assert waits[1] == "Fitting"
    assert waits[2].startswith(
        f"The laws wait to be fitted to {len(POINTS)} points: all fit processes"
    )
