"""Argo CD itself beside a control plane: application controller, repository server, API server and a Redis."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from devcluster.build import TOOLS, kubectl_path, tool_path
from devcluster.control_plane import ControlPlane
from devcluster.ports import free_ports
from tests.controllers.controller import Controller, Json, manifests_of
from tests.controllers.git_repository import GitRepository
from tests.controllers.redis_server import Redis
from tests.gitops.health import GITOPS
from tests.support.cluster import wait_until
from tests.support.crds import MANAGER, apply, install

ARGO_CD = "argo-cd"
SYSTEM = "argocd"
GROUP, VERSION = "argoproj.io", "v1alpha1"
CHOICE = "ARGOCD_BINARY_NAME"
"""Says which of Argo CD's programs the one executable is."""
KUSTOMIZE = """#!/bin/sh
# kubectl has the same code built in.
[ "$1" = build ] && shift
exec kubectl kustomize "$@"
"""


class ArgoCD:
    """The processes, started at once, in the namespace argocd, with Argo CD's own configuration."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.api_client = plane.api_client()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # A socket's path may have 107 characters, and pytest's folders are deep.
        self._sockets = Path(tempfile.mkdtemp())
        install(self.api_client, _definitions())
        _configure(self.api_client)
        self._environment = self._make_environment(plane)
        self._redis = Redis(folder / "redis")
        repositories, api, *metrics = (str(port) for port in free_ports(5))
        asks = (f"--repo-server=127.0.0.1:{repositories}", "--repo-server-plaintext")
        self._processes = [
            self._start(
                plane,
                "argocd-repo-server",
                *("--address=127.0.0.1", f"--port={repositories}"),
                *("--metrics-address=127.0.0.1", f"--metrics-port={metrics[0]}"),
                *("--disable-tls", "--client-ca-path="),
            ),
            self._start(
                plane,
                "argocd-server",
                f"--namespace={SYSTEM}",
                *("--address=127.0.0.1", f"--port={api}", "--insecure", "--disable-auth"),
                *("--metrics-address=127.0.0.1", f"--metrics-port={metrics[1]}"),
                *asks,
            ),
            self._start(
                plane,
                "argocd-application-controller",
                *(f"--namespace={SYSTEM}", f"--metrics-port={metrics[2]}"),
                *asks,
            ),
        ]
        self.command_line = {
            **self._environment,
            CHOICE: "argocd",
            "ARGOCD_OPTS": f"--server=127.0.0.1:{api} --plaintext",
        }
        """What `argocd` needs to know."""

    def wait_until_ready(self) -> None:
        """The API server makes the project `default`, without which the controller takes no Application."""
        self._processes[0].wait_for_line("starting grpc server")
        wait_until(
            lambda: self._type("proj", "get", "default").returncode == 0, "the project default"
        )

    def end(self) -> None:
        """Stop the processes."""
        for process in (*reversed(self._processes), self._redis):
            process.end()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def type(self, *arguments: str) -> str:
        """A command of the `argocd` command line; what it printed."""
        answer = self._type(*arguments)
        assert answer.returncode == 0, answer.stdout
        return answer.stdout

    def _type(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tool_path(ARGO_CD), *arguments],
            env=self.command_line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def _start(self, plane: ControlPlane, program: str, *options: str) -> Controller:
        arguments = [*options, f"--redis={self._redis.address}"]
        environment = {**self._environment, CHOICE: program}
        return Controller(ARGO_CD, plane, self._folder / program, arguments, environment)

    def _make_environment(self, plane: ControlPlane) -> dict[str, str]:
        programs = self._folder / "programs"
        programs.mkdir()
        (programs / "kubectl").symlink_to(kubectl_path())
        (programs / "helm").symlink_to(tool_path("helm"))
        verify = TOOLS[ARGO_CD].module_folder() / "hack" / "git-verify-wrapper.sh"
        for name, text in (("kustomize", KUSTOMIZE), (verify.name, verify.read_text())):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        kubeconfig = json.loads(plane.admin_kubeconfig.read_text())
        for each in kubeconfig["contexts"]:
            each["context"]["namespace"] = SYSTEM
        written = self._folder / "kubeconfig"
        written.write_text(json.dumps(kubeconfig))
        nothing = self._folder / "nothing"
        nothing.mkdir()
        return {
            "PATH": f"{programs}:{os.defpath}",
            "HOME": str(self._folder),
            "KUBECONFIG": str(written),
            "ARGOCD_FAKE_IN_CLUSTER": "true",  # the Application's destination is the kubeconfig's
            "ARGOCD_GPG_ENABLED": "false",  # no commit here is signed
            "ARGOCD_ASK_PASS_SOCK": str(self._sockets / "ask-pass"),
            "ARGOCD_TLS_DATA_PATH": str(nothing),
            "ARGOCD_SSH_DATA_PATH": str(nothing),
        }


def _definitions() -> list[Json]:
    return [
        each
        for each in manifests_of(ARGO_CD, "manifests/crds")
        if each["kind"] == "CustomResourceDefinition"
    ]


def _configure(api_client: client.ApiClient) -> None:
    """The namespace, and in it what Argo CD's manifests put there before anything runs."""
    core = client.CoreV1Api(api_client)
    namespace: Json = {"metadata": {"name": SYSTEM}}
    core.create_namespace(namespace)
    write: dict[str, Any] = {
        "ConfigMap": core.patch_namespaced_config_map,
        "Secret": core.patch_namespaced_secret,
    }
    for body in manifests_of(ARGO_CD, "manifests/base/config"):
        if body["kind"] in write:
            write[body["kind"]](
                body["metadata"]["name"],
                SYSTEM,
                body,
                field_manager=MANAGER,
                _content_type="application/apply-patch+yaml",
            )


def add_health_checks(api_client: client.ApiClient) -> None:
    """What the guide has its reader merge into Argo CD's own ConfigMap."""
    body = yaml.safe_load((GITOPS / "argocd" / "argocd-cm.yaml").read_text())
    client.CoreV1Api(api_client).patch_namespaced_config_map(
        body["metadata"]["name"], body["metadata"]["namespace"], body
    )


class Application:
    """One of gitops/argocd, by default the sample's, for another namespace and another repository."""

    def __init__(
        self,
        argo_cd: ArgoCD,
        namespace: str,
        repository: GitRepository,
        file: str = "application.yaml",
    ) -> None:
        self._argo_cd, self._file = argo_cd, file
        self._namespace = namespace
        self.repository = repository
        self.name = namespace

    def apply(self, **source: Any) -> None:
        """Make it, with these changes to its source."""
        body = yaml.safe_load((GITOPS / "argocd" / self._file).read_text())
        body["metadata"]["name"] = self.name
        spec = body["spec"]
        spec["source"] |= {"repoURL": self.repository.url, **source}
        spec["destination"]["namespace"] = self._namespace
        apply(self._argo_cd.api_client, "applications", body)

    def commit(self, files: dict[str, str]) -> str:
        """Push a commit, of which the repository's webhook tells Argo CD; the revision."""
        revision = self.repository.commit(files)
        self.refresh()
        return revision

    def refresh(self, kind: str = "normal") -> None:
        """As a webhook does, or `argocd app get --refresh`: ask for a look, and wait until it was had."""
        body = {"metadata": {"annotations": {"argocd.argoproj.io/refresh": kind}}}
        self._api().patch_namespaced_custom_object(*self._place(), body)

        def was_had() -> bool:
            annotations = self.read()["metadata"].get("annotations", {})
            return "argocd.argoproj.io/refresh" not in annotations

        wait_until(was_had, "Argo CD to look", 120)

    def read(self) -> Json:
        """GET it."""
        found: Any = self._api().get_namespaced_custom_object(*self._place())
        return dict(found)

    def delete(self) -> None:
        """Delete it; what it has applied stays."""
        self._api().delete_namespaced_custom_object(*self._place())

    def status(self) -> Json:
        """Of it."""
        return dict(self.read().get("status", {}))

    def operation(self) -> Json:
        """Its last sync, or the one that runs."""
        return dict(self.status().get("operationState", {}))

    def health(self) -> str:
        """All objects together."""
        return str(self.status().get("health", {}).get("status", ""))

    def wait_until_healthy(self, revision: str, seconds: float = 300) -> None:
        """Wait until all of this revision is applied and healthy, and the sync has ended."""

        def is_done() -> bool:
            status = self.status()
            operation = status.get("operationState", {})
            return (
                status.get("sync", {}).get("status") == "Synced"
                and status["sync"].get("revision") == revision
                and status.get("health", {}).get("status") == "Healthy"
                and operation.get("phase") == "Succeeded"
            )

        self._wait(is_done, f"{revision} to be healthy", seconds)

    def wait_for_operation(self, phase: str, words: str = "", seconds: float = 180) -> Json:
        """Wait until a sync is in that phase and has these words in its message."""

        def holds() -> bool:
            operation = self.operation()
            return operation.get("phase") == phase and words in operation.get("message", "")

        self._wait(holds, f"a sync to be {phase} {words}", seconds)
        return self.operation()

    def wait_for_health(self, health: str, seconds: float = 180) -> None:
        self._wait(lambda: self.health() == health, f"health to be {health}", seconds)

    def _wait(self, holds: Any, what: str, seconds: float) -> None:
        try:
            wait_until(holds, what, seconds)
        except pytest.fail.Exception:
            print(json.dumps(self.status(), indent=1))
            raise

    def _api(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self._argo_cd.api_client)

    def _place(self) -> tuple[str, str, str, str, str]:
        return GROUP, VERSION, SYSTEM, "applications", self.name
