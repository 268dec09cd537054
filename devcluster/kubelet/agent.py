"""The node agent: registers the node, renews its lease, and runs a worker for every pod bound to it."""

import asyncio
import contextlib
import datetime
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from devcluster.kubelet.api import APPLY, NOT_FOUND, STRATEGIC, Api, ApiError
from devcluster.kubelet.container import kill_runs
from devcluster.kubelet.logs import serve_logs
from devcluster.kubelet.pod_worker import PodWorker
from devcluster.kubelet.settings import READY_FILE, NodeSettings
from devcluster.kubelet.sources import ADDRESS

Json = dict[str, Any]

LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 2
STATUS_EVERY = 4  # heartbeats
RELIST_SECONDS = 0.3
OVER_OTHERS = "fieldManager=process-node&force=true"
"""Options of a server-side apply, which makes the object or changes it."""
log = logging.getLogger("process-node")


class Agent:
    """One node; `folder` holds what must survive a restart of the agent."""

    def __init__(self, api: Api, settings: NodeSettings, folder: Path) -> None:
        """Nothing happens before `run`."""
        self._api = api
        self._settings = settings
        self._folder = folder
        self._pods = folder / "pods"
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_port = 0

    async def run(self) -> None:
        """Run the node until SIGTERM, then terminate its pods as a node shutdown does."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        self._pods.mkdir(parents=True, exist_ok=True)
        settings = self._settings
        certificate, key = Path(settings.certificate), Path(settings.key)
        server, self._log_port = await serve_logs(self._find_log, certificate, key)
        await self._register()
        duties = [asyncio.create_task(duty) for duty in (self._heartbeat(), self._follow_pods())]
        ended = asyncio.create_task(stopped.wait())
        await asyncio.wait((*duties, ended), return_when=asyncio.FIRST_COMPLETED)
        for duty in duties:
            if duty.done():
                duty.result()  # only a bug ends a duty: raise it
            duty.cancel()
        await self._shut_down()
        await server.cleanup()

    async def _shut_down(self) -> None:
        await self._post_status(ready=False)
        for worker in self._workers.values():
            worker.shut_down()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # The node.

    async def _register(self) -> None:
        metadata = {"name": self._settings.name, "labels": self._labels()}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        path = f"/api/v1/nodes/{self._settings.name}?{OVER_OTHERS}"
        await self._api.call("PATCH", path, node, APPLY)
        await self._post_status(ready=True)
        (self._folder / READY_FILE).touch()

    async def _heartbeat(self) -> None:
        """Renew the lease and report readiness."""
        beat = 0
        while True:
            await self._renew_lease()
            if beat % STATUS_EVERY == 0:
                await self._post_status(ready=True)
            beat += 1
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _renew_lease(self) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._settings.name},
            "spec": {
                "holderIdentity": self._settings.name,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": now,
            },
        }
        folder = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        path = f"{folder}/{self._settings.name}?{OVER_OTHERS}"
        await self._api.call("PATCH", path, lease, APPLY)

    async def _post_status(self, *, ready: bool) -> None:
        path = f"/api/v1/nodes/{self._settings.name}/status"
        try:
            await self._api.call("PATCH", path, {"status": self._status(ready=ready)}, STRATEGIC)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            log.warning("the node object was deleted")

    def _status(self, *, ready: bool) -> Json:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        reason = "KubeletReady" if ready else "KubeletNotReady"
        states = {"Ready": ready, "MemoryPressure": False, "DiskPressure": False}
        states["PIDPressure"] = False
        return {
            "capacity": self._settings.options.capacity,
            "allocatable": self._settings.options.capacity,
            "addresses": [
                {"type": "InternalIP", "address": ADDRESS},
                {"type": "Hostname", "address": socket.gethostname()},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._log_port}},
            "nodeInfo": _node_info(),
            "conditions": [
                {
                    "type": name,
                    "status": "True" if holds else "False",
                    "reason": reason if name == "Ready" else "KubeletHasNoPressure",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for name, holds in states.items()
            ],
        }

    def _labels(self) -> dict[str, str]:
        own = {
            "kubernetes.io/hostname": self._settings.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64" if os.uname().machine == "x86_64" else "arm64",
        }
        return {**own, **self._settings.options.labels}

    # The pods.

    async def _follow_pods(self) -> None:
        """List, then watch, forever; after any error list again."""
        path = f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={self._settings.name}')}"
        while True:
            listed = await self._api.call("GET", path)
            await self._take_list(listed["items"])
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError, OSError):
                async for event in self._api.watch(path, listed["metadata"]["resourceVersion"]):
                    self._take_event(event)
            await asyncio.sleep(RELIST_SECONDS)

    async def _take_list(self, pods: list[Json]) -> None:
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid, worker in self._workers.items():
            if uid not in present:
                worker.vanish()
        for folder in self._pods.iterdir():
            if folder.name not in present and folder.name not in self._workers:
                await asyncio.to_thread(_kill_leftovers, folder)
        for pod in pods:
            self._take(pod)

    def _take_event(self, event: Json) -> None:
        if event["type"] == "DELETED":
            worker = self._workers.get(event["object"]["metadata"]["uid"])
            if worker is not None:
                worker.vanish()
        elif event["type"] in ("ADDED", "MODIFIED"):
            self._take(event["object"])

    def _take(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._workers:
            self._workers[uid].update(pod)
            return
        worker = PodWorker(self._api, self._settings, self._pods, pod)
        self._workers[uid] = worker
        task = asyncio.create_task(self._run_pod(uid, worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_pod(self, uid: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:  # it must not end the node
            log.exception("pod %s: worker failed", worker.pod["metadata"]["name"])
        finally:
            del self._workers[uid]

    def _find_log(
        self, namespace: str, pod: str, container: str
    ) -> tuple[Path, Callable[[], bool]] | None:
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, pod):
                return worker.find_log(container)
        return None


def _kill_leftovers(folder: Path) -> None:
    """Kill the processes of a pod that was removed while no agent was running."""
    kill_runs(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _node_info() -> Json:
    system = os.uname()
    return {
        "kernelVersion": system.release,
        "osImage": "local processes (test double of a kubelet)",
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v1.37.2-process-node",
        "operatingSystem": "linux",
        "architecture": system.machine,
    }


async def _run(folder: Path) -> None:
    settings = NodeSettings.load(folder / "settings.json")
    async with Api(Path(settings.kubeconfig)) as api:
        await Agent(api, settings, folder).run()


def run_agent(folder: Path) -> None:
    """Run the node whose settings are in `folder`; returns after SIGTERM."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    asyncio.run(_run(folder.absolute()))
