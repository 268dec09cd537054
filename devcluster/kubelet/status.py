"""The pod status that a kubelet would report, from the states of the containers. Pure."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
Json = dict[str, Any]

MESSAGE_BYTES = 4096
LOG_MESSAGE_BYTES = 2048
KILLED = 137


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as the API writes times."""
    time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(timestamp: str | None) -> float | None:
    """Read a time of the API as seconds since 1970."""
    return datetime.datetime.fromisoformat(timestamp).timestamp() if timestamp else None


STATES = ("waiting", "running", "terminated")
"""Keys of a container's state as the API writes it, of which it has one."""


def waiting(reason: str = "ContainerCreating", message: str = "") -> Json:
    """Not started; `reason` as a kubelet names it."""
    return {"waiting": {"reason": reason, "message": message or None}}


def running(started: float) -> Json:
    """Started at `started`, in seconds since 1970."""
    return {"running": {"startedAt": timestamp(started)}}


def terminated(
    exit_code: int, started: float, finished: float, reason: str, message: str = ""
) -> Json:
    """Ended, or will never start; times in seconds since 1970."""
    return {
        "terminated": {
            "exitCode": exit_code,
            "reason": reason,
            "message": message or None,
            "startedAt": timestamp(started),
            "finishedAt": timestamp(finished),
        }
    }


@dataclass
class ContainerState:
    """The state of one container, updated by its pod's worker."""

    name: str
    image: str
    identity: str
    state: Json = field(default_factory=waiting)

    def is_running(self) -> bool:
        """Whether it has started and not ended."""
        return "running" in self.state

    @property
    def has_ended(self) -> bool:
        """Whether it ended, or will never start."""
        return "terminated" in self.state

    @property
    def has_succeeded(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.has_ended and self.state["terminated"]["exitCode"] == 0

    def to_json(self) -> Json:
        """Its entry among the container statuses."""
        started = self.is_running()
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "containerID": f"process://{self.identity}",
            "restartCount": 0,
            "ready": started,
            "started": started,
            # The others are null, so that a patch removes them.
            "state": {name: self.state.get(name) for name in STATES},
        }


@dataclass(frozen=True)
class Stop:
    """Why a pod is terminated before its containers end."""

    reason: str | None = None
    message: str | None = None
    disruption: str | None = None
    """Reason of the condition DisruptionTarget, if the node itself terminates the pod."""


def phase_of(containers: Sequence[ContainerState]) -> Phase:
    """The phase, by the rules in the API documentation, of a pod that is not being terminated and restarts nothing."""
    if all(container.has_ended for container in containers):
        return "Succeeded" if all(c.has_succeeded for c in containers) else "Failed"
    if all("waiting" in container.state for container in containers):
        return "Pending"
    return "Running"


def stopped_phase(containers: Sequence[ContainerState], stop: Stop) -> Phase:
    """The phase of a pod that was terminated and whose processes have ended."""
    if stop.reason is None and all(container.has_succeeded for container in containers):
        return "Succeeded"
    return "Failed"


def conditions(
    phase: Phase, containers: Sequence[ContainerState], stop: Stop | None, now: float
) -> list[Json]:
    """The conditions that a kubelet owns; PodScheduled is the scheduler's."""
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    ready = ended is None and all(each.is_running() for each in containers)
    not_ready = None if ready else ended or "ContainersNotReady"
    answers: list[tuple[str, bool, str | None]] = [
        ("PodReadyToStartContainers", ended is None, None),
        ("Initialized", True, None),
        ("ContainersReady", ready, not_ready),
        ("Ready", ready, not_ready),
    ]
    if stop and stop.disruption:
        answers.append(("DisruptionTarget", True, stop.disruption))
    return [
        {
            "type": name,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": stop.message if name == "DisruptionTarget" and stop else None,
            "lastTransitionTime": timestamp(now),
        }
        for name, holds, reason in answers
    ]


def keep_transition_times(new: list[Json], old: Sequence[Json]) -> list[Json]:
    """Keep the time of a condition whose status has not changed."""
    before = {(entry["type"], entry["status"]): entry["lastTransitionTime"] for entry in old}
    return [
        {
            **entry,
            "lastTransitionTime": before.get(
                (entry["type"], entry["status"]), entry["lastTransitionTime"]
            ),
        }
        for entry in new
    ]
