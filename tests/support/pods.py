"""Small Jobs and pods for the process node, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.cluster import wait_until

if TYPE_CHECKING:
    from kubernetes import client

Json = dict[str, Any]


def pod_spec(script: str, container: Json | None = None, **spec: object) -> Json:
    """A pod of one container `main` that runs a shell script."""
    main = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [main | (container or {})],
        **spec,
    }


@dataclass(frozen=True)
class Workload:
    """Creates and reads pods and Jobs of one namespace as an administrator."""

    api_client: client.ApiClient
    namespace: str

    @property
    def core(self) -> client.CoreV1Api:
        """Calls of the core group."""
        from kubernetes import client

        return client.CoreV1Api(self.api_client)

    @property
    def batch(self) -> client.BatchV1Api:
        """Calls of the batch group."""
        from kubernetes import client

        return client.BatchV1Api(self.api_client)

    def create_pod(self, spec: Json, name: str = "pod", **metadata: object) -> None:
        """Create a bare pod."""
        body = {"metadata": {"name": name, **metadata}, "spec": spec}
        self.core.create_namespaced_pod(self.namespace, body)

    def create_job(self, template: Json, name: str = "job", **spec: object) -> None:
        """Create a Job that replaces a pod only once it has ended."""
        job = {"backoffLimit": 0, "podReplacementPolicy": "Failed", **spec}
        body = {"metadata": {"name": name}, "spec": job | {"template": {"spec": template}}}
        self.batch.create_namespaced_job(self.namespace, body)

    def pod(self, name: str = "pod") -> Any:
        """Read one pod."""
        return self.core.read_namespaced_pod(name, self.namespace)

    def pods(self) -> list[Any]:
        """List the namespace's pods."""
        return list(self.core.list_namespaced_pod(self.namespace).items)

    def conditions(self, name: str = "job") -> dict[str, str | None]:
        """Reason of each condition of a Job that is true."""
        listed = self.batch.read_namespaced_job(name, self.namespace).status.conditions or []
        return {entry.type: entry.reason for entry in listed if entry.status == "True"}

    def wait_for_phase(self, phase: str, name: str = "pod") -> Any:
        """Wait until a pod is in a phase; returns the pod."""
        wait_until(lambda: self.pod(name).status.phase == phase, f"pod {name} to be {phase}")
        return self.pod(name)

    def wait_for_waiting(self, reason: str, name: str = "pod") -> Any:
        """Wait until a pod's first container waits for a reason; returns its waiting state."""

        def waiting() -> Any:
            statuses = self.pod(name).status.container_statuses
            return statuses[0].state.waiting if statuses else None

        def is_reached() -> bool:
            state = waiting()
            return state is not None and state.reason == reason

        wait_until(is_reached, f"pod {name} to wait for {reason}")
        return waiting()


def terminated(pod: Any) -> Any:
    """Terminated state of a pod's first container."""
    return pod.status.container_statuses[0].state.terminated
