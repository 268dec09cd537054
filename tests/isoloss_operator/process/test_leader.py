"""Leader election on a Lease: one leads, a silent leader is replaced, a leaving one lets go."""

import copy
import threading
from typing import Any

import pytest

from isoloss_operator.cluster.client import Conflict, Unavailable
from isoloss_operator.process.leader import Elector, Terms


class Leases:
    """The API server's part: one Lease with optimistic locking."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.down = False

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
        if self.down:
            raise Unavailable("down")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def leases() -> Leases:
    return Leases()


def elector(leases: Leases, name: str, clock: Clock, period: float = 0.01) -> Elector:
    terms = Terms(lease=15, deadline=10, period=period)
    return Elector(leases, "system", "operator", name, terms, clock=clock)  # type: ignore[arg-type]


def test_the_first_leads_and_the_second_waits(leases: Leases) -> None:
    clock = Clock()
    first, second = elector(leases, "first", clock), elector(leases, "second", clock)
    assert first.acquire()
    assert not second._try_once()
    assert not second.is_leader


def test_a_silent_leader_is_replaced_after_its_lease_and_not_before(leases: Leases) -> None:
    clock = Clock()
    elector(leases, "first", clock).acquire()
    second = elector(leases, "second", clock)
    assert not second._try_once()
    clock.now += 14
    assert not second._try_once()
    clock.now += 2
    assert second._try_once()
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "second"
    assert leases.lease["spec"]["leaseTransitions"] == 1


def test_a_renewing_leader_is_never_replaced(leases: Leases) -> None:
    clock = Clock()
    first, second = elector(leases, "first", clock), elector(leases, "second", clock)
    first.acquire()
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
    clock = Clock()
    first, second = elector(leases, "first", clock), elector(leases, "second", clock)
    first.acquire()
    second._try_once()
    first.stop()
    assert second._try_once()


def test_a_candidate_that_never_led_does_not_release_anothers_lease(leases: Leases) -> None:
    clock = Clock()
    elector(leases, "first", clock).acquire()
    second = elector(leases, "second", clock)
    second._try_once()
    second.stop()
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "first"


def test_a_leader_that_can_not_renew_hears_of_it_before_its_lease_ends(leases: Leases) -> None:
    clock = Clock()
    leader = elector(leases, "first", clock)
    leader.acquire()
    lost = threading.Event()
    leader.keep(lost.set)
    leases.down = True
    clock.now += 9
    assert not lost.wait(0.2)
    clock.now += 2
    assert lost.wait(5)
    assert not leader.is_leader


def test_a_leader_whose_lease_is_anothers_hears_of_it_at_once(leases: Leases) -> None:
    clock = Clock()
    leader = elector(leases, "first", clock)
    leader.acquire()
    assert leases.lease is not None
    leases.lease["spec"]["holderIdentity"] = "usurper"
    lost = threading.Event()
    leader.keep(lost.set)
    assert lost.wait(5)


def test_waiting_can_be_ended(leases: Leases) -> None:
    clock = Clock()
    elector(leases, "first", clock).acquire()
    second = elector(leases, "second", clock)
    result: list[bool] = []
    thread = threading.Thread(target=lambda: result.append(second.acquire()))
    thread.start()
    second.stop()
    thread.join(5)
    assert result == [False]


def test_terms_that_could_have_two_leaders_are_refused() -> None:
    with pytest.raises(ValueError, match="renew deadline"):
        Terms(lease=10, deadline=10, period=2)
