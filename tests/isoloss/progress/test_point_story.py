"""The story of a point: what it tells of each way a point can go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isoloss.errors import BadInput
from isoloss.laws import FitOptions, Laws, fit_laws
from isoloss.progress.operator_files import FitSummary
from isoloss.progress.point_facts import PointFacts, find_point
from isoloss.progress.point_story import document, fit_use, story, story_text
from isoloss_contract.ledger import (
    NOT_CHOSEN,
    AddedPoint,
    Attempts,
    FailureRecord,
    Intent,
    IntentAction,
    Ledger,
    PointRecord,
    PointState,
)
from isoloss_contract.records import OptimizerConfig, PointConfig, TrajectoryRow
from tests.isoloss.progress.small_sweeps import done, ledger, record, report
from tests.support.planted_runs import planted_runs


@pytest.fixture(scope="module")
def laws() -> Laws:
    runs = planted_runs()
    return fit_laws(runs, FitOptions(bootstrap_samples=20, exclude=(runs[0].name,)))


def facts(point: PointRecord, within: Ledger | None = None, **changes: Any) -> PointFacts:
    return PointFacts(within or ledger(point), point, "file:///store/points/1", **changes)


def told(found: PointFacts) -> dict[str, str]:
    return dict(story(found))


def test_a_pruned_point_tells_when_why_and_by_how_much() -> None:
    intent = Intent(IntentAction.PRUNE, 300_000, "AboveLeader", 0.0512)
    pruned = done(1, tokens=300_000, trained_for=300_000, intent=intent)
    assert told(facts(pruned))["wanted"] == (
        "pruned after 300k of 1M tokens; AboveLeader: it cannot end below the leader; "
        "it would end at least 0.051 nats above the leader"
    )


def test_a_point_that_the_search_has_not_chosen_says_so_and_is_not_fitted() -> None:
    waiting = record(1, intent=Intent(IntentAction.PAUSE, reason=NOT_CHOSEN))
    assert told(facts(waiting))["wanted"] == (
        "nothing yet of 1M tokens in all; NotChosenYet: the search has not asked for it"
    )
    assert told(facts(waiting))["in the fit"].startswith("not used: NotChosenYet")


def test_a_point_that_cooled_down_tells_the_loss_and_the_tokens_of_that_copy() -> None:
    cooled = facts(done(1, cooled_tokens=900_000, cooled_loss=2.6123))
    assert told(cooled)["trained"].endswith("cooled down at 900k tokens 2.6123")
    assert (document(cooled)["cooled_tokens"], document(cooled)["cooled_loss"]) == (
        900_000,
        2.6123,
    )
    assert "cooled" not in told(facts(done(1)))["trained"]


def test_an_added_point_names_the_reason_of_its_addition() -> None:
    added = AddedPoint("tiny", 8, 1e-3, "BeyondEdge")
    within = ledger(record(1), additions=(added,))
    assert "added to the grid (BeyondEdge" in told(facts(record(1), within))["settings"]


def test_attempts_are_counted_by_outcome_and_the_kept_messages_are_told() -> None:
    attempts = Attempts(
        ended=4,
        last_failure="Crashed",
        last_ended_at="2026-09-01T12:00:00Z",
        interruptions=2,
        charged={"Crashed": 2},
        failures=(FailureRecord(attempt=4, job_uid="u", failure="Crashed", message="bad GPU"),),
    )
    found = told(facts(record(1, attempts=attempts)))
    assert found["attempts"] == (
        "4 ended, 2 interrupted (not charged), 2 charged as Crashed; "
        "the last at 2026-09-01T12:00:00Z: Crashed"
    )
    assert found["attempt 4"] == "Crashed: bad GPU"


def test_a_running_point_tells_how_far_its_attempt_is_and_one_that_ended_does_not() -> None:
    running = record(1)
    now = told(facts(running, progress=report(running, 250_000)))["training now"]
    assert now.startswith("attempt 1, 250k of 1M tokens, loss 4.5000, 12k tokens per second")
    ended = replace(running, attempts=Attempts(ended=1))
    assert "training now" not in told(facts(ended, progress=report(ended, 250_000)))


def test_evaluations_of_the_warm_up_are_counted_as_left_out(laws: Laws) -> None:
    config = PointConfig(
        data_digest="a" * 32,
        mixture={"general": 1.0},
        model={"model_type": "llama"},
        optimizer=OptimizerConfig(warmup_tokens=100),
        learning_rate=1e-3,
        batch_size=8,
        sequence_length=128,
    )
    rows = tuple(TrajectoryRow(step=n, tokens=n * 100, loss=4.0) for n in (1, 2, 3))
    found = facts(done(1), config=config, trajectory=rows, laws=laws)
    assert fit_use(found) == (
        "used",
        "without 2 of 3 evaluations, up to 200 tokens, because of the warm-up",
    )


def test_what_the_fit_left_out_of_a_run_is_told_in_its_words(laws: Laws) -> None:
    excluded = laws.excluded[0]
    named = done(1, name=excluded.run)
    assert fit_use(facts(named, laws=laws)) == ("not used, or not all of it: excluded as asked",)


def test_without_laws_a_result_is_to_be_used() -> None:
    assert fit_use(facts(done(1))) == ("to be used: there are no laws yet",)


@pytest.mark.parametrize("state", PointState)
def test_a_state_is_explained_in_other_words_than_its_own(state: PointState) -> None:
    name, explanation = told(facts(record(1, state=state)))["state"].split(": ", 1)
    assert name == state
    assert not explanation.lower().startswith(str(state).lower())


def test_laws_of_fewer_points_than_have_results_are_called_so(laws: Laws) -> None:
    found = facts(done(1), ledger(done(1), done(2)), laws=laws, fit=FitSummary(points=1))
    assert fit_use(found) == (
        "used",
        "the laws are from 1 point, and there are results of 2 by now",
    )


@pytest.mark.parametrize("state", [PointState.FAILED, PointState.OUT_OF_MEMORY])
def test_a_point_that_failed_for_good_is_not_fitted(state: PointState) -> None:
    assert fit_use(facts(record(1, state=state))) == ("not used: it failed for good",)


def test_what_cannot_be_read_is_named_and_the_rest_is_told() -> None:
    found = story(facts(done(1), unreadable=("file:///store/points/1/config.json: not JSON",)))
    assert ("unreadable", "file:///store/points/1/config.json: not JSON") in found
    assert dict(found)["trained"].startswith("1M tokens")


def test_text_is_folded_at_the_width_under_its_own_column() -> None:
    text = story_text((("wanted", "all 1M tokens of this point"), ("", "next")), 28)
    assert text.splitlines() == [
        "wanted  all 1M tokens of",
        "        this point",
        "        next",
    ]


def test_a_program_gets_reasons_and_bounds_as_values() -> None:
    intent = Intent(IntentAction.PRUNE, 300_000, "AboveLeader", 0.05)
    found = document(facts(done(1, intent=intent), fit=FitSummary(points=1)))
    assert found["intent"] == {
        "action": "Prune",
        "tokens": 300_000,
        "reason": "AboveLeader",
        "bound": 0.05,
    }


# ------------------------------------------------------------------------- finding the point


def test_a_point_is_found_by_name_or_by_the_start_of_its_key() -> None:
    points = ledger(record(1), record(0xABC << 100))
    assert find_point(points, "tiny-b8-1").key == f"{1:032x}"
    assert find_point(points, points.points[1].key[:8]) is points.points[1]


def test_a_dropped_point_is_found_too_and_says_that_it_was_dropped() -> None:
    within = ledger(former=(done(1),))
    found = facts(find_point(within, "tiny-b8-1"), within)
    assert "an edit of the spec dropped it" in told(found)["settings"]
    assert fit_use(found) == ("not used: it is no longer part of the sweep",)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("tiny-b9", "no point of dense has this name or key; there are tiny-b8-1, tiny-b8-2"),
        ("tiny-b8", "there are tiny-b8-1, tiny-b8-2"),
        ("00000000", "several points of dense: give one of the keys"),
    ],
)
def test_a_name_that_is_no_single_point_is_refused_with_those_there_are(
    wanted: str, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        find_point(ledger(record(1), record(2)), wanted)


def test_one_sequence_is_no_plural() -> None:
    assert "1 sequence per step," in told(facts(record(1, batch=1)))["settings"]
    assert "8 sequences per step," in told(facts(record(1)))["settings"]
