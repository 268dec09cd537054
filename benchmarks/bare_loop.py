"""A bare loop that creates the Jobs of a sweep and does nothing else: what the operator's speed is held against."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes import client, config

from isoloss_operator.cluster.client import JOB, Cluster, Conflict, Unavailable
from isoloss_operator.planning.points import prepare_config
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.support import synthetic_trainer

WRITERS = 16
"""Calls at a time, of the operator as well."""
Json = dict[str, Any]


def cluster_of(kubeconfig: Path) -> Cluster:
    """With as many connections as there are writers."""
    configuration = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    configuration.connection_pool_maxsize = WRITERS + 4
    return Cluster(client.ApiClient(configuration))


def prepare(sweep: Json) -> None:
    """Do what the prepare Job of an applied sweep would do: the corpus, and word of it for this sweep."""
    spec = parse_sweep_spec(sweep["spec"])
    task = {"config": prepare_config(spec).model_dump(mode="json"), "kind": "prepare"}
    asked_by = {"store_uri": spec.storage.uri, "sweep_uid": sweep["metadata"]["uid"]}
    synthetic_trainer.prepare({**task, **asked_by})


def train_jobs(cluster: Cluster, namespace: str) -> list[Json]:
    """The sweep's train Jobs."""
    return list(cluster.list(JOB, namespace, labels="isoloss.dev/task=train"))


def is_finished(job: Json) -> bool:
    """Whether a Job has ended."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def bare_loop(cluster: Cluster, namespace: str, bodies: list[Json], parallelism: int) -> None:
    """LIST, create up to the parallelism, until all are made: nothing else."""
    left = list(bodies)
    with ThreadPoolExecutor(WRITERS) as pool:
        while left:
            running = sum(not is_finished(job) for job in train_jobs(cluster, namespace))
            now, left = left[: parallelism - running], left[max(0, parallelism - running) :]
            list(pool.map(lambda body: _create(cluster, namespace, body), now))


def _create(cluster: Cluster, namespace: str, body: Json) -> None:
    """Create a Job; once more where the connection broke before the answer."""
    try:
        cluster.create(JOB, namespace, body)
    except Unavailable:
        with suppress(Conflict):
            cluster.create(JOB, namespace, body)


def rival_body(job: Json, owner: Json, namespace: str) -> Json:
    """The body that the operator sent, for the rival's namespace and owner."""
    metadata = job["metadata"]
    reference = {
        **metadata["ownerReferences"][0],
        "uid": owner["metadata"]["uid"],
        "name": owner["metadata"]["name"],
    }
    template = job["spec"]["template"]
    own = {k: v for k, v in template["metadata"]["labels"].items() if "isoloss" in k}
    text = json.dumps(
        {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "metadata": {
                "name": metadata["name"],
                "namespace": namespace,
                "labels": metadata["labels"],
                "annotations": metadata["annotations"],
                "ownerReferences": [reference],
            },
            "spec": {
                "backoffLimit": 0,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": job["spec"]["podFailurePolicy"],
                "template": {**template, "metadata": {"labels": own}},
            },
        }
    )
    body: Json = json.loads(text.replace(metadata["namespace"], namespace))
    return body
