"""Plays node and trainer: pods end as their task says, without processes and nearly without time.

    python -m tests.faults.fake_kubelet KUBECONFIG PREFIX NODE LOG
    python -m tests.faults.fake_kubelet train      # the task of the environment alone, as a trainer's process

Serves the pods of every namespace whose name starts with PREFIX. Results are real records, written
through S3 (AWS_* in the environment) by the synthetic trainer's own functions; pod and node status
are written as a kubelet writes them. A pod's environment may say how it ends:

SYNTHETIC_SECONDS   how long it runs; 0 (default): it ends at once and is never bound to the node
SYNTHETIC_FAILURES  as in the synthetic trainer: matching attempts end with an exit code; a reason beside it is the kubelet's
SYNTHETIC_SHARES    JSON {"diverged": 0.2, "failed": 0.1}: how points end, chosen by their key

Every training is a line in LOG: start, end, skip (there was a result), interrupted, failed.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from devcluster.kubelet.api import MERGE, Api, ApiError
from tests.support import synthetic_trainer

Json = dict[str, Any]
TASK = "ISOLOSS_TASK"
WRITERS = 8
HEARTBEAT_SECONDS = 4
POD_LABEL = "isoloss.dev/owner-uid"
INTERRUPTED = synthetic_trainer.INTERRUPTED
CRASHED, STORAGE = 1, 74


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Ending:
    """How a trainer's process ended."""

    what: str
    code: int = 0
    message: str = ""
    reason: str = ""
    """The kubelet's, where the trainer did not end by itself."""
    trained: tuple[int, int] | None = None
    """Tokens from which and until which it trained a point."""


@dataclass
class Pod:
    """One pod that is being played."""

    namespace: str
    name: str
    uid: str
    environment: dict[str, str]
    bound: bool = False
    asked_to_end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def task(self) -> Json:
        found: Json = json.loads(self.environment[TASK])
        return found

    @property
    def seconds(self) -> float:
        return float(self.environment.get("SYNTHETIC_SECONDS", "0"))


def share(key: str) -> float:
    """A number in [0, 1) that a point's key determines."""
    return int(key[:8], 16) / 2**32


def perform(task: Json, environment: dict[str, str]) -> Ending:
    """Do what the trainer would: write the result of the task, unless it is to fail or is there."""
    kind = task["kind"]
    if failure := synthetic_trainer.planned_failure(task, environment):
        if failure["exit"] == "silent":
            return Ending("silent")
        if reason := failure.get("reason"):
            return Ending("failed", failure["exit"], reason=reason)
        words = {"code": failure.get("code", "Synthetic"), "message": "as synthetic"}
        return Ending("failed", failure["exit"], json.dumps(words))
    if kind == "prepare":
        synthetic_trainer.prepare(task)
        return Ending("prepared")
    if kind == "evaluate":
        synthetic_trainer.evaluate(task)
        return Ending("evaluated")
    shares = json.loads(environment.get("SYNTHETIC_SHARES", "{}"))
    value = share(synthetic_trainer.canonical_key(task["point"]))
    if value < shares.get("failed", 0):
        return Ending(
            "failed", CRASHED, json.dumps({"code": "Synthetic", "message": "as synthetic"})
        )
    diverged = value >= 1 - shares.get("diverged", 0)
    trained = synthetic_trainer.finish(task, diverged=diverged)
    return Ending("skip") if trained is None else Ending("end", trained=trained)


def attempt(task: Json, environment: dict[str, str]) -> Ending:
    """Do it, or end as the trainer does where the store cannot be written."""
    try:
        return perform(task, environment)
    except OSError as error:
        words = {"code": "StorageError", "message": str(error)}
        return Ending("failed", STORAGE, json.dumps(words))


class FakeKubelet:
    """One node's worth of kubelet."""

    def __init__(self, kubeconfig: Path, prefix: str, node: str, log: Path) -> None:
        self._api = Api(kubeconfig)
        self._prefix, self._node, self._log = prefix, node, log.open("a")
        self._pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers = ThreadPoolExecutor(WRITERS)

    async def run(self) -> None:
        """Serve until killed."""
        async with self._api:
            await self._register()
            beat = asyncio.create_task(self._beat())
            async for event, body in self._events():
                self._saw(event, body)
            beat.cancel()

    # ---------------------------------------------------------------------------------- the node

    async def _register(self) -> None:
        labels = {"devcluster.isoloss.dev/namespace": self._node}
        node = {"metadata": {"name": self._node, "labels": labels}}
        await self._send("POST", "/api/v1/nodes", node)
        await self._report_ready()

    async def _report_ready(self) -> None:
        condition = {"type": "Ready", "status": "True", "reason": "Played"}
        times = {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        room = {"cpu": "10000", "memory": "10000Gi", "pods": "20000"}
        status = {"capacity": room, "allocatable": room, "conditions": [condition | times]}
        path = f"/api/v1/nodes/{self._node}/status"
        await self._send("PATCH", path, {"status": status})

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._report_ready()

    # --------------------------------------------------------------------------------- the pods

    async def _events(self) -> AsyncIterator[tuple[str, Json]]:
        """Every pod once, then every change; starts over when a watch ends."""
        while True:
            path = f"/api/v1/pods?labelSelector={POD_LABEL}"
            listed = await self._api.call("GET", path)
            for body in listed["items"]:
                yield "ADDED", body
            try:
                async for event in self._api.watch(path, listed["metadata"]["resourceVersion"]):
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]
            except (ApiError, aiohttp.ClientError, ValueError, OSError):
                await asyncio.sleep(0.5)

    def _saw(self, event: str, body: Json) -> None:
        metadata = body["metadata"]
        uid, namespace = metadata["uid"], metadata["namespace"]
        if not namespace.startswith(self._prefix):
            return
        known = self._pods.get(uid)
        if event == "DELETED":
            if known:
                known.asked_to_end.set()
                del self._pods[uid]
        elif known is not None:
            if "deletionTimestamp" in metadata:
                known.asked_to_end.set()
        elif body["status"].get("phase") == "Pending" and "deletionTimestamp" not in metadata:
            self._start(body)

    def _start(self, body: Json) -> None:
        metadata = body["metadata"]
        listed = body["spec"]["containers"][0]["env"]
        environment = {each["name"]: each.get("value", "") for each in listed}
        pod = Pod(metadata["namespace"], metadata["name"], metadata["uid"], environment)
        self._pods[pod.uid] = pod
        task = asyncio.create_task(self._play(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, pod: Pod) -> None:
        started, task = now(), pod.task
        if pod.seconds:
            await self._run_for_a_while(pod, task)
        if pod.asked_to_end.is_set():
            words = {"code": "Interrupted", "message": "asked to stop"}
            ending = Ending("interrupted", INTERRUPTED, json.dumps(words))
        else:
            loop = asyncio.get_running_loop()
            ending = await loop.run_in_executor(self._writers, attempt, task, pod.environment)
        self._note(ending.what, pod, task, ending.trained)
        await self._report_end(pod, started, ending)
        if not pod.bound:
            return
        # As a kubelet does, also where the deletion comes as the last container ends or later.
        await pod.asked_to_end.wait()
        if pod.uid in self._pods:
            await self._remove(pod)

    async def _run_for_a_while(self, pod: Pod, task: Json) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        binding = {"metadata": {"name": pod.name}, "target": target}
        await self._send("POST", f"{self._path(pod)}/binding", binding)
        pod.bound = True
        running = {"running": {"startedAt": now()}}
        await self._report(pod, "Running", running, ready=True)
        self._note("start", pod, task)
        try:
            await asyncio.wait_for(pod.asked_to_end.wait(), pod.seconds)
        except TimeoutError:
            return

    async def _report_end(self, pod: Pod, started: str, ending: Ending) -> None:
        phase = "Succeeded" if ending.code == 0 else "Failed"
        state = {
            "exitCode": ending.code,
            "startedAt": started,
            "finishedAt": now(),
            "message": ending.message,
            "reason": ending.reason,
        }
        await self._report(pod, phase, {"terminated": state}, ready=False)

    async def _report(self, pod: Pod, phase: str, state: Json, *, ready: bool) -> None:
        container = {
            "name": "trainer",
            "image": "none",
            "imageID": "",
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }
        status = {"phase": phase, "containerStatuses": [container]}
        await self._send("PATCH", f"{self._path(pod)}/status", {"status": status})

    async def _remove(self, pod: Pod) -> None:
        """As a kubelet confirms a deletion."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._send("DELETE", self._path(pod), {"kind": "DeleteOptions", **options})

    def _path(self, pod: Pod) -> str:
        return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"

    def _note(
        self, what: str, pod: Pod, task: Json, trained: tuple[int, int] | None = None
    ) -> None:
        key = synthetic_trainer.canonical_key(task["point"]) if task["kind"] == "train" else ""
        attempt = task.get("claimant", {}).get("attempt", 0)
        line = {"what": what, "namespace": pod.namespace, "key": key, "attempt": attempt}
        if trained is not None:
            line["from"], line["until"] = trained
        self._log.write(json.dumps({**line, "at": time.time()}) + "\n")
        self._log.flush()

    async def _send(self, method: str, path: str, body: Json) -> None:
        """One call; a pod that is gone is nobody's fault here."""
        kind = MERGE if method == "PATCH" else "application/json"
        with suppress(ApiError):
            await self._api.call(method, path, body, kind)


def _end_with_parent() -> None:
    """Standard input is a pipe that nobody writes to: it ends with whoever started the kubelet."""
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Play until killed, or do one task as a trainer would."""
    if TASK in os.environ:
        sys.exit(perform(json.loads(os.environ[TASK]), dict(os.environ)).code)
    kubeconfig, prefix, node, log = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(FakeKubelet(Path(kubeconfig), prefix, node, Path(log)).run())


if __name__ == "__main__":
    main()
