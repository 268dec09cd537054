"""Draws docs/guides/dashboard.png: what the chart's dashboard shows of an operator at work.

    python -m tests.monitoring.picture        # or make draw-dashboard; five minutes

A Prometheus scrapes an operator every three seconds while two sweeps train on a planted loss surface, one
of them with points that fail for good, probes judge a prediction, and a third sweep and another prediction
wait for somebody to correct them. Operator, API server, S3 server and Prometheus are real; pods are processes
that wait most of the time (tests/support/planted_trainer.py).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client

from devcluster.cluster import DevCluster
from devcluster.process_node import NodeOptions
from tests.deploy.chart import ROOT
from tests.monitoring.dashboard import dashboard_panels
from tests.monitoring.drawing import draw, png
from tests.monitoring.prometheus import Window, scraping
from tests.support.cluster import wait_until
from tests.support.crds import install_crds
from tests.support.operator_process import (
    STORE_SECRET,
    OperatorProcess,
    User,
    apply_account,
    conditions,
    env_template,
    prediction_manifest,
    sweep_manifest,
)
from tests.support.published_configs import TOY_CHECKPOINT

PICTURE = ROOT / "docs" / "guides" / "dashboard.png"
NAMESPACE, BUCKET = "research", "sweeps"
ANSWER = "dense-8b"
POINT_SECONDS = 30
"""How long a point trains."""
IDLE_SECONDS = 30
"""How long to look on once everything has ended."""
MOST_SECONDS = 1200
Json = dict[str, Any]


def main() -> None:
    """Run the operator, then draw."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isoloss-picture-")))
        cluster = stack.enter_context(running_cluster(folder / "cluster"))
        user = new_user(cluster)
        operator = stack.enter_context(running_operator(cluster, folder))
        scraped = {"pod": "isoloss-operator"}
        target = operator.url().removeprefix("http://")
        server = stack.enter_context(scraping(target, folder, scraped))
        start = time.time()
        apply_all(user, checkpoint(cluster))
        wait_until(lambda: has_ended(user), "sweeps and probes to end", MOST_SECONDS)
        time.sleep(IDLE_SECONDS)
        picture = png(draw(dashboard_panels(), Window(server, start, time.time())))
    PICTURE.write_bytes(picture)
    print(f"{PICTURE.relative_to(ROOT)}: {len(picture) / 1000:.0f} kB")


@contextmanager
def running_cluster(folder: Path) -> Iterator[DevCluster]:
    """A cluster of this process alone, with one node and a namespace."""
    cluster = DevCluster(folder)
    folder.mkdir(mode=0o700)
    cluster.stop_with(os.getpid(), remove=True)
    try:
        cluster.start()
        cluster.object_storage.create_bucket(BUCKET)
        cluster.node(options=NodeOptions(cpu="64")).start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def new_user(cluster: DevCluster) -> User:
    """A user with a namespace where the operator may work."""
    api_client = cluster.control_plane.api_client()
    core = client.CoreV1Api(api_client)
    body: Any = {"metadata": {"name": NAMESPACE}}
    core.create_namespace(body)
    wait_until(
        lambda: core.list_namespaced_service_account(NAMESPACE).items, "the default account"
    )
    install_crds(api_client)
    apply_account(api_client, NAMESPACE)
    user = User(api_client, NAMESPACE)
    user.create_secret(STORE_SECRET, cluster.object_storage.environment())
    return user


@contextmanager
def running_operator(cluster: DevCluster, folder: Path) -> Iterator[OperatorProcess]:
    """The operator for that namespace."""
    environment = {
        **cluster.object_storage.environment(),
        "ISOLOSS_ALLOWED_STORAGE": json.dumps({NAMESPACE: [f"s3://{BUCKET}"]}),
    }
    operator = OperatorProcess(cluster.control_plane, [NAMESPACE], folder, environment, fresh=True)
    operator.start()
    try:
        yield operator
    finally:
        operator.end()


def checkpoint(cluster: DevCluster) -> str:
    """URI of a checkpoint in the store, with an initial loss of 2.6."""
    folder = cluster.object_storage.buckets / BUCKET / "models" / "loss-2.6"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TOY_CHECKPOINT))
    return f"s3://{BUCKET}/models/loss-2.6"


def apply_all(user: User, checkpoint: str) -> None:
    """Two sweeps that train, one of another tenant's store, and two predictions."""
    once = [
        {"batch_size": 8, "learning_rate": 4e-3, "exit": 1, "attempts": [1], "after": 20},
        {"batch_size": 16, "learning_rate": 2e-3, "exit": "kill", "attempts": [1], "after": 10},
    ]
    user.apply_sweep(sweep("dense", once, parallelism=6, budget={"acceleratorHours": 1}))
    always = [{"batch_size": 16, "learning_rate": 8e-3, "exit": 43, "after": 15}]
    policy = {"retriesPerPoint": 1, "maxFailedPoints": 4}
    user.apply_sweep(
        sweep("wide", always, parallelism=3, failurePolicy=policy, budget={"flops": "2e15"})
    )
    refused = sweep("elsewhere")
    refused["spec"]["storage"] = {"uri": "s3://of-another-tenant/sweep"}
    user.apply_sweep(refused)
    validation = {"tokensShare": "0.5", "parallelism": 2}
    model = {"uri": checkpoint}
    user.apply_prediction(
        prediction_manifest(ANSWER, "dense", checkpoint=model, validation=validation)
    )
    theirs = {"uri": "s3://of-another-tenant/model"}
    user.apply_prediction(prediction_manifest("theirs", "dense", checkpoint=theirs))


def sweep(name: str, failures: list[Json] | None = None, **spec: Any) -> Json:
    """A sweep of 18 points whose storage is its own, so that it shares no point with another."""
    template = env_template(
        PLANTED_SECONDS=str(POINT_SECONDS), PLANTED_FAILURES=json.dumps(failures or [])
    )
    return sweep_manifest(name, f"s3://{BUCKET}/{name}", podTemplate=template, **spec)


def has_ended(user: User) -> bool:
    """Whether both sweeps have trained and the probes are judged."""
    training = [conditions(user.sweep(name)).get("Progressing", {}) for name in ("dense", "wide")]
    verdict = conditions(user.prediction(ANSWER)).get("Validated", {})
    return all(each.get("status") == "False" for each in training) and (
        verdict.get("status") in ("True", "False")
    )


if __name__ == "__main__":
    main()
