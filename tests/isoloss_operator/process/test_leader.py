"""Leader election on a Lease: one leads, a silent leader is replaced, a leaving one lets go."""

import copy
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from isoloss_operator.cluster.client import Conflict, Unavailable
from isoloss_operator.process import leader
from isoloss_operator.process.leader import Elector, Terms
from tests.support.chance import Clock


class Leases:
    """The API server's part: one Lease with optimistic locking."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.down = False
        self.answering = threading.Event()
        """Cleared: calls hang."""
        self.answering.set()

    def get(self, *_: object) -> dict[str, Any] | None:
        self._answer()
        return copy.deepcopy(self.lease)

    def create(self, _kind: object, _namespace: str, body: dict[str, Any]) -> None:
        self._answer()
        if self.lease is not None:
            raise Conflict("exists", 409)
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = "1"

    def replace(self, _kind: object, _namespace: str, _name: str, body: dict[str, Any]) -> None:
        self._answer()
        assert self.lease is not None
        version = self.lease["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise Conflict("changed", 409)
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(int(version) + 1)

    def _answer(self) -> None:
        self.answering.wait()
        if self.down:
            raise Unavailable("down")


@pytest.fixture
def leases() -> Leases:
    return Leases()


def elector(leases: Leases, name: str, clock: Clock, period: float = 0.01) -> Elector:
    terms = Terms(lease=15, deadline=10, period=period)
    return Elector(leases, "system", "operator", name, terms, clock=clock)  # type: ignore[arg-type]


def two(leases: Leases) -> tuple[Clock, Elector, Elector]:
    """A leader and another candidate, with one clock."""
    clock = Clock()
    first, second = elector(leases, "first", clock), elector(leases, "second", clock)
    assert first.acquire()
    return clock, first, second


def test_a_silent_leader_is_replaced_after_its_lease_and_not_before(leases: Leases) -> None:
    clock, first, second = two(leases)
    assert not second._try_once()
    assert not second.is_leader
    clock.now += 14
    assert not second._try_once()
    clock.now += 2
    assert second._try_once()
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "second"
    assert leases.lease["spec"]["leaseTransitions"] == second.epoch == first.epoch + 1


def test_a_renewing_leader_is_never_replaced(leases: Leases) -> None:
    clock, first, second = two(leases)
    for _ in range(10):
        clock.now += 10
        assert first._try_once()
        assert not second._try_once()


def test_of_two_that_take_over_at_once_one_wins(leases: Leases) -> None:
    clock = Clock()
    elector(leases, "gone", clock).acquire()
    takers = [elector(leases, name, clock) for name in ("a", "b")]
    for taker in takers:
        taker._try_once()
    clock.now += 20
    read = threading.Barrier(2)
    get = leases.get

    def both_read_first(*arguments: object) -> dict[str, Any] | None:
        answer = get(*arguments)
        read.wait(5)
        return answer

    leases.get = both_read_first  # type: ignore[method-assign]
    won: list[bool] = []
    threads = [threading.Thread(target=lambda t=t: won.append(t._try_once())) for t in takers]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, True]


def test_a_leaving_leader_lets_the_next_in_at_once(leases: Leases) -> None:
    _, first, second = two(leases)
    second._try_once()
    first.stop()
    assert second._try_once()


def test_a_candidate_that_never_led_does_not_release_anothers_lease(leases: Leases) -> None:
    _, _, second = two(leases)
    second._try_once()
    second.stop()
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "first"


def test_a_leader_whose_call_hangs_hears_of_it_before_its_lease_ends(leases: Leases) -> None:
    terms = Terms(lease=1.2, deadline=0.6, period=0.05)
    hanging = Elector(leases, "system", "operator", "first", terms)  # type: ignore[arg-type]
    hanging.acquire()
    lost = threading.Event()
    hanging.keep(lost.set)
    time.sleep(0.2)
    leases.answering.clear()
    assert lost.wait(terms.lease - 0.1)
    assert not hanging.is_leader
    leases.answering.set()


def test_a_leader_that_can_not_renew_hears_of_it_once_before_its_lease_ends(
    leases: Leases,
) -> None:
    clock, loser, _ = two(leases)
    reported: list[int] = []
    loser.keep(lambda: reported.append(1))
    leases.down = True
    clock.now += 9
    time.sleep(0.2)
    assert reported == []
    clock.now += 2
    time.sleep(0.3)
    assert reported == [1]
    assert not loser.is_leader
    leases.down = False
    before = copy.deepcopy(leases.lease)
    time.sleep(0.2)
    assert leases.lease == before, "it does not renew what it has given up"


def epoch_after(leases: Leases, name: str) -> int:
    """The epoch of one more leader, which leaves again."""
    each = elector(leases, name, Clock())
    assert each.acquire()
    epoch = each.epoch
    each.stop()
    return epoch


def test_every_leader_has_a_higher_epoch_than_the_one_before(leases: Leases) -> None:
    epochs = [epoch_after(leases, name) for name in ("a", "b", "a", "c")]
    assert epochs == sorted(set(epochs))


def test_epochs_grow_on_although_the_lease_was_deleted(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = max(epoch_after(leases, name) for name in ("a", "b", "c"))
    leases.lease = None
    an_hour_on = int((datetime.now(UTC) - leader.FIRST_EPOCH).total_seconds()) + 3600
    monkeypatch.setattr(leader, "_epoch_of_now", lambda: an_hour_on)
    assert epoch_after(leases, "d") > before


def test_a_leader_can_outrank_an_epoch_that_a_faster_clock_left_in_the_store(
    leases: Leases,
) -> None:
    _, first, _ = two(leases)
    found = first.epoch + 10_800
    assert first.outrank(found)
    assert first.epoch == found + 1
    assert first._try_once()
    assert first.epoch == found + 1
    first.stop()
    assert epoch_after(leases, "second") == found + 2


def test_a_leader_that_was_replaced_or_whose_lease_is_gone_outranks_nobody(leases: Leases) -> None:
    clock, first, second = two(leases)
    second._try_once()
    clock.now += 20
    assert second.acquire()
    assert not first.outrank(second.epoch)
    assert second.outrank(second.epoch)
    leases.lease = None
    assert not second.outrank(second.epoch)


def test_without_an_answer_nobody_is_outranked_and_nothing_is_concluded(leases: Leases) -> None:
    _, first, _ = two(leases)
    epoch, leases.down = first.epoch, True
    with pytest.raises(Unavailable):
        first.outrank(epoch)
    assert first.epoch == epoch
    assert first.is_leader


def test_an_epoch_far_ahead_of_every_clock_is_nobodys(leases: Leases) -> None:
    """An epoch that a store names is believed up to a year ahead: 2^31 - 1, which int32 ends with, never is."""
    first, now = elector(leases, "first", Clock()), leader._epoch_of_now()
    assert first.can_exist(now + 300 * 86400)
    assert not first.can_exist(now + 366 * 86400)
    assert not first.can_exist(2**31 - 2)


def test_two_under_one_name_both_lead(leases: Leases) -> None:
    """This is how the fault matrix has two operators write at the same time."""
    assert all(elector(leases, "both", Clock()).acquire() for _ in range(2))


def test_a_renewal_of_two_calls_fits_into_the_deadline() -> None:
    terms = Terms()
    assert 2 * terms.call_seconds <= terms.deadline


def test_a_leader_whose_lease_is_anothers_hears_of_it_at_once(leases: Leases) -> None:
    _, leader, _ = two(leases)
    assert leases.lease is not None
    leases.lease["spec"]["holderIdentity"] = "usurper"
    lost = threading.Event()
    leader.keep(lost.set)
    assert lost.wait(5)


def test_waiting_can_be_ended(leases: Leases) -> None:
    _, _, second = two(leases)
    result: list[bool] = []
    thread = threading.Thread(target=lambda: result.append(second.acquire()))
    thread.start()
    second.stop()
    thread.join(5)
    assert result == [False]


def test_others_wait_for_no_less_than_the_lease(leases: Leases) -> None:
    """The Lease has whole seconds: rounded down, they could be less than the renew deadline."""
    terms = Terms(lease=2.49, deadline=2.3, period=0.01)
    assert Elector(leases, "system", "operator", "first", terms).acquire()  # type: ignore[arg-type]
    assert leases.lease is not None
    assert leases.lease["spec"]["leaseDurationSeconds"] == 3
