"""Lets pods end, Jobs vanish and the operator die as chance has it; plays fuzzers; and a clock that tests move."""

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from isoloss_operator.decide.jobs import FailureClass
from tests.support.simulator import Simulator

World = TypeVar("World", bound=Simulator)
CHARGED = {
    "crash": FailureClass.CRASHED,
    "storage": FailureClass.STORAGE,
    "no result": FailureClass.RESULT_MISSING,
    "bad result": FailureClass.RESULT_UNREADABLE,
}
UNCHARGED = ("preempted", "vanished", "claimed", "deleted by hand", "host memory")
MOST_HOST_MEMORY = 2
"""Of one point: a fourth would be final."""


@dataclass
class Chance(Generic[World]):
    """What happens to a simulator next."""

    random: random.Random
    simulator: World
    trouble: float = 0.3
    """Probability that an attempt does not end well."""
    kills: float = 0.1
    """Probability of being killed before any one write."""
    damage: float = 0.0
    """Probability that a finished point's trajectory gets damaged."""
    charged: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Charged failures that were acted out, per (key, class)."""
    damages: Counter[str] = field(default_factory=Counter)
    killed_for_memory: Counter[str] = field(default_factory=Counter)

    def run_operator(self) -> Any:
        """One pass: its plan; None where it was killed."""
        self.simulator.writes_left = None
        if self.kills:
            alive = math.log(1 - self.random.random()) / math.log(1 - self.kills)
            self.simulator.writes_left = int(alive)
        return self.simulator.run_operator()

    def let_time_pass(self, seconds: float) -> None:
        """Pods begin, go on and end, and so does the fit."""
        self.simulator.let_time_pass(seconds)
        for name in self.simulator.at_work:
            if self.random.random() < 0.5:
                self._end(name)
        self.simulator.end_fit("as it must")

    def _end(self, name: str) -> None:
        key = self.simulator.jobs[name].key
        if self.random.random() >= self.trouble:
            self._succeed(name, key)
            return
        how = self.random.choice([*CHARGED, *UNCHARGED])
        if how == "host memory":
            self.killed_for_memory[key] += 1
            if self.killed_for_memory[key] > MOST_HOST_MEMORY:
                how = "preempted"
        how = self.simulator.end(name, how)
        if how in CHARGED:
            self.charged[key, str(CHARGED[how])] += 1

    def _succeed(self, name: str, key: str) -> None:
        if self.random.random() < 0.1:  # preempted between result and exit
            self.simulator.write_result(self.simulator.points[key], self.simulator.tasks[name])
            self.simulator.end(name, "preempted")
        else:
            self.simulator.end(name, "succeeds")
        if self.random.random() < self.damage:
            self.simulator.damaged.add(key)
            self.damages[key] += 1


def fuzz(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Play so many examples, each of at most so many steps. Raises what the shortest one that is found raises."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)


@dataclass
class Clock:
    """Seconds, as time.monotonic gives them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let them pass at once."""
        self.now += seconds
