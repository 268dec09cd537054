"""An operator's process between two proxies, and how it is started and killed."""

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes import client

from isoloss_operator.cluster.rbac import NAME
from tests.faults.harness import BUCKET, Harness
from tests.faults.injection import Chain
from tests.support.operator_process import OperatorProcess
from tests.support.proxy import Proxy

SETTINGS = {
    "ISOLOSS_MINIMUM_INTERVAL_SECONDS": "0.1",
    "ISOLOSS_STATUS_INTERVAL_SECONDS": "0.2",
    "ISOLOSS_RESYNC_SECONDS": "5",
    "ISOLOSS_POD_LOST_SECONDS": "20",
    "ISOLOSS_API_QPS": "0",
    # Long, since the rows share a busy machine, where a process may get no time for seconds.
    "ISOLOSS_LEASE_SECONDS": "30",
    "ISOLOSS_RENEW_DEADLINE_SECONDS": "20",
    "ISOLOSS_RENEW_PERIOD_SECONDS": "2",
}


@dataclass
class Server:
    """An operator's own proxies."""

    api: Proxy
    store: Proxy
    api_chain: Chain = field(default_factory=Chain)
    store_chain: Chain = field(default_factory=Chain)

    def end(self) -> None:
        """Stop both."""
        self.api.stop()
        self.store.stop()


def new_server(harness: Harness) -> Server:
    """Two proxies in front of the harness's servers."""
    api = Proxy(harness.plane.url, harness.plane.keys.ca, harness.loop).start()
    store = Proxy(harness.storage.url, loop=harness.loop).start()
    server = Server(api, store)
    api.handler, store.handler = server.api_chain, server.store_chain
    return server


def new_operator(
    harness: Harness,
    server: Server,
    namespaces: list[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> OperatorProcess:
    """An operator that knows the servers by their proxies alone."""
    folder.mkdir(parents=True)
    settings = {
        **harness.storage.environment(),
        "AWS_ENDPOINT_URL": server.store.url,
        # Else the first fit of every row looks through the machine's fonts.
        "MPLCONFIGDIR": str(harness.directory / "matplotlib"),
        "ISOLOSS_ALLOWED_STORAGE": json.dumps(
            {"*": [f"s3://{BUCKET}", f"file://{harness.directory}"]}
        ),
        **SETTINGS,
        **(environment or {}),
    }
    operator = OperatorProcess(harness.plane, namespaces, folder, settings)
    direct = json.loads(operator.log_in().read_text())
    direct["clusters"][0]["cluster"] = {"server": server.api.url}
    proxied = folder / "kubeconfig.json"
    proxied.write_text(json.dumps(direct))
    operator.kubeconfig = proxied
    return operator


def kill_all(operator: OperatorProcess) -> None:
    """SIGKILL the process and those it started, as the end of a container does.

    Its lease goes, too: that a lease expires is a row of its own, and need not be waited for in all.
    """
    assert operator.process is not None
    family = {operator.process.pid, *descendants(operator.process.pid), *writers(operator.log)}
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    operator.process.wait()
    with suppress(Exception):
        leases = client.CoordinationV1Api(operator.control_plane.api_client())
        leases.delete_namespaced_lease(NAME, operator.namespaces[0])


def hasten_fits(operator: OperatorProcess) -> None:
    """Let what the operator started run like itself: a fit gives way to all others, and on a machine
    that is busy with something else it would hardly run at all."""
    if operator.process is not None:
        for pid in descendants(operator.process.pid):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0))


def writers(log: Path) -> list[int]:
    """The processes below this one whose output is a log: fits of a forked operator are no descendants of it."""
    found = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/fd/1").readlink() == log:
                found.append(pid)
    return found


def descendants(pid: int) -> list[int]:
    """Every process that a process started, and those that these started."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found
