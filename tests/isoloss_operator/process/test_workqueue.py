"""The work queue's promises."""

import threading
import time

import pytest

from isoloss_operator.process.workqueue import Workers, WorkQueue
from tests.support.chance import Clock

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def queue_of(clock: Clock, **options: float) -> WorkQueue[str]:
    return WorkQueue(clock=clock, **options)  # type: ignore[arg-type]


def test_a_key_waiting_twice_is_worked_once(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add("a")
    queue.add("a")
    assert queue.get() == "a"
    queue.done("a")
    assert queue.ready() == 0


def test_keys_come_in_the_order_they_are_due(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add_after("late", 2)
    queue.add_after("early", 1)
    queue.add("now")
    clock.now += 5
    assert [queue.get() for _ in range(3)] == ["now", "early", "late"]


def test_the_earlier_of_two_times_counts(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 20)
    clock.now += 3
    assert queue.get() == "a"
    queue.done("a")
    clock.now += 100
    assert queue.ready() == 0, "the other two were the same wish"


def test_one_worker_per_key_even_if_a_delay_ends_meanwhile(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add("a")
    queue.get()
    queue.add_after("a", 1)
    clock.now += 2
    queue.add("b")
    assert queue.get() == "b"
    queue.done("a")
    clock.now += 2
    assert queue.get() == "a"


@pytest.mark.parametrize("while_worked", [False, True])
def test_the_minimum_interval_counts_from_the_start_of_the_last_run(
    clock: Clock, *, while_worked: bool
) -> None:
    queue = queue_of(clock, minimum_interval=5)
    queue.add("a")
    queue.get()
    if while_worked:
        queue.add("a")
    clock.now += 2
    queue.done("a")
    if not while_worked:
        queue.add("a")
    clock.now += 2
    assert queue.ready() == 0
    clock.now += 1
    assert queue.ready() == 1


def test_a_key_rests_half_as_long_as_its_run_took(clock: Clock) -> None:
    queue = queue_of(clock, minimum_interval=1)
    queue.add("a")
    queue.get()
    queue.add("a")
    clock.now += 10
    queue.done("a")
    clock.now += 4
    assert queue.ready() == 0
    clock.now += 1
    assert queue.ready() == 1


def test_rests_of_keys_long_gone_are_forgotten(clock: Clock) -> None:
    queue = queue_of(clock, minimum_interval=1)
    for number in range(5000):
        queue.add(str(number))
        queue.get()
        queue.done(str(number))
        clock.now += 0.01
    assert len(queue._rested) < 2000


def test_retries_grow_to_a_limit_and_start_over_once_forgotten(clock: Clock) -> None:
    queue = queue_of(clock, first_retry=1, longest_retry=5)
    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 5, 5]
    assert {queue.retry("a") for _ in range(2000)} == {5}
    queue.forget("a")
    assert queue.retry("a") == 1


def test_an_event_during_the_wait_for_a_retry_is_heeded_at_once(clock: Clock) -> None:
    queue = queue_of(clock, first_retry=100)
    queue.retry("a")
    queue.add("a")
    assert queue.get() == "a"


def test_a_closed_queue_hands_out_nothing(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add("a")
    queue.close()
    queue.add("b")
    assert queue.get() is None


def test_waits_and_runs_are_measured(clock: Clock) -> None:
    queue = queue_of(clock)
    queue.add("a")
    queue.add("b")
    clock.now += 3
    assert queue.longest_wait() == 3
    queue.get()
    clock.now += 4
    assert queue.longest_run() == 4
    assert queue.longest_wait() == 7


def test_a_backlog_that_is_worked_on_is_no_standstill(clock: Clock) -> None:
    """However long its last key waits: a restart would only make it wait again."""
    queue = grouped(clock, most=1)
    for number in range(30):
        queue.add(f"a{number}")
    for _ in range(30):
        key = queue.get()
        assert key is not None
        clock.now += 60
        assert queue.stalled_seconds() == 0, "the others wait for a worker of their own group"
        queue.done(key)
        assert queue.stalled_seconds() <= 60
    assert queue.stalled_seconds() == 0


def test_a_key_that_nobody_takes_is_a_standstill(clock: Clock) -> None:
    queue = grouped(clock, most=2)
    clock.now += 1000
    queue.add("a0")
    queue.add("a1")
    assert queue.stalled_seconds() == 0
    queue.get()
    clock.now += 40
    assert queue.stalled_seconds() == 40
    queue.get()
    assert queue.stalled_seconds() == 0


def run_workers(queue: WorkQueue[int], reconcile, count: int = 8) -> Workers[int]:  # type: ignore[no-untyped-def]
    workers = Workers(queue, reconcile, count=count)
    workers.start()
    return workers


def test_under_load_no_key_has_two_workers_and_no_wish_is_lost() -> None:
    queue: WorkQueue[int] = WorkQueue()
    wanted = [0] * 20
    worked = [0] * 20
    active: set[int] = set()
    overlaps = []

    def reconcile(key: int) -> None:
        if key in active:
            overlaps.append(key)
        active.add(key)
        worked[key] = wanted[key]  # level-triggered: it sees the newest wish
        time.sleep(0.0005)
        active.discard(key)

    workers = run_workers(queue, reconcile)

    def wish(seed: int) -> None:
        for turn in range(300):
            key = (turn * 7 + seed) % 20
            wanted[key] += 1
            queue.add(key)

    wishers = [threading.Thread(target=wish, args=(seed,)) for seed in range(4)]
    for thread in wishers:
        thread.start()
    for thread in wishers:
        thread.join()
    deadline = time.monotonic() + 20
    while worked != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    queue.close()
    assert workers.join(10)
    assert not overlaps
    assert worked == wanted


def test_a_failing_key_comes_back_and_others_go_on() -> None:
    queue: WorkQueue[int] = WorkQueue(first_retry=0.01)
    attempts = []
    finished = threading.Event()

    def reconcile(key: int) -> None:
        attempts.append(key)
        if key == 1 and attempts.count(1) < 4:
            raise RuntimeError("not yet")
        if key == 1:
            finished.set()

    workers = run_workers(queue, reconcile, count=1)
    queue.add(1)
    queue.add(2)
    assert finished.wait(10)
    queue.close()
    assert workers.join(10)
    assert attempts.count(1) == 4
    assert attempts.count(2) == 1


def test_the_delay_that_a_pass_asks_for_is_kept() -> None:
    queue: WorkQueue[int] = WorkQueue()
    times = []
    twice = threading.Event()

    def reconcile(key: int) -> float | None:
        times.append(time.monotonic())
        if len(times) == 2:
            twice.set()
            return None
        return 0.05

    workers = run_workers(queue, reconcile, count=1)
    queue.add(1)
    assert twice.wait(10)
    queue.close()
    assert workers.join(10)
    assert times[1] - times[0] >= 0.05


# ------------------------------------------------------------------------------------- groups


def grouped(clock: Clock, most: float = 10) -> WorkQueue[str]:
    """Keys are of the group that their first letter names."""
    return WorkQueue(clock=clock, group_of=lambda key: key[0], most_of_group=most)


def test_groups_take_turns_however_many_keys_one_of_them_has(clock: Clock) -> None:
    queue = grouped(clock)
    for number in range(100):
        queue.add(f"a{number}")
    queue.add("b0")
    first = [queue.get() for _ in range(3)]
    assert first == ["a0", "b0", "a1"]


def test_a_group_that_waited_longer_comes_before_one_that_was_just_served(clock: Clock) -> None:
    queue = grouped(clock)
    for key in ("a0", "a1", "b0", "b1"):
        queue.add(key)
    found = []
    for _ in range(4):
        served = queue.get()
        assert served is not None
        found.append(served)
        queue.done(served)
    assert found == ["a0", "b0", "a1", "b1"]


def test_a_group_whose_keys_never_end_leaves_a_worker_to_others(clock: Clock) -> None:
    queue = grouped(clock, most=2)
    for number in range(9):
        queue.add(f"a{number}")
    assert [queue.get(), queue.get()] == ["a0", "a1"]
    queue.add("b0")
    assert queue.get() == "b0"
    assert queue.ready() == 7
    queue.done("a0")
    assert queue.get() == "a2", "as soon as one of its own ends"


def test_what_somebody_asks_comes_before_what_is_only_looked_at_again(clock: Clock) -> None:
    queue = queue_of(clock)
    for key in ("a", "b", "c"):
        queue.add(key)
    queue.add("new", first=True)
    assert queue.get() == "new"
    queue.add("b", first=True)  # it is due already
    assert [queue.get() for _ in range(3)] == ["b", "a", "c"]


def test_the_newest_question_comes_before_what_was_asked_earlier(clock: Clock) -> None:
    """One asked after a hundred sweeps had been applied waited until all of them had begun."""
    queue = queue_of(clock)
    queue.add("again")
    for key in ("sweep-1", "sweep-2", "question"):
        queue.add(key, first=True)
        clock.now += 1
    assert [queue.get() for _ in range(4)] == ["question", "sweep-2", "sweep-1", "again"]


def test_what_has_waited_long_has_every_other_turn(clock: Clock) -> None:
    """Two resources that are edited all the time would have a namespace's only worker for ever."""
    queue = queue_of(clock, longest_wait=30.0)
    queue.add("edited once", first=True)
    queue.add("seen again")
    found = []
    for _ in range(24):
        for key in ("hot", "hotter"):
            queue.add(key, first=True)
        taken = queue.get()
        assert taken is not None
        found.append(taken)
        clock.now += 2
        queue.done(taken)
    assert found[:15] == ["hotter", "hot"] * 7 + ["hotter"]
    assert sorted(found[15:18:2]) == ["edited once", "seen again"]
    assert set(found[16::2]) <= {"hot", "hotter"}


def test_what_went_first_once_takes_its_turn_afterwards(clock: Clock) -> None:
    queue = queue_of(clock, rest_share=0.0)
    queue.add("a", first=True)
    assert queue.get() == "a"
    queue.done("a")
    clock.now += 1
    queue.add("b")
    clock.now += 1
    queue.add("a")
    assert [queue.get(), queue.get()] == ["b", "a"]


def test_a_key_that_is_asked_for_while_it_is_worked_on_goes_first_afterwards(clock: Clock) -> None:
    queue = queue_of(clock, rest_share=0.0)
    queue.add("a")
    assert queue.get() == "a"
    queue.add("b")
    queue.add("a", first=True)
    assert queue.ready() == 1, "one worker per key"
    queue.done("a")
    assert [queue.get(), queue.get()] == ["a", "b"]
    assert queue.ready() == 0


def test_what_goes_first_in_one_group_takes_no_turn_of_another(clock: Clock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, group_of=lambda key: key[0], rest_share=0.0)
    for key in ("a1", "a2", "b1"):
        queue.add(key, first=key[0] == "a")
    found = {(queue.get() or "")[0] for _ in range(2)}
    assert found == {"a", "b"}
