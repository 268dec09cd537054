"""The life of one pod on the process node, from its binding to its removal.

One asyncio task per pod. The containers' state is on disk (ContainerRun), so that a worker of a
restarted agent resumes where the previous one was killed.
"""

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from devcluster.kubelet import status as pod_status
from devcluster.kubelet.api import CONFLICT, NOT_FOUND, STRATEGIC, Api, ApiError
from devcluster.kubelet.container import RUNS, Command, ContainerRun, kill_runs
from devcluster.kubelet.rewriting import Mount, expand, rewrite_path
from devcluster.kubelet.settings import NodeSettings
from devcluster.kubelet.sources import (
    ADDRESS,
    NotYet,
    Sources,
    mounts_of,
    process_environment,
)

Json = dict[str, Any]
Answer = TypeVar("Answer")

RETRY_SECONDS = 0.5
"""Between checks for a missing Secret or ConfigMap."""
SHUTDOWN_SECONDS = 5
"""Longest grace period of pods when the node is shut down."""
MESSAGE_PATH = "/dev/termination-log"


class PodWorker:
    """Runs one pod; the agent calls `update`, `vanish` and `shut_down`."""

    def __init__(self, api: Api, settings: NodeSettings, pods: Path, pod: Json) -> None:
        """`pods` is the folder under which the pod's own is made."""
        self.pod = pod
        self._api = api
        self._settings = settings
        self.folder = pods / str(pod["metadata"]["uid"])
        self._changed = asyncio.Event()
        self._vanished = False
        self._shutting_down = False
        self._volumes: dict[str, Path] = {}
        self._runs: dict[str, ContainerRun] = {}
        self._report = PodReport(api, pod)

    # Called by the agent.

    def update(self, pod: Json) -> None:
        """Take a newer version of the pod."""
        self.pod = pod
        self._changed.set()

    def vanish(self) -> None:
        """The pod is gone from the API server: kill its processes at once."""
        self._vanished = True
        self._changed.set()

    def shut_down(self) -> None:
        """The node is shutting down."""
        self._shutting_down = True
        self._changed.set()

    def find_log(self, container: str) -> tuple[Path, Callable[[], bool]] | None:
        """A container's log file and whether it may still grow."""
        for state in self._report.containers:
            if state.name == container:
                return self._run_of(container).log, state.is_running
        return None

    # The life of the pod.

    async def run(self) -> None:
        """Run the pod to its end; returns when pod and processes are gone or the node is down."""
        if self.pod["status"].get("phase") in ("Succeeded", "Failed"):
            kill_runs(self.folder)  # its phase was set while no agent was running
        else:
            await self._live()
        while not (self._is_deleted or self._vanished or self._shutting_down):
            await self._next_change()
        if self._is_deleted and not self._vanished:
            await self._remove()
        if self._is_deleted or self._vanished:
            await asyncio.to_thread(self._clean_up)

    async def _live(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        work = asyncio.create_task(self._run_containers())
        stop = asyncio.create_task(self._wait_for_stop())
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            stop.cancel()
            work.result()
            await self._report.post()
            return
        work.cancel()
        await asyncio.wait((work,))
        await self._end_processes()
        if not self._vanished:
            self._settle_containers()
            await self._report.post(stop.result())

    async def _run_containers(self) -> None:
        spec = self.pod["spec"]
        await self._until_available(self._make_volumes)
        async with asyncio.TaskGroup() as group:
            for container, state in zip(spec["containers"], self._report.containers, strict=True):
                group.create_task(self._run_container(container, state))

    async def _run_container(self, container: Json, state: pod_status.ContainerState) -> None:
        run = self._run_of(container["name"])
        self._runs[container["name"]] = run
        if not run.was_started():
            run.start(await self._until_available(lambda: self._prepare(container, run), state))
        if not run.has_failed_to_start():
            state.state = pod_status.running(run.started())
            await self._report.post()
            await run.wait()
        policy = container.get("terminationMessagePolicy")
        state.state = run.result(log_as_message=policy == "FallbackToLogsOnError")
        if any(other.is_running() for other in self._report.containers):
            await self._report.post()

    async def _prepare(self, container: Json, run: ContainerRun) -> Command:
        """The container's command, with paths of this machine; raises NotYet."""
        variables = await Sources(self._api, self.pod).environment(container)
        mounts = mounts_of(container, self._volumes)
        message_path = container.get("terminationMessagePath") or MESSAGE_PATH
        message = Path(rewrite_path(message_path, mounts))
        if str(message) == message_path:  # in no volume
            message = run.termination_log
            mounts += (Mount(message_path, message),)
        home = run.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        options = self._settings.options
        base = {"PATH": options.path, "HOME": str(home), "LANG": "C.UTF-8"}
        environment = process_environment(variables, {**base, **options.environment}, mounts)
        if not container.get("command"):
            raise NotYet("CreateContainerError", "no command specified, and images are not known")
        arguments = [
            rewrite_path(expand(word, variables), mounts)
            for word in (*container["command"], *container.get("args", ()))
        ]
        folder = Path(rewrite_path(container.get("workingDir") or "", mounts) or home)
        return Command(arguments, environment, folder if folder.is_dir() else home, message)

    # Ending it early.

    async def _wait_for_stop(self) -> pod_status.Stop:
        while True:
            if self._vanished or self._is_deleted:
                return pod_status.Stop()
            if self._shutting_down:
                message = "Pod was terminated in response to imminent node shutdown."
                return pod_status.Stop("Terminated", message, disruption="TerminationByKubelet")
            left = self._seconds_to_deadline()
            if left is not None and left <= 0:
                message = "Pod was active on the node longer than the specified deadline"
                return pod_status.Stop("DeadlineExceeded", message)
            await self._next_change(left)

    async def _end_processes(self) -> None:
        """SIGTERM, then SIGKILL after the grace period, which a later deletion may shorten."""
        started = time.monotonic()
        runs = list(self._runs.values())
        for run in runs:
            await run.settle()
            run.signal(signal.SIGTERM)
        ends = [asyncio.create_task(run.wait()) for run in runs if run.was_started()]
        while any(not end.done() for end in ends):
            left = started + self._grace_seconds() - time.monotonic()
            if left <= 0:
                break
            await asyncio.wait(ends, timeout=min(left, 0.2))
        for run in runs:
            run.signal(signal.SIGKILL)
        if ends:
            await asyncio.wait(ends)

    def _grace_seconds(self) -> float:
        if self._vanished:
            return 0
        metadata = self.pod["metadata"]
        grace = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        if self._shutting_down:
            grace = min(grace, SHUTDOWN_SECONDS)
        if "deletionGracePeriodSeconds" in metadata:
            grace = min(grace, metadata["deletionGracePeriodSeconds"])
        return float(grace)

    def _settle_containers(self) -> None:
        """Set the final state of every container of a pod that was stopped."""
        now = time.time()
        for state in self._report.containers:
            if state.has_ended:
                continue
            run = self._runs.get(state.name)
            if run is not None and run.was_started():
                state.state = run.result(log_as_message=False)
            else:
                state.state = pod_status.terminated(
                    pod_status.KILLED, now, now, "ContainerStatusUnknown"
                )

    async def _remove(self) -> None:
        """Delete the object, as a kubelet does once a pod has ended."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod["metadata"]["uid"]}}
        try:
            await self._api.call("DELETE", self._report.path, body)
        except ApiError as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise

    def _clean_up(self) -> None:
        """Delete the pod's folder, but keep its logs."""
        kept = self.folder.parent.parent / "logs"
        kept.mkdir(exist_ok=True)
        metadata = self.pod["metadata"]
        for log in self.folder.glob(f"{RUNS}/*/log"):
            if log.stat().st_size:
                name = f"{metadata['namespace']}_{metadata['name']}_{log.parent.name}.log"
                log.replace(kept / name)
        shutil.rmtree(self.folder, ignore_errors=True)

    # Internal state.

    async def _until_available(
        self,
        attempt: Callable[[], Awaitable[Answer]],
        state: pod_status.ContainerState | None = None,
    ) -> Answer:
        """Retry until nothing is missing, with what is missing in the status."""
        waiting_for = None
        while True:
            try:
                return await attempt()
            except (NotYet, OSError) as error:  # OSError: a volume that cannot be made
                if waiting_for != str(error):
                    waiting_for = str(error)
                    for each in [state] if state else self._report.containers:
                        reason = getattr(error, "reason", "ContainerCreating")
                        each.state = pod_status.waiting(reason, waiting_for)
                    await self._report.post()
            await asyncio.sleep(RETRY_SECONDS)

    async def _make_volumes(self) -> None:
        sources, spec = Sources(self._api, self.pod), self.pod["spec"]
        if spec.get("initContainers") or spec["restartPolicy"] != "Never":
            message = "the process node wants restartPolicy Never and no init containers"
            raise NotYet("CreateContainerError", message)
        for volume in spec.get("volumes", ()):
            folder = self.folder / "volumes" / volume["name"]
            self._volumes[volume["name"]] = await sources.make_volume(volume, folder)

    async def _next_change(self, seconds: float | None = None) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _seconds_to_deadline(self) -> float | None:
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        return None if limit is None else self._report.start_time + float(limit) - time.time()

    def _run_of(self, container: str) -> ContainerRun:
        return ContainerRun(self.folder / RUNS / container)

    @property
    def _is_deleted(self) -> bool:
        return "deletionTimestamp" in self.pod["metadata"]


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
        self.start_time = pod_status.seconds_of(status.get("startTime")) or time.time()
        self.containers = [self._state_of(c) for c in spec["containers"]]

    async def post(self, stop: pod_status.Stop | None = None) -> None:
        """Write the status, retrying while the API server is down."""
        phase = (
            pod_status.phase_of(self.containers)
            if stop is None
            else pod_status.stopped_phase(self.containers, stop)
        )
        body = {"metadata": {"uid": self._uid}, "status": self._status(phase, stop)}
        try:
            await self._api.call("PATCH", f"{self.path}/status", body, STRATEGIC)
        except ApiError as error:
            # Deleted, or replaced by another pod of that name: the watch will report it.
            if error.code not in (NOT_FOUND, CONFLICT):
                raise

    def _status(self, phase: pod_status.Phase, stop: pod_status.Stop | None) -> Json:
        states = pod_status.conditions(phase, self.containers, stop, time.time())
        self._conditions = pod_status.keep_transition_times(states, self._conditions)
        status: Json = {
            "phase": phase,
            "conditions": self._conditions,
            "startTime": pod_status.timestamp(self.start_time),
            "hostIP": ADDRESS,
            "podIP": ADDRESS,
            "podIPs": [{"ip": ADDRESS}],
            "containerStatuses": [state.to_json() for state in self.containers],
        }
        if stop is not None and stop.reason:
            status |= {"reason": stop.reason, "message": stop.message}
        return status

    def _state_of(self, container: Json) -> pod_status.ContainerState:
        identity = f"{self._uid}/{container['name']}"
        return pod_status.ContainerState(container["name"], container.get("image", ""), identity)
