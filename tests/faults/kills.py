"""SIGKILL after every single write of a sweep or a prediction: each number of writes is a row of its own.

Rows are played several at a time by one operator that serves a namespace for each. Each sweep makes
its number of writes, and every later one is held in the proxies without reaching a server; once all
have got there, one SIGKILL ends the operator and what it started. A second operator finishes them all.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.faults.fixture import Failed, FaultFixture, make_fixture
from tests.faults.harness import BUCKET, Harness
from tests.faults.rows import REFERENCES, Row
from tests.faults.servers import Server, kill_all, new_operator, new_server
from tests.faults.verdict import SETTLE_SECONDS, Expectation, Reference, Verdict, judge
from tests.faults.writes import Writes
from tests.support.operator_process import OperatorProcess, User, apply_account

BATCH = 10
HOLD_SECONDS = 150
LIFE_SECONDS = 90
MOST_LIVES = 60
BATCH_SETTINGS = {
    # A held sweep keeps a worker and up to `parallelism` writers: there must be enough for all.
    "ISOLOSS_WORKERS": "64",
    "ISOLOSS_JOB_WRITERS": "64",
    # A fit whose write is held keeps its process: the others must not wait for it.
    "ISOLOSS_FITS": "16",
    # It cannot be lost to a busy machine: its holder would end by itself, anywhere. A kill takes it away.
    "ISOLOSS_LEASE_SECONDS": "600",
    "ISOLOSS_RENEW_DEADLINE_SECONDS": "500",
}


@dataclass(frozen=True)
class Killed:
    """The sweep, or the prediction, that is killed after each of its writes."""

    rows: str
    """What the rows' names begin with."""
    reference: str
    """Name of the undisturbed one: one of REFERENCES."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Of the fixture."""
        return REFERENCES[self.reference]

    def row(self, number: int) -> str:
        """The row of a kill after so many writes."""
        return f"{self.rows}-{number:03}"


EXHAUSTIVE = Killed("kill/after", "kills")
SEARCH = Killed("search/kill-after", "killed searches")
JUDGE_KILLED = Killed("judge/kill-after", "judged")


def was_killed(verdict: Verdict) -> bool:
    """Whether the sweep made so many writes at all, and its operator was killed after the last."""
    return any(note.startswith("after ") for note in verdict.notes)


def play_kills(
    harness: Harness, numbers: Sequence[int], reference: Reference, killed: Killed = EXHAUSTIVE
) -> list[Verdict]:
    """One batch: a sweep, or a prediction, for each number of writes."""
    began = time.monotonic()
    namespaces = [harness.new_namespace(f"kill {number}") for number in numbers]
    apply_account(harness.api_client, namespaces[0], namespaces)
    server, writes = new_server(harness), Writes()
    for chain in (server.api_chain, server.store_chain):
        chain.handlers.append(writes)
    folder = harness.directory / "operators" / f"kills-{numbers[0]}-{namespaces[0]}"
    operator = new_operator(harness, server, namespaces, folder, BATCH_SETTINGS)
    fixtures = [
        _fixture(harness, killed.row(number), namespace, server, operator, killed.options)
        for number, namespace in zip(numbers, namespaces, strict=True)
    ]
    try:
        missed = _kill(fixtures, writes, dict(zip(namespaces, numbers, strict=True)))
        operator.start()
        failures = [missed.get(fixture.namespace, "") or _finish(fixture) for fixture in fixtures]
        time.sleep(SETTLE_SECONDS)
        return [
            judge(fixture, reference, Expectation(), failure, began)
            for fixture, failure in zip(fixtures, failures, strict=True)
        ]
    finally:
        fixtures[0].end()


def _fixture(
    harness: Harness,
    name: str,
    namespace: str,
    server: Server,
    operator: OperatorProcess,
    options: Mapping[str, Any],
) -> FaultFixture:
    user = User(harness.api_client, namespace)
    uri = f"s3://{BUCKET}/{namespace}"
    return make_fixture(harness, name, server, operator, user, uri, **options)


def _prepare(fixtures: Sequence[FaultFixture]) -> None:
    """What the fixtures begin with, all at once."""
    for fixture in fixtures:
        fixture.prepare()
    operator = fixtures[0].operator
    if not all(fixture.is_prepared() for fixture in fixtures):
        operator.start()
        for fixture in fixtures:
            fixture.wait(fixture.is_prepared, "what the row begins with", HOLD_SECONDS)


def _kill(
    fixtures: Sequence[FaultFixture], writes: Writes, limits: dict[str, int]
) -> dict[str, str]:
    """Kill the operator once each fixture has made its writes; why one is not killed at its write, by namespace."""
    _prepare(fixtures)
    before = {fixture.namespace: len(writes.made[fixture.namespace]) for fixture in fixtures}
    writes.stop_after({name: before[name] + limit for name, limit in limits.items()})
    for fixture in fixtures:
        fixture.begin()
    operator = fixtures[0].operator
    if not operator.is_running():
        operator.start()

    def all_stopped() -> bool:
        stopped = writes.have_stopped()
        return all(fixture.namespace in stopped or fixture.is_finished() for fixture in fixtures)

    with suppress(Failed):
        fixtures[0].wait(all_stopped, "every sweep to make its writes", HOLD_SECONDS)
    stopped = writes.have_stopped()
    missed = {
        fixture.namespace: f"not killed at its write; {fixture.seen()}"
        for fixture in fixtures
        if fixture.namespace not in stopped and not fixture.is_finished()
    }
    kill_all(operator)
    for fixture in fixtures:
        made = writes.made[fixture.namespace][before[fixture.namespace] :]
        limit = limits[fixture.namespace]
        last = made[limit - 1] if len(made) >= limit else ""
        ended = fixture.namespace in stopped
        fixture.notes.append(
            f"after {last}" if ended else f"ended before, after {len(made)} writes"
        )
    writes.drop_held()
    return missed


def _finish(fixture: FaultFixture) -> str:
    try:
        fixture.finish(240)
    except Failed as error:
        return str(error)
    return ""


def lives(fixture: FaultFixture, stop: Callable[[Writes], None]) -> int:
    """How many operators a sweep takes if each is killed once its writes have been stopped as `stop` asks at its start."""
    writes = Writes()
    fixture.inject_writes(writes)
    fixture.apply()
    for life in range(1, MOST_LIVES + 1):
        stop(writes)
        fixture.operator.start()
        deadline = time.monotonic() + LIFE_SECONDS * fixture.harness.patience
        while not writes.have_stopped() and not fixture.is_finished():
            if time.monotonic() > deadline:
                raise Failed(
                    f"life {life} neither came to its kill nor finished; {fixture.seen()}"
                )
            fixture.rest(0.05)
        if fixture.is_finished():
            return life
        kill_all(fixture.operator)
        writes.forget_from(fixture.namespace)
        writes.drop_held()
    raise Failed(f"not finished after {MOST_LIVES} operators; {fixture.seen()}")


def again_and_again(fixture: FaultFixture) -> Expectation:
    """Every operator is killed after so few writes that a sweep takes dozens of them."""
    allowed, own = 7, fixture.namespace
    count = lives(
        fixture, lambda writes: writes.stop_after({own: len(writes.made[own]) + allowed})
    )
    fixture.notes.append(f"{count} operators of {allowed} writes each")
    return Expectation()


AGAIN = Row(
    "kill/again-and-again",
    "every operator is killed after its seventh write, until the sweep is done",
    again_and_again,
)
