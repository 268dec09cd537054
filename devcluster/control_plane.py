"""A real Kubernetes control plane on 127.0.0.1: etcd, API server, controller manager, scheduler.

Its state is in one folder, so that it can be stopped and resumed. It has no node; pods run once a
ProcessNode joins.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import tenacity

from devcluster.access import CONFLICT, NOT_FOUND, AdminApi, write_kubeconfig
from devcluster.build import CONTROL_PLANE, Report, build, print_line
from devcluster.daemon import Daemon
from devcluster.files import kept_secrets, write_private
from devcluster.pki import KeyFiles
from devcluster.ports import PortTakenError, kept_ports, start_on_free_ports

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

NODE_GROUP = "devcluster:nodes"
NODE_GRACE_SECONDS = 20
"""Without a heartbeat, until a node is not ready; 50 by Kubernetes' default."""
EVICTION_SECONDS = 5
"""Until the pods of such a node are evicted; 300 by default."""
NODE_EVICTIONS_PER_SECOND = 100
CONTROLLER_QPS = 500  # at the default of 20 the job controller syncs about 16 Jobs a second
START_SECONDS = 90
GARBAGE_COLLECTION = {"GOGC": "400", "GOMEMLIMIT": "4GiB"}
"""Less often than Go's default: a third less of the API server's CPU time, for 1 GB of memory in tests instead of 0.6.

With 10,000 points more than 1 GB is in use: at a limit of that the API server did little else than collect."""
GROUPS = {"admin": "system:masters", "node": NODE_GROUP}
"""Of each user. The controllers and the scheduler are administrators, too."""


class ControlPlane:
    """A control plane with all its files under `directory`.

    `api_server_flags` are set in addition to the usual ones, or in their place.
    """

    def __init__(
        self, directory: Path, *, api_server_flags: Mapping[str, object] | None = None
    ) -> None:
        """Nothing is started yet."""
        self.directory = Path(directory).absolute()
        self.keys = KeyFiles(self.directory / "pki")
        self._further_flags = dict(api_server_flags or {})
        self._daemons = {name: Daemon(name, self.directory) for name in CONTROL_PLANE}

    def start(self, report: Report = print_line) -> None:
        """Start what is not running; returns when Jobs and service accounts work."""
        build(CONTROL_PLANE, report)
        self.keys.ensure()
        start_on_free_ports(self._start_components)
        self._grant_nodes_their_rights()
        self._daemons["kube-controller-manager"].wait_until(self._controllers_work, START_SECONDS)

    def _start_components(self) -> None:
        kept_ports(3, self.directory, replace_taken=not self._is_in_part_running())
        self._write_configuration()
        try:
            for name in CONTROL_PLANE:
                self.start_component(name)
        except PortTakenError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything, clients of the API server first; the state is kept."""
        for name in reversed(CONTROL_PLANE):
            self._daemons[name].stop()

    def is_running(self) -> bool:
        """Whether all four components are running."""
        return all(daemon.pid() is not None for daemon in self._daemons.values())

    def _is_in_part_running(self) -> bool:
        return any(daemon.pid() is not None for daemon in self._daemons.values())

    def component(self, name: str) -> Daemon:
        """One component's process: its pid, its log, `stop` and `kill`."""
        return self._daemons[name]

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(PortTakenError),
        stop=tenacity.stop_after_attempt(3),
        wait=tenacity.wait_fixed(2),
        reraise=True,
    )
    def start_component(self, name: str) -> None:
        """Start one component; returns when it is ready. Whoever has its port may be about to leave it."""
        daemon = self._daemons[name]
        program = build([name])[name]
        environment = {"PATH": os.defpath, "HOME": str(self.directory), **GARBAGE_COLLECTION}
        daemon.start([program, *self._flags(name)], environment)
        if name == "etcd":
            daemon.wait_until(self._etcd_answers, START_SECONDS)
        elif name == "kube-apiserver":
            daemon.wait_until(self._api_server_answers, START_SECONDS)

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self._ports()[2]}"

    @property
    def admin_kubeconfig(self) -> Path:
        """Kubeconfig of a cluster administrator."""
        return self._kubeconfig_path("admin")

    @property
    def node_kubeconfig(self) -> Path:
        """Kubeconfig with the rights of the built-in role `system:node`."""
        return self._kubeconfig_path("node")

    def api_client(self) -> ApiClient:
        """An administrator's client."""
        from kubernetes import config

        path = str(self.admin_kubeconfig)
        client: ApiClient = config.new_client_from_config(config_file=path)
        return client

    def kubeconfig_for_service_account(self, namespace: str, name: str, hours: int = 24) -> Path:
        """Kubeconfig with a new token of a service account, and so with only its rights.

        Raises urllib.error.HTTPError (404) if the account does not exist.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"spec": {"expirationSeconds": hours * 3600}}
        token = self._admin().request("POST", path, body)["status"]["token"]
        target = self.directory / "kubeconfigs" / f"{namespace}.{name}.json"
        return write_kubeconfig(
            target, server=self.url, ca=self.keys.ca, token=token, namespace=namespace
        )

    def delete_node(self, name: str) -> None:
        """Delete a Node object if it exists."""
        try:
            self._admin().request("DELETE", f"/api/v1/nodes/{name}")
        except urllib.error.HTTPError as error:
            if error.code != NOT_FOUND:
                raise

    def node_is_ready(self, name: str) -> bool:
        """Whether a Node exists and its condition Ready is true."""
        try:
            conditions = self._admin().request("GET", f"/api/v1/nodes/{name}")["status"][
                "conditions"
            ]
        except (OSError, KeyError):
            return False
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _flags(self, name: str) -> list[str]:
        flags = {
            "etcd": self._etcd_flags,
            "kube-apiserver": self._api_server_flags,
            "kube-controller-manager": self._controller_manager_flags,
            "kube-scheduler": self._scheduler_flags,
        }
        return [f"--{key}={value}" for key, value in flags[name]().items()]

    def _etcd_flags(self) -> dict[str, object]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports()[:2])
        return {
            "data-dir": self.directory / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",  # starts within a second, at the risk of losing the state in a power cut
            "log-level": "warn",
        }

    def _api_server_flags(self) -> dict[str, object]:
        etcd, _, secure = self._ports()
        return {
            "etcd-servers": f"http://127.0.0.1:{etcd}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": secure,
            "tls-cert-file": self.keys.certificate,
            "tls-private-key-file": self.keys.key,
            "authorization-mode": "RBAC",
            "token-auth-file": self.directory / "tokens.csv",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self.keys.key,
            "service-account-signing-key-file": self.keys.key,
            "service-cluster-ip-range": "10.96.0.0/16",
            "endpoint-reconciler-type": "none",
            "allow-privileged": "true",
            # Lets a namespace pin its pods to its own node, so that tests can share a control plane.
            "enable-admission-plugins": "PodNodeSelector",
            "default-not-ready-toleration-seconds": EVICTION_SECONDS,
            "default-unreachable-toleration-seconds": EVICTION_SECONDS,
            "kubelet-preferred-address-types": "InternalIP",
            "kubelet-certificate-authority": self.keys.ca,
            "profiling": "false",
            **self._further_flags,
        }

    def _controller_manager_flags(self) -> dict[str, object]:
        return {
            "kubeconfig": self.admin_kubeconfig,
            "service-account-private-key-file": self.keys.key,
            "root-ca-file": self.keys.ca,
            "leader-elect": "false",
            "secure-port": 0,
            "kube-api-qps": CONTROLLER_QPS,
            "kube-api-burst": 2 * CONTROLLER_QPS,
            "concurrent-job-syncs": 10,
            "node-monitor-period": "1s",
            "node-monitor-grace-period": f"{NODE_GRACE_SECONDS}s",
            # By default one node in ten seconds loses its pods, nodes that have left included, and
            # none where more than half of a small cluster is silent.
            "node-eviction-rate": NODE_EVICTIONS_PER_SECOND,
            "secondary-node-eviction-rate": NODE_EVICTIONS_PER_SECOND,
            "large-cluster-size-threshold": 0,
            "profiling": "false",
        }

    def _scheduler_flags(self) -> dict[str, object]:
        return {
            "config": self.directory / "scheduler.json",
            "secure-port": 0,
        }

    def _write_configuration(self) -> None:
        lines = []
        for user, token in self._tokens().items():
            lines.append(f"{token},{user},{user},{GROUPS[user]}\n")
            path = self._kubeconfig_path(user)
            write_kubeconfig(path, server=self.url, ca=self.keys.ca, token=token)
        write_private(self.directory / "tokens.csv", "".join(lines))
        scheduler = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.admin_kubeconfig),
                "qps": CONTROLLER_QPS,
                "burst": 2 * CONTROLLER_QPS,
            },
        }
        (self.directory / "scheduler.json").write_text(json.dumps(scheduler))

    def _kubeconfig_path(self, user: str) -> Path:
        return self.directory / "kubeconfigs" / f"{user}.json"

    def _ports(self) -> list[int]:
        """Of etcd's clients, of etcd's peers and of the API server."""
        return kept_ports(3, self.directory)

    def _tokens(self) -> dict[str, str]:
        return kept_secrets(self.directory / "tokens.json", GROUPS)

    def _etcd_answers(self) -> bool:
        url = f"http://127.0.0.1:{self._ports()[0]}/health"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, ValueError):
            return False

    def _api_server_answers(self) -> bool:
        return self._admin().answers("/readyz")

    def _controllers_work(self) -> bool:
        """Whether the controllers have created the objects that every pod needs."""
        made = ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
        return all(self._admin().answers(f"/api/v1/namespaces/default/{path}") for path in made)

    def _admin(self) -> AdminApi:
        return AdminApi(self.url, self.keys.ca, self._tokens()["admin"])

    def _grant_nodes_their_rights(self) -> None:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NODE_GROUP},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:node",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NODE_GROUP}
            ],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        try:
            self._admin().request("POST", path, binding)
        except urllib.error.HTTPError as error:
            if error.code != CONFLICT:
                raise
