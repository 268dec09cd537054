"""Random histories of a world, the same ones in every run."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


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
