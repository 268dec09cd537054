"""The operator as its own process with its own rights, and what a user does to it."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kubernetes import client
from kubernetes.utils import create_from_dict

from devcluster.control_plane import ControlPlane
from isoloss_operator.api import GROUP, PREDICTION_PLURAL, SWEEP_PLURAL, VERSION
from isoloss_operator.cluster.rbac import NAME, account
from tests.support.cluster import looks, wait_until
from tests.support.models import example_model, two_domains, two_sizes
from tests.support.synthetic_trainer import VOCABULARY
from tests.support.warm_operator import DRAWS, LOG
from tests.support.warm_python import WarmProcess, WarmPython

Json = dict[str, Any]
PROJECT = Path(__file__).parents[2]
SYNTHETIC_TRAINER = Path(__file__).parent / "synthetic_trainer.py"
STORE_SECRET = "store"
"""Secret with the credentials of the store, in the user's namespace."""
# As text: a path of its own would be rewritten if the checkout is under a pod's /tmp.
SYNTHETIC_COMMAND = [
    "python",
    "-S",
    "-E",
    "-c",
    f"import runpy; runpy.run_path({str(SYNTHETIC_TRAINER)!r}, run_name='__main__')",
]


WARM = """
import isoloss_operator.install_check, isoloss_operator.runtime
from isoloss_operator.fitting import fitter
import tests.support.warm_store
ours = [f"tests.support.{name}" for name in ("warm_operator", "warm_store", "empty_figures")]
fitter._PROCESSES.set_forkserver_preload([*fitter.PRELOADED, *ours])
fitter.start_ahead()
"""
IN_CHILD = "from tests.support.warm_operator import take_over; take_over()"


@functools.cache
def warm_python() -> WarmPython:
    """Starts operators, whose modules are imported already, as are those of the processes of their fits."""
    return WarmPython(WARM, IN_CHILD)


def apply_account(
    api_client: client.ApiClient, namespace: str, watched: Sequence[str] = ()
) -> None:
    """The operator's service account with the chart's rights in the `watched` namespaces."""
    served = watched or [namespace]
    for manifest in account(namespace, watched=served):
        create_from_dict(api_client, manifest)
    wait_for_right(api_client, (namespace, NAME), namespace, ("coordination.k8s.io", "leases"))
    for place in served:
        wait_for_right(api_client, (namespace, NAME), place, ("batch", "jobs"))


def wait_for_right(
    api_client: client.ApiClient,
    account_of: tuple[str, str],
    place: str,
    kind: tuple[str, str],
    verb: str = "create",
) -> None:
    """Wait until a service account (namespace, name) has a right that was just granted in namespace `place`.

    The API server reads roles and bindings through a watch: on a busy machine, seconds after they were written.
    `kind` is (API group, resources).
    """
    group, resource = kind
    body: Any = {
        "spec": {
            "user": "system:serviceaccount:{}:{}".format(*account_of),
            "resourceAttributes": {
                "namespace": place,
                "group": group,
                "resource": resource,
                "verb": verb,
            },
        }
    }
    api = client.AuthorizationV1Api(api_client)

    def is_granted() -> bool:
        status = api.create_subject_access_review(body).status
        return status is not None and status.allowed

    wait_until(is_granted, f"the right to {verb} {resource} in {place}")


@dataclass
class OperatorProcess:
    """Starts, stops and kills an operator that serves some namespaces and has rights in no other."""

    control_plane: ControlPlane
    namespaces: Sequence[str]
    """Those it serves; it lives in the first."""
    directory: Path
    environment: dict[str, str]
    """Of the operator: credentials of the store and ISOLOSS_* beside the defaults below."""
    process: WarmProcess | subprocess.Popen[bytes] | None = None
    starts: int = 0
    kubeconfig: Path | None = None
    fresh: bool = False
    """Started by Python itself, as in a container, for seconds of CPU; else forked."""
    draws: bool = False
    """Draws the figures of its pages, as one does that is `fresh`; else they are empty."""

    def log_in(self) -> Path:
        """The kubeconfig of its account, made at the first start: later ones need no API server."""
        if self.kubeconfig is None:
            home = self.namespaces[0]
            self.kubeconfig = self.control_plane.kubeconfig_for_service_account(home, NAME)
        return self.kubeconfig

    def start(self) -> None:
        """Start it without waiting."""
        assert self.process is None or self.process.poll() is not None
        kubeconfig = self.log_in()
        self.starts += 1
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "KUBECONFIG": str(kubeconfig),
            # Which kernels compute: an operator that is forked has those of the tests, and their laws are compared to the last digit.
            **{name: os.environ[name] for name in os.environ if name.startswith("OPENBLAS_")},
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "ISOLOSS_NAMESPACES": ",".join(self.namespaces),
            "ISOLOSS_LEASE_NAMESPACE": self.namespaces[0],
            "ISOLOSS_TRAINER_IMAGE": "synthetic",
            "ISOLOSS_TRAINER_COMMAND": json.dumps(SYNTHETIC_COMMAND),
            "ISOLOSS_MINIMUM_INTERVAL_SECONDS": "0.2",
            "ISOLOSS_LEASE_SECONDS": "8",
            "ISOLOSS_RENEW_DEADLINE_SECONDS": "6",
            "ISOLOSS_RENEW_PERIOD_SECONDS": "1",
            "ISOLOSS_HTTP_ADDRESS": "127.0.0.1",
            "ISOLOSS_HTTP_PORT": "0",
            LOG: str(self.log),
            **({DRAWS: "1"} if self.draws else {}),
            **self.environment,
        }
        with self.log.open("ab") as log:
            program = ["-m", "isoloss_operator"]
            if self.fresh:
                self.process = subprocess.Popen(
                    [sys.executable, *program],
                    env=environment,
                    cwd=self.directory,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            else:
                self.process = warm_python().start(
                    program, environment=environment, folder=self.directory, output=log
                )

    @property
    def log(self) -> Path:
        """Everything that all starts have logged."""
        return self.directory / "operator.log"

    def lines(self) -> list[Json]:
        """The log, parsed: every line must be JSON."""
        text = self.log.read_text()
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError as error:
            raise AssertionError(f"the log is not JSON:\n{text}") from error

    def url(self) -> str:
        """Address of the newest start's health port."""
        wait_until(lambda: self._ports() and len(self._ports()) == self.starts, "the health port")
        return f"http://127.0.0.1:{self._ports()[-1]}"

    def _ports(self) -> list[str]:
        words = [line["message"] for line in self.lines() if "on port" in line["message"]]
        return [message.rpartition(" ")[2] for message in words]

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        """SIGKILL, as by the kernel or a lost node."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def peak_bytes(self) -> int:
        """The most that its own process held so far, without its fits, as the kernel counts against a limit."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def end(self) -> None:
        """Leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.kill()


@dataclass(frozen=True)
class User:
    """What a user does with kubectl in one namespace, as an administrator of it."""

    api_client: client.ApiClient
    namespace: str
    custom: client.CustomObjectsApi = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "custom", client.CustomObjectsApi(self.api_client))

    def apply_sweep(self, manifest: Json) -> Json:
        """Server-side apply, as Flux and Argo CD do."""
        return self._apply(SWEEP_PLURAL, manifest)

    def create_sweep(self, manifest: Json) -> None:
        """POST a sweep, unknown fields and all."""
        self.custom.create_namespaced_custom_object(*self._place(SWEEP_PLURAL), manifest)

    def apply_prediction(self, manifest: Json) -> Json:
        """Server-side apply."""
        return self._apply(PREDICTION_PLURAL, manifest)

    def _apply(self, plural: str, manifest: Json) -> Json:
        self.custom.patch_namespaced_custom_object(
            *self._place(plural),
            manifest["metadata"]["name"],
            manifest,
            field_manager="user",
            force=True,
            _content_type="application/apply-patch+yaml",
        )
        # The client returns nothing for an apply that created (201).
        return self._get(plural, manifest["metadata"]["name"])

    def _get(self, plural: str, name: str) -> Json:
        found: Any = self.custom.get_namespaced_custom_object(*self._place(plural), name)
        return cast("Json", found)

    def _place(self, plural: str) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self.namespace, plural

    def sweep(self, name: str) -> Json:
        """GET a sweep."""
        return self._get(SWEEP_PLURAL, name)

    def prediction(self, name: str) -> Json:
        """GET a prediction."""
        return self._get(PREDICTION_PLURAL, name)

    def touch(self, plural: str, name: str) -> None:
        """Change nothing that matters of a sweep or prediction, so that the operator looks at it."""
        body = {"metadata": {"annotations": {"example.com/looked-at": str(time.time())}}}
        self.custom.patch_namespaced_custom_object(*self._place(plural), name, body)

    def patch_sweep(self, name: str, change: Json) -> None:
        """As `kubectl patch --type=merge`."""
        self.custom.patch_namespaced_custom_object(*self._place(SWEEP_PLURAL), name, change)

    def delete_sweep(self, name: str) -> None:
        """DELETE a sweep, as kubectl does: what it owns goes in the background."""
        self.custom.delete_namespaced_custom_object(*self._place(SWEEP_PLURAL), name)

    def sweeps(self) -> dict[str, Json]:
        """All sweeps of the namespace by name."""
        listed: Any = self.custom.list_namespaced_custom_object(*self._place(SWEEP_PLURAL))
        return {each["metadata"]["name"]: each for each in listed["items"]}

    def jobs(self) -> list[Any]:
        """All Jobs of the namespace."""
        return list(client.BatchV1Api(self.api_client).list_namespaced_job(self.namespace).items)

    def pods(self) -> list[Any]:
        """All pods of the namespace."""
        return list(client.CoreV1Api(self.api_client).list_namespaced_pod(self.namespace).items)

    def events(self, *names: str) -> list[str]:
        """Reasons of the events about objects of these names."""
        return [str(event.reason) for event in self._events(names)]

    def told(self, *names: str) -> list[str]:
        """Their messages."""
        return [str(event.message) for event in self._events(names)]

    def _events(self, names: tuple[str, ...]) -> list[Any]:
        # Through the core group: the client cannot parse others' events of events.k8s.io.
        listed = client.CoreV1Api(self.api_client).list_namespaced_event(self.namespace).items
        return [event for event in listed if event.involved_object.name in names]

    def create_secret(self, name: str, values: Mapping[str, str]) -> None:
        """A Secret of plain values."""
        body: Any = {"metadata": {"name": name}, "stringData": dict(values)}
        client.CoreV1Api(self.api_client).create_namespaced_secret(self.namespace, body)

    def wait_for(
        self,
        read: Callable[[], Json],
        condition: str,
        status: str = "True",
        reason: str = "",
        seconds: float = 180,
    ) -> Json:
        """As `kubectl wait --for=condition`; fails with all conditions as they are."""
        body: Json = {}
        for _ in looks(seconds):
            body = read()
            found = conditions(body).get(condition, {})
            if found.get("status") == status and reason in ("", found.get("reason")):
                return body
        raise AssertionError(
            f"{condition} did not become {status} {reason} in {seconds:.0f} s:\n"
            + json.dumps(body.get("status"), indent=1)
        )


def grant_in(user: User, home: str) -> None:
    """Let the operator that lives in `home` serve the user's namespace, too."""
    body: Any = {
        "metadata": {"name": "operator-of-the-other-namespace"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": home}],
    }
    rbac = client.RbacAuthorizationV1Api(user.api_client)
    rbac.create_namespaced_role_binding(user.namespace, body)
    wait_for_right(user.api_client, (home, NAME), user.namespace, ("batch", "jobs"))


def conditions(body: Json) -> dict[str, Json]:
    """Current conditions by type: those of an older generation do not count."""
    generation = body["metadata"]["generation"]
    found = body.get("status", {}).get("conditions", [])
    return {each["type"]: each for each in found if each["observedGeneration"] == generation}


def sweep_manifest(name: str, uri: str, **spec: Any) -> Json:
    """A sweep of 18 points whose synthetic optimum lies inside the grid; its corpus is in the same store."""
    source = f"{uri or 's3://corpora'}/corpus"
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ScalingSweep",
        "metadata": {"name": name},
        "spec": {
            "storage": {"uri": uri, "secretName": STORE_SECRET},
            "data": {
                "tokenizer": f"{source}/tokenizer",
                "sequenceLength": 128,
                "domains": two_domains(source),
            },
            "proxies": two_sizes(4_000_000, VOCABULARY),
            "grid": {"batchSizes": [4, 8, 16], "learningRates": ["2e-3", "4e-3", "8e-3"]},
            "evaluation": {"firstTokens": 100_000, "perDecade": 24},
            "training": {"precision": "Float32"},
            "parallelism": 6,
            "design": "Unchecked",
            "failurePolicy": {"retriesPerPoint": 1, "maxFailedPoints": 0},
            **spec,
        },
    }


def trained_manifest(name: str, uri: str, inputs: str, tokens: int, **spec: Any) -> Json:
    """A sweep for the real trainer, of too few tokens for laws; `tokens` are those of its long points."""
    return sweep_manifest(
        name,
        uri,
        data={
            "tokenizer": f"{inputs}/tokenizer",
            "sequenceLength": 64,
            "domains": [{"name": "manual", "uri": f"{inputs}/corpus/*.jsonl", "weight": 1}],
            "validation": {"documentsPerThousand": 100, "sequencesPerDomain": 8},
        },
        proxies=[
            {"name": "long", "model": {"config": example_model("dense-tiny")}, "tokens": tokens},
            {"name": "short", "model": {"config": example_model("dense-small")}, "tokens": 4_000},
        ],
        optimizer={"warmupTokens": 500},
        evaluation={"firstTokens": 1_000, "perDecade": 8},
        training={"precision": "Float32", "checkpointSeconds": 1},
        **spec,
    )


def prediction_manifest(name: str, sweep: str, **spec: Any) -> Json:
    """A prediction for a checkpoint with an initial loss of 2.6."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "HyperparamPrediction",
        "metadata": {"name": name},
        "spec": {
            "sweepRef": {"name": sweep},
            "checkpoint": {"uri": "s3://models/loss-2.6"},
            "budget": {"flops": "3e13"},
            **spec,
        },
    }


def env_template(**environment: str) -> Json:
    """A podTemplate that sets environment variables of the trainer."""
    env = [{"name": name, "value": value} for name, value in environment.items()]
    return {"spec": {"containers": [{"name": "trainer", "env": env}]}}
