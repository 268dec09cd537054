"""Kueue itself beside a control plane, and the objects that its administrator makes."""

import base64
import json
import threading
from pathlib import Path

from kubernetes import client

from devcluster.control_plane import ControlPlane
from devcluster.ports import free_ports
from isoloss.yaml_text import to_yaml
from tests.controllers.controller import Controller, Json, manifests_of
from tests.support.cluster import wait_until
from tests.support.crds import apply, install

KUEUE = "kueue"
SYSTEM = "kueue-system"
SECRET = "kueue-webhook-server-cert"
GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
API = f"{GROUP}/{VERSION}"
CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
"""Kinds whose conversion Kueue looks after. Nothing here asks for a version other than the stored one."""


class Kueue:
    """The process. It makes its own certificates, which in a pod the kubelet would mount from their Secret."""

    def __init__(self, plane: ControlPlane, folder: Path, **multi_kueue: object) -> None:
        self.api_client = plane.api_client()
        self._certificates = folder / "certificates"
        self._certificates.mkdir(parents=True)
        self._stopped = threading.Event()
        (port,) = free_ports(1)
        install(
            self.api_client,
            [_at(port, crd) for crd in manifests_of(KUEUE, "config/components/crd/bases")],
        )
        self._make_system_namespace()
        configuration = folder / "configuration.yaml"
        configuration.write_text(to_yaml(self._configuration(port, dict(multi_kueue))))
        threading.Thread(target=self._mount_certificates, daemon=True).start()
        self.controller = Controller(
            KUEUE,
            plane,
            folder,
            [f"--config={configuration}", "--feature-gates=VisibilityOnDemand=false"],
        )
        self.controller.wait_for_line("Starting workers")

    def end(self) -> None:
        """Stop the process."""
        self._stopped.set()
        self.controller.end()

    def _configuration(self, port: int, multi_kueue: Json) -> Json:
        found = {
            "apiVersion": f"config.{API}",
            "kind": "Configuration",
            "namespace": SYSTEM,
            "health": {"healthProbeBindAddress": "127.0.0.1:0"},
            "metrics": {"bindAddress": "0"},
            "webhook": {
                "host": "127.0.0.1",
                "port": port,
                "certDir": str(self._certificates),
            },
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": SECRET,
            },
            "integrations": {"frameworks": ["batch/job"]},
        }
        return {**found, "multiKueue": multi_kueue} if multi_kueue else found

    def _make_system_namespace(self) -> None:
        core = client.CoreV1Api(self.api_client)
        namespace: Json = {"metadata": {"name": SYSTEM}}
        secret: Json = {"metadata": {"name": SECRET}}
        for create in (
            lambda: core.create_namespace(namespace),
            lambda: core.create_namespaced_secret(SYSTEM, secret),
        ):
            try:
                create()
            except client.ApiException as error:
                if error.status != 409:
                    raise

    def _mount_certificates(self) -> None:
        core = client.CoreV1Api(self.api_client)
        while not self._stopped.wait(0.2):
            data = core.read_namespaced_secret(SECRET, SYSTEM).data or {}
            for name, content in data.items():
                (self._certificates / name).write_bytes(base64.b64decode(content))
            if "tls.key" in data:
                return


def _at(port: int, crd: Json) -> Json:
    """The CRD with its conversion at the process's own address, where no service leads to it."""
    if crd["spec"]["names"]["plural"] not in CONVERTED:
        return crd
    webhook = {
        "clientConfig": {"url": f"https://127.0.0.1:{port}/convert"},
        "conversionReviewVersions": ["v1"],
    }
    spec = {**crd["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}
    return {**crd, "spec": spec}


def make_queue(
    api_client: client.ApiClient, namespace: str, cpu: int, checks: tuple[str, ...] = ()
) -> str:
    """A flavor, a ClusterQueue with that many CPUs that a higher priority may take, and a LocalQueue; its name."""
    resources = [{"name": "cpu", "nominalQuota": cpu}]
    flavors = [{"name": namespace, "resources": resources}]
    queue: Json = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    if checks:
        on = [{"name": name} for name in checks]
        queue["admissionChecksStrategy"] = {"admissionChecks": on}
    for plural, kind, spec, place in (
        ("resourceflavors", "ResourceFlavor", {}, {}),
        ("clusterqueues", "ClusterQueue", queue, {}),
        ("localqueues", "LocalQueue", {"clusterQueue": namespace}, {"namespace": namespace}),
    ):
        metadata = {"name": namespace, **place}
        apply(
            api_client,
            plural,
            {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec},
        )
    return namespace


def make_priority(api_client: client.ApiClient, name: str, value: int) -> str:
    """A WorkloadPriorityClass."""
    body = {
        "apiVersion": API,
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": name},
        "value": value,
    }
    apply(api_client, "workloadpriorityclasses", body)
    return name


def lower_counts(api_client: client.ApiClient, namespace: str, least: int) -> None:
    """A policy that lets Kueue admit part of each Job of several pods: at least so many, and as many completions."""
    annotations = {
        "kueue.x-k8s.io/job-min-parallelism": str(least),
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }
    change = f"Object{{metadata: Object.metadata{{annotations: {json.dumps(annotations)}}}}}"
    jobs = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec: Json = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": selector,
            "resourceRules": [{**jobs, "operations": ["CREATE"]}],
        },
        "matchConditions": [{"name": "several", "expression": "object.spec.parallelism > 1"}],
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": change}}
        ],
    }
    kind = "MutatingAdmissionPolicy"
    for plural, found, body in (
        ("mutatingadmissionpolicies", kind, spec),
        ("mutatingadmissionpolicybindings", f"{kind}Binding", {"policyName": namespace}),
    ):
        group = "admissionregistration.k8s.io/v1"
        metadata = {"name": namespace}
        apply(
            api_client,
            plural,
            {"apiVersion": group, "kind": found, "metadata": metadata, "spec": body},
        )
    container = {"name": "main", "image": "any"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job: Json = {
        "metadata": {"generateName": "any-"},
        "spec": {"parallelism": 2, "suspend": True, "template": template},
    }

    def is_in_force() -> bool:
        api = client.BatchV1Api(api_client)
        made = api.create_namespaced_job(namespace, job, dry_run="All")
        return annotations.items() <= (made.metadata.annotations or {}).items()

    wait_until(is_in_force, "the policy to annotate Jobs")
