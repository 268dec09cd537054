"""How far each size is, as the status says."""

from isoloss_contract.ledger import NOT_CHOSEN, Intent, IntentAction, PointState
from isoloss_operator.decide.status import size_statuses
from tests.support.ledgers import done, record, report

PAUSE, RUN = IntentAction.PAUSE, IntentAction.RUN


def test_a_size_has_its_points_its_share_of_what_is_wanted_and_its_lowest_loss() -> None:
    trains = record(3, "small")
    tiny, small = size_statuses(
        (done(1, 4.1), done(2, 4.0), trains), {trains.key: report(trains, 250_000)}
    )
    assert (tiny.proxy, tiny.progress, tiny.trained, tiny.loss) == ("tiny", "2/2", 100, "4.0000")
    assert (small.proxy, small.progress, small.trained, small.loss) == (
        *("small", "0/1"),
        25,
        "4.5000",
    )


def test_what_a_search_has_not_chosen_is_not_wanted() -> None:
    """A finished search comes to 100%."""
    stopped = done(2, 4.3, tokens=300_000, trained_for=300_000, intent=Intent(RUN, 300_000))
    paused = record(3, intent=Intent(PAUSE, reason=NOT_CHOSEN))
    (size,) = size_statuses((done(1), stopped, paused), {})
    assert (size.progress, size.trained) == ("2/3", 100)


def test_the_target_of_a_rung_is_what_is_wanted_of_it() -> None:
    half_way = record(1, tokens=150_000, intent=Intent(RUN, 300_000))
    (size,) = size_statuses((half_way,), {})
    assert size.trained == 50


def test_points_that_failed_or_diverged_want_no_more() -> None:
    failed = record(1, state=PointState.FAILED)
    diverged = record(2, state=PointState.DIVERGED, tokens=100_000, loss=1e9)
    (size,) = size_statuses((failed, diverged), {})
    assert (size.progress, size.trained, size.loss) == ("1/2", 100, "")


def test_only_points_that_came_furthest_are_compared() -> None:
    """A point at a third of its tokens has a higher loss than its final one, or another of a lower rung: no rival yet."""
    early = done(2, 3.9, tokens=300_000, trained_for=300_000, intent=Intent(RUN, 300_000))
    (size,) = size_statuses((done(1, 4.1), early), {})
    assert size.loss == "4.1000"


def test_100_says_that_nothing_is_left() -> None:
    almost = record(1, tokens=999_999)
    (size,) = size_statuses((almost,), {})
    assert size.trained == 99


def test_before_the_corpus_is_prepared_there_is_no_size() -> None:
    assert size_statuses((), {}) == ()
