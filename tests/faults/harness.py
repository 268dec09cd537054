"""Control plane, S3 server, kubelet and journal: what all rows of a run share."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client

from devcluster.cluster import DevCluster
from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from tests.faults.journal import Journal
from tests.support.cluster import NODE_LABEL, NODE_SELECTOR
from tests.support.crds import install_crds
from tests.support.proxy import Loop, wait_for

PREFIX = "faults-"
BUCKET = "faults"
Json = dict[str, Any]


@dataclass(frozen=True)
class Trainings:
    """What the kubelet did in one namespace."""

    lines: tuple[Json, ...]

    def counted(self, what: str) -> Counter[str]:
        """How often each point was begun (start), trained to its end (end) or found done (skip)."""
        return Counter(line["key"] for line in self.lines if line["what"] == what and line["key"])

    def repeated(self) -> int:
        """How many trainings did tokens again that an earlier one of their point had behind it."""
        reached: Counter[str] = Counter()
        found = 0
        for line in self.lines:
            if line["what"] == "end" and line["key"]:
                found += line["from"] < reached[line["key"]]
                reached[line["key"]] = max(reached[line["key"]], line["until"])
        return found


class FakeKubelet:
    """The kubelet's process for the namespaces with a prefix."""

    def __init__(self, harness: Harness, prefix: str, name: str) -> None:
        self.node = f"kubelet-{name}"
        self._log = harness.directory / f"{self.node}.jsonl"
        self._log.touch()
        command = [sys.executable, "-m", "tests.faults.fake_kubelet"]
        arguments = [str(harness.plane.admin_kubeconfig), prefix, self.node, str(self._log)]
        environment = {**os.environ, **harness.storage.environment(), "OMP_NUM_THREADS": "1"}
        output = (harness.directory / f"{self.node}.log").open("ab")
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )

    def trainings(self, namespace: str) -> Trainings:
        """Its log about a namespace."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return Trainings(tuple(line for line in lines if line["namespace"] == namespace))

    def end(self) -> None:
        """Kill it: the node is lost."""
        self.process.kill()
        self.process.wait()


class Harness:
    """Owns the journal, the proxies' thread and the kubelet; plane and storage belong to the caller."""

    def __init__(self, directory: Path, plane: ControlPlane, storage: ObjectStorage) -> None:
        self.directory, self.plane, self.storage = directory, plane, storage
        self.patience = 1.0
        """How much longer than on an idle machine to wait for what must come."""
        directory.mkdir(parents=True, exist_ok=True)
        self.run = secrets.token_hex(3)
        self.prefix = f"{PREFIX}{self.run}-"
        self.api_client = plane.api_client()
        install_crds(self.api_client)
        storage.create_bucket(BUCKET)
        self.loop = Loop()
        self.journal = Journal(self.loop, plane.admin_kubeconfig)
        self.kubelet = FakeKubelet(self, self.prefix, self.run)

    @property
    def bucket(self) -> Path:
        """The bucket's own folder."""
        return self.storage.buckets / BUCKET

    def new_namespace(self, name: str, played: bool = True) -> str:
        """A namespace whose pods the kubelet ends; unplayed ones await a kubelet of their own."""
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24]
        prefix = self.prefix if played else f"un{self.prefix}"
        namespace = f"{prefix}{slug}-{secrets.token_hex(2)}"
        # No node has this label: where there is a scheduler, it leaves these pods to the kubelet.
        selector = {NODE_SELECTOR: f"{NODE_LABEL}={namespace}"}
        body: Any = {"metadata": {"name": namespace, "annotations": selector}}
        core = client.CoreV1Api(self.api_client)
        core.create_namespace(body)
        if not wait_for(lambda: core.list_namespaced_service_account(namespace).items, 30):
            raise RuntimeError(f"{namespace} got no service account")
        return namespace

    def end(self) -> None:
        """Stop what it started."""
        self.kubelet.end()
        self.journal.stop()
        self.loop.stop()
        self.api_client.close()


@contextlib.contextmanager
def own_harness() -> Iterator[Harness]:
    """A control plane without scheduler, an S3 server and a kubelet, for this run alone."""
    folder = Path(tempfile.mkdtemp(prefix="isoloss-faults-"))
    cluster = DevCluster(folder / "cluster")
    folder.chmod(0o700)
    try:
        # Even a killed run leaves nothing behind.
        cluster.directory.mkdir()
        cluster.stop_with(os.getpid(), remove=True)
        cluster.start()
        # The kubelet binds its pods itself.
        cluster.control_plane.component("kube-scheduler").stop()
        harness = Harness(folder / "harness", cluster.control_plane, cluster.object_storage)
        try:
            yield harness
        finally:
            harness.end()
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
