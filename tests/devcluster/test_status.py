"""The pod status follows from the states of the containers."""

import pytest

from devcluster.kubelet import status
from devcluster.kubelet.status import Json

GOOD = status.terminated(0, 0, 1, "Completed")
BAD = status.terminated(3, 0, 1, "Error")
RUNS = status.running(0)
WAITS = status.waiting()


def states(*values: Json) -> list[status.ContainerState]:
    return [status.ContainerState(f"c{i}", "", "", value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("containers", "phase"),
    [
        ([WAITS], "Pending"),
        ([RUNS], "Running"),
        ([RUNS, GOOD], "Running"),
        ([WAITS, RUNS], "Running"),
        ([GOOD, GOOD], "Succeeded"),
        ([GOOD, BAD], "Failed"),
    ],
)
def test_the_phase_follows_from_the_containers(containers: list[Json], phase: str) -> None:
    assert status.phase_of(states(*containers)) == phase


@pytest.mark.parametrize(
    ("main", "stop", "phase"),
    [
        ([GOOD], status.Stop(), "Succeeded"),
        ([BAD], status.Stop(), "Failed"),
        ([GOOD], status.Stop("DeadlineExceeded"), "Failed"),
    ],
)
def test_a_terminated_pod_always_ends(main: list[Json], stop: status.Stop, phase: str) -> None:
    assert status.stopped_phase(states(*main), stop) == phase


def test_only_a_disruption_by_the_node_is_a_condition() -> None:
    disrupted = status.Stop("Terminated", "shutdown", disruption="TerminationByKubelet")
    for stop, expected in ((None, []), (status.Stop(), []), (disrupted, ["TerminationByKubelet"])):
        listed = status.conditions("Failed", states(BAD), stop, now=0)
        assert [c["reason"] for c in listed if c["type"] == "DisruptionTarget"] == expected


def test_an_unchanged_condition_keeps_its_transition_time() -> None:
    old = status.conditions("Running", states(RUNS), None, now=0)
    new = status.conditions("Failed", states(BAD), None, now=60)
    times = {c["type"]: c["lastTransitionTime"] for c in status.keep_transition_times(new, old)}
    assert times["Initialized"] == "1970-01-01T00:00:00Z"
    assert times["Ready"] == "1970-01-01T00:01:00Z"
