"""Random sweeps, edits, deletions and faults, with the invariants checked throughout.

    python -m tests.faults.soak [--minutes 30] [--seed 1] [--at-once 2] [--round N]

Each round is a sweep of its own that is edited and harmed at random, then left alone until it has
finished. Everything that a round does is drawn from its seed and number: `--seed S --round N` plays it
again, as far as the machine's own timing allows. Ends with 1 at the first round that does not hold.
"""

import argparse
import itertools
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client

from tests.faults import injection
from tests.faults.fixture import (
    RUN_ENDED,
    SWEEP,
    WIDE_GRID,
    Failed,
    FaultFixture,
    RunEnded,
    new_fixture,
)
from tests.faults.harness import Harness, own_harness
from tests.faults.injection import Fault, of_key, of_verb
from tests.faults.servers import kill_all
from tests.faults.verdict import SETTLE_SECONDS
from tests.support.proxy import Proxy

PROXIES = 2
VERBS = ("get", "list", "create", "patch", "delete")
KEYS = ("/ledger", "/result.json", "/laws.json", "/trajector", "/")
FINISH_SECONDS = 240.0


@dataclass
class Round:
    """A fixture and what its chance has done to it."""

    fixture: FaultFixture
    chance: random.Random
    parallelism: int
    rates: int
    """How many of the grid's learning rates the spec names now."""
    most_allowed: int = 0
    told: list[str] = field(default_factory=list)

    def spec(self) -> dict[str, Any]:
        """The part of the spec that changes."""
        self.most_allowed = max(self.most_allowed, self.parallelism)
        grid = {**WIDE_GRID, "learningRates": WIDE_GRID["learningRates"][: self.rates]}
        return {"parallelism": self.parallelism, "grid": grid}

    @property
    def points(self) -> int:
        """How many points the spec means."""
        return self.rates * len(WIDE_GRID["batchSizes"]) * PROXIES


# ------------------------------------------------------------------------------ what may happen


def kill_operator(round: Round) -> None:
    kill_all(round.fixture.operator)


def edit_parallelism(round: Round) -> None:
    round.parallelism = round.chance.randint(1, 8)
    round.fixture.apply(**round.spec())


def extend_grid(round: Round) -> None:
    round.rates = min(round.rates + 1, len(WIDE_GRID["learningRates"]))
    round.fixture.apply(**round.spec())


def suspend(round: Round) -> None:
    round.fixture.apply(suspend=True, **round.spec())
    round.fixture.rest(round.chance.uniform(0, 4))
    round.fixture.apply(suspend=False, **round.spec())


def delete_and_apply_again(round: Round) -> None:
    """The results stay in the store; a new sweep takes them over."""
    round.fixture.user.delete_sweep(SWEEP)
    round.fixture.rest(round.chance.uniform(0, 3))
    round.fixture.apply(**round.spec())


def delete_jobs(round: Round) -> None:
    api = client.BatchV1Api(round.fixture.harness.api_client)
    policy = round.chance.choice(["Background", "Foreground"])
    for job in api.list_namespaced_job(round.fixture.namespace).items:
        if round.chance.random() < 0.3:
            api.delete_namespaced_job(
                job.metadata.name,
                round.fixture.namespace,
                propagation_policy=policy,
                _preload_content=False,
            )


def delete_pods(round: Round) -> None:
    core = client.CoreV1Api(round.fixture.harness.api_client)
    grace = round.chance.choice([None, 0])
    for pod in round.fixture.user.pods():
        if round.chance.random() < 0.5 and pod.status.phase == "Running":
            options = {} if grace is None else {"grace_period_seconds": grace}
            core.delete_namespaced_pod(pod.metadata.name, round.fixture.namespace, **options)


def harm_api(round: Round) -> None:
    code = round.chance.choice([409, 410, 429, 500, 503, 0])
    act = injection.status(code) if code else injection.reset
    matches = of_verb(round.chance.choice(VERBS))
    harm(round, round.fixture.inject_api, Fault(matches, act, every=round.chance.randint(1, 3)))


def harm_store(round: Round) -> None:
    name, code = round.chance.choice(
        [("SlowDown", 503), ("InternalError", 500), ("AccessDenied", 403), ("", 0)]
    )
    act = injection.store_status(code, name) if code else injection.reset
    matches = of_key(round.chance.choice(KEYS))
    harm(round, round.fixture.inject_store, Fault(matches, act, every=round.chance.randint(1, 3)))


def harm(round: Round, inject: Callable[[Fault], Fault], fault: Fault) -> None:
    inject(fault)
    round.fixture.rest(round.chance.uniform(1, 8))
    fault.active = False


def api_away(round: Round) -> None:
    away(round, round.fixture.server.api)


def store_away(round: Round) -> None:
    away(round, round.fixture.server.store)


def away(round: Round, proxy: Proxy) -> None:
    proxy.stop()
    round.fixture.rest(round.chance.uniform(1, 12))
    proxy.start()


HAPPENINGS: tuple[Callable[[Round], None], ...] = (
    kill_operator,
    edit_parallelism,
    extend_grid,
    suspend,
    delete_and_apply_again,
    delete_jobs,
    delete_pods,
    harm_api,
    harm_store,
    api_away,
    store_away,
)


# ------------------------------------------------------------------------------------ a round


def play_round(harness: Harness, seed: int, number: int) -> tuple[int, list[str], list[str]]:
    """One round: its number, what happened, and what did not hold."""
    chance = random.Random(f"{seed}/{number}")
    fixture = new_fixture(harness, f"soak {number}", seconds=chance.choice([0.0, 0.5, 2.0]))
    round = Round(fixture, chance, chance.randint(1, 8), chance.randint(2, 5))
    try:
        fixture.operator.start()
        fixture.apply(**round.spec())
        for _ in range(chance.randint(2, 7)):
            fixture.rest(chance.uniform(0, 5))
            happening = chance.choice(HAPPENINGS)
            round.told.append(happening.__name__)
            happening(round)
            check_meanwhile(round)
        fixture.finish(FINISH_SECONDS)
        check_end(round)
    except RunEnded:
        return number, round.told, ["ended before its verdict"]
    except Failed as error:
        return number, round.told, [str(error)]
    finally:
        fixture.end()
    return number, round.told, []


def check_meanwhile(round: Round) -> None:
    """What must hold at any time. Raises Failed."""
    fixture = round.fixture
    most = max(fixture.harness.journal.most_at_once(fixture.namespace).values(), default=0)
    if most > round.most_allowed:
        raise Failed(f"{most} points at work at once, {round.most_allowed} allowed")
    if repeated := fixture.trainings.repeated():
        raise Failed(f"{repeated} points trained twice")


def check_end(round: Round) -> None:
    """What must hold once it has finished and been left alone. Raises Failed."""
    fixture = round.fixture
    time.sleep(SETTLE_SECONDS)
    check_meanwhile(round)
    records = fixture.ledger_points()
    named = fixture.sweep()["status"]["points"]["total"]
    if named != round.points:
        raise Failed(f"the status counts {named} points, the spec means {round.points}")
    states = [str(record.state) for record in records.values()]
    if states.count("Succeeded") < round.points:
        raise Failed(f"points lost: {round.points} wanted, {states.count('Succeeded')} there")
    trained = set(fixture.trainings.counted("end"))
    if missing := trained - {record.key for record in records.values()}:
        raise Failed(f"{len(missing)} trained points are not in the ledger")
    charged = sum(sum(record.attempts.charged.values()) for record in records.values())
    if charged:
        raise Failed(f"{charged} failures charged, none of them a point's fault")


def main() -> int:
    """Play rounds until the time is up or one does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--patience", type=float, default=1, help="factor on all time limits")
    parser.add_argument("--round", type=int, help="play this round alone")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: RUN_ENDED.set())
    print(f"seed {options.seed}", flush=True)
    until = time.monotonic() + 60 * options.minutes
    held, numbers = 0, itertools.count()
    with own_harness() as harness, ThreadPoolExecutor(options.at_once) as pool:
        harness.patience = options.patience
        if options.round is not None:
            numbers, until = iter([options.round]), 0.0
        running = {pool.submit(play_round, harness, options.seed, next(numbers))}
        failures: list[str] = []
        while running:
            while time.monotonic() < until and len(running) < options.at_once and not failures:
                running.add(pool.submit(play_round, harness, options.seed, next(numbers)))
            done = next(as_completed(running))
            running.discard(done)
            number, told, problems = done.result()
            print(f"round {number}: {', '.join(told)}: {problems or 'held'}", flush=True)
            failures += problems
            held += not problems
    print(f"{held} rounds held, {len(failures)} did not; seed {options.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
