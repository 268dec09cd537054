"""Reports one pod's status to the API server."""

from __future__ import annotations

import time
from typing import Any

from devcluster.kubelet.api import CONFLICT, NOT_FOUND, STRATEGIC, Api, ApiError
from devcluster.kubelet.sources import ADDRESS
from devcluster.kubelet.status import (
    ContainerState,
    Phase,
    Stop,
    conditions,
    keep_transition_times,
    phase_of,
    seconds_of,
    stopped_phase,
    timestamp,
)

Json = dict[str, Any]


class PodReport:
    """The states of a pod's containers and the status that follows from them.

    A strategic merge leaves what others own in the status, such as the scheduler's condition. The uid
    prevents a report about one pod from reaching a later pod of the same name.
    """

    def __init__(self, api: Api, pod: Json) -> None:
        """Start from what was reported before, possibly by an earlier agent."""
        self._api = api
        metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        self._uid = metadata["uid"]
        self._conditions: list[Json] = status.get("conditions", [])
        self.path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self.restart_policy = str(spec.get("restartPolicy", "Always"))
        self.start_time = seconds_of(status.get("startTime")) or time.time()
        self.init = [self._state_of(c) for c in spec.get("initContainers", ())]
        self.main = [self._state_of(c) for c in spec["containers"]]

    @property
    def containers(self) -> list[ContainerState]:
        """All containers, in the order in which they start."""
        return [*self.init, *self.main]

    async def post(self, stop: Stop | None = None) -> None:
        """Write the status, retrying while the API server is down."""
        if stop is None:
            phase = phase_of(self.restart_policy, self.init, self.main)
        else:
            phase = stopped_phase(self.main, stop)
        body = {"metadata": {"uid": self._uid}, "status": self._status(phase, stop)}
        try:
            await self._api.call("PATCH", f"{self.path}/status", body, STRATEGIC)
        except ApiError as error:
            # Deleted, or replaced by another pod of that name: the watch will report it.
            if error.code not in (NOT_FOUND, CONFLICT):
                raise

    def _status(self, phase: Phase, stop: Stop | None) -> Json:
        states = conditions(phase, self.init, self.main, stop, time.time())
        self._conditions = keep_transition_times(states, self._conditions)
        status: Json = {
            "phase": phase,
            "conditions": self._conditions,
            "startTime": timestamp(self.start_time),
            "hostIP": ADDRESS,
            "podIP": ADDRESS,
            "podIPs": [{"ip": ADDRESS}],
            "containerStatuses": [state.to_json() for state in self.main],
        }
        if self.init:
            status["initContainerStatuses"] = [state.to_json() for state in self.init]
        if stop is not None and stop.reason:
            status |= {"reason": stop.reason, "message": stop.message}
        return status

    def _state_of(self, container: Json) -> ContainerState:
        identity = f"{self._uid}/{container['name']}"
        return ContainerState(container["name"], container.get("image", ""), identity)
