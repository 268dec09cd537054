"""Someone reads the install guide, then the pages for later, and types every command, on a real kubelet.

One story in order: each step needs those before it, so run it with -x, as `make test-images` does.
Two things are not as the guide has them: the reader's docker is buildah (docker_stand_in.py), and
the pods of the sweep train on a synthetic surface, because there is no GPU.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from devcluster.object_storage import ObjectStorage
from isoloss.summaries import in_words
from isoloss_contract.store import Store
from tests.images.conftest import RESEARCH, KubeletCluster
from tests.images.reader import bucket_server, reader
from tests.support.cluster import wait_until
from tests.support.operator_process import SYNTHETIC_TRAINER, User, conditions, sweep_manifest
from tests.support.pages import CHECKOUT
from tests.support.published_configs import TOY_CHECKPOINT
from tests.support.walk import Walk

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

DOCS = CHECKOUT / "docs"
INSTALL = DOCS / "guides" / "install.md"
UPGRADE = DOCS / "guides" / "upgrade.md"
RUNBOOKS = DOCS / "guides" / "runbooks.md"
TROUBLESHOOTING = DOCS / "guides" / "troubleshooting.md"
VALIDATION = DOCS / "guides" / "validation.md"
WATCH = DOCS / "guides" / "watch.md"
MONITORING = DOCS / "guides" / "monitoring.md"
READING = DOCS / "guides" / "reading-a-fit.md"
CHART = CHECKOUT / "helm" / "isoloss" / "README.md"
README = CHECKOUT / "README.md"

SYSTEM = "isoloss-system"
BUCKETS = ("lm-sweeps", "corpora", "models")
"""Those of the guide's values.yaml."""
CHECKPOINT = "loss-2.6"
"""The synthetic trainer reads the initial loss from a checkpoint's name."""
POINTS, PROBES = 18, 5
HEALTH_PORT = 8080
Json = dict[str, Any]


# ------------------------------------------------------------------------------ what the reader has


@pytest.fixture(scope="module")
def storage(cluster: KubeletCluster) -> Iterator[ObjectStorage]:
    with bucket_server(cluster, *BUCKETS) as storage:
        yield storage


@pytest.fixture(scope="module")
def walk(cluster: KubeletCluster, storage: ObjectStorage) -> Walk:
    """The reader, who knows what the guide's placeholders stand for here."""
    walk = reader(cluster)
    keys = storage.environment()
    walk.placeholders = {
        "REGISTRY": "localhost",
        "AWS_ACCESS_KEY_ID=...": f"AWS_ACCESS_KEY_ID={keys['AWS_ACCESS_KEY_ID']}",
        # The guide: "Add AWS_ENDPOINT_URL for an S3-compatible service."
        "AWS_SECRET_ACCESS_KEY=...": f"AWS_SECRET_ACCESS_KEY={keys['AWS_SECRET_ACCESS_KEY']}"
        f" --from-literal=AWS_ENDPOINT_URL={keys['AWS_ENDPOINT_URL']}",
        "OPERATOR": SYSTEM,
        "NAMESPACE": RESEARCH,
    }
    return walk


# ------------------------------------------------------------------- what the reader changes


def synthetic(cluster: KubeletCluster) -> Json:
    """A podTemplate that puts a trainer of milliseconds before the image's own; its ConfigMap is made."""
    modules = {"__init__.py": "", "__main__.py": SYNTHETIC_TRAINER.read_text()}
    metadata = {"name": "synthetic", "namespace": RESEARCH}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": modules})
    container = {
        "name": "trainer",
        "env": [{"name": "PYTHONPATH", "value": "/synthetic"}],
        "volumeMounts": [{"name": "synthetic", "mountPath": "/synthetic/isoloss_trainer"}],
    }
    volume = {"name": "synthetic", "configMap": {"name": "synthetic"}}
    return {"spec": {"volumes": [volume], "containers": [container]}}


def own_sweep(template: Json) -> Json:
    """crds/examples/dense-sweep.yaml with toy sizes and without a GPU; all else is the example's."""
    sweep: Json = yaml.safe_load((CHECKOUT / "crds" / "examples" / "dense-sweep.yaml").read_text())
    toy = sweep_manifest("", "")["spec"]
    for name in ("proxies", "grid", "evaluation", "training"):
        sweep["spec"][name] = toy[name]
    sweep["spec"]["data"]["sequenceLength"] = toy["data"]["sequenceLength"]
    del sweep["spec"]["data"]["podTemplate"], sweep["spec"]["optimizer"], sweep["spec"]["budget"]
    # Pods are kept for those who read their logs, however slow the machine.
    jobs = {"ttlSecondsAfterFinished": {"succeeded": 86_400}}
    return {**sweep, "spec": {**sweep["spec"], "podTemplate": template, "jobs": jobs}}


def own_prediction(template: Json) -> Json:
    """crds/examples/prediction.yaml for a toy checkpoint."""
    path = CHECKOUT / "crds" / "examples" / "prediction.yaml"
    prediction: Json = next(yaml.safe_load_all(path.read_text()))
    own = {
        "checkpoint": {"uri": f"s3://models/{CHECKPOINT}", "podTemplate": template},
        "budget": {"flops": "3e13"},
    }
    left = {name: prediction["spec"][name] for name in ("sweepRef", "publish")}
    return {**prediction, "spec": {**left, **own}}


def one_pod(cluster: KubeletCluster, kind: str) -> str:
    """The name of a pod of the sweep that has ended."""
    found = client.CoreV1Api(cluster.api).list_namespaced_pod(
        RESEARCH, label_selector=f"isoloss.dev/task={kind}"
    )
    return str(found.items[0].metadata.name)


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return int(answer.status)


# --------------------------------------------------------------------------- the install guide


def test_both_images_are_built_and_can_be_pulled_under_the_names_of_the_guide(
    walk: Walk, cluster: KubeletCluster
) -> None:
    walk.open(INSTALL)
    walk.step("docker build -f operator/Dockerfile")
    names = set(cluster.node.image_names())
    assert {f"localhost/isoloss/{name}:0.1.0" for name in ("operator", "trainer")} <= names


def test_namespaces_and_secrets_are_made(walk: Walk, cluster: KubeletCluster) -> None:
    walk.step("kubectl create namespace isoloss-system")
    walk.step("kubectl -n isoloss-system create secret generic isoloss-s3")
    for namespace, name in ((SYSTEM, "isoloss-s3"), (RESEARCH, "sweep-s3")):
        secret = client.CoreV1Api(cluster.api).read_namespaced_secret(name, namespace)
        keys = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"}
        assert set(secret.data) == keys


def test_the_chart_is_installed_and_helm_test_finds_nothing_wrong(
    walk: Walk, cluster: KubeletCluster
) -> None:
    walk.save("# values.yaml", "values.yaml")
    printed = walk.step("helm install isoloss helm/isoloss")
    assert "successfully rolled out" in printed
    assert printed.count("nothing is wrong") == 2
    assert "Failed" not in printed


def test_probes_and_metrics_are_served_on_the_port_of_the_guide(cluster: KubeletCluster) -> None:
    (pod,) = (
        client.CoreV1Api(cluster.api)
        .list_namespaced_pod(SYSTEM, label_selector="app.kubernetes.io/name=isoloss-operator")
        .items
    )
    for path in ("metrics", "healthz", "readyz"):
        assert get(f"http://{pod.status.pod_ip}:{HEALTH_PORT}/{path}") == 200


def test_the_plan_of_the_example_is_printed_before_it_is_applied(walk: Walk) -> None:
    walk.step("cp crds/examples/dense-sweep.yaml")
    printed = walk.step("python3 -m venv isoloss")
    assert "accelerator h" in printed
    assert "dense-500m" in printed


def test_a_sweep_and_a_prediction_become_ready_by_the_commands_of_the_guide(
    walk: Walk, cluster: KubeletCluster, storage: ObjectStorage, user: User
) -> None:
    template = synthetic(cluster)
    config = json.dumps(TOY_CHECKPOINT).encode()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in storage.environment().items():
            patch.setenv(name, value)
        Store(f"s3://models/{CHECKPOINT}").write("config.json", config)
        Store(f"s3://models/{CHECKPOINT}").write("model.safetensors", b"weights")
    files = {"dense-sweep": own_sweep(template), "prediction": own_prediction(template)}
    for name, manifest in files.items():
        # As JSON: PyYAML would write learning rates without the quotes that they need.
        (walk.folder / f"{name}.yaml").write_text(json.dumps(manifest))
    printed = walk.step("kubectl apply -f dense-sweep.yaml -f prediction.yaml")
    assert "hyperparamprediction.isoloss.dev/dense-8b condition met" in printed
    assert walk.left == []
    status = user.prediction("dense-8b")["status"]
    answer = client.CoreV1Api(cluster.api).read_namespaced_config_map(
        "dense-8b-hyperparams", RESEARCH
    )
    assert answer.data["learningRate"] == status["learningRate"]["value"]
    assert answer.data["batchSize"] == str(status["batchSize"]["value"])
    assert user.sweep("dense")["status"]["points"]["succeeded"] == POINTS


# ---------------------------------------------------------------------------- the pages for later


def test_the_probes_are_judged_and_their_page_shows_it(
    walk: Walk, storage: ObjectStorage, user: User
) -> None:
    wait_until(
        lambda: conditions(user.prediction("dense-8b"))["Validated"]["status"] != "Unknown",
        "the verdict",
        walk.patience,
    )
    programs = f"{walk.folder / 'isoloss' / 'bin'}:{walk.environment['PATH']}"
    walk.environment = {**walk.environment, **storage.environment(), "PATH": programs}
    walk.open(VALIDATION, "kubectl", "isoloss open")
    assert f"{PROBES}/{PROBES}" in walk.step("kubectl -n research get hpred dense-8b")
    prediction = user.prediction("dense-8b")
    assert prediction["status"]["refined"]
    verdict = conditions(prediction)["Validated"]

    def shown(page: str) -> bool:
        badge = in_words(verdict["reason"]).capitalize()
        return f">{badge}</span>" in (walk.folder / page).read_text()

    def is_drawn() -> bool:
        walk.again("isoloss open hpred/dense-8b -n research --out page.html --no-browser")
        return shown("page.html")

    wait_until(is_drawn, "the page of the verdict", 60)
    walk.step("isoloss open hpred/dense-8b")
    assert walk.left == []


def test_the_rules_can_be_had_without_the_prometheus_operator(walk: Walk) -> None:
    walk.open(MONITORING, "helm")
    rule = yaml.safe_load(walk.step("helm template isoloss helm/isoloss"))
    assert walk.left == []
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"]["groups"]


def test_a_sweep_is_watched_in_the_store_and_in_the_cluster(walk: Walk, user: User) -> None:
    walk.open(WATCH)
    watched = walk.step("isoloss watch s3://lm-sweeps/dense")
    assert f"points {POINTS}/{POINTS}, laws fitted" in watched
    assert walk.left == []


def test_the_report_is_drawn_from_the_store_as_the_operator_drew_it(walk: Walk) -> None:
    walk.open(READING)
    printed = walk.step("kubectl -n research get ssweep dense")
    assert "s3://lm-sweeps/dense/" in printed
    assert "<!doctype html>" in (walk.folder / "report.html").read_text()
    assert walk.left == []


def test_what_troubleshooting_asks_for_is_printed_and_has_no_secret(
    walk: Walk, cluster: KubeletCluster, storage: ObjectStorage
) -> None:
    walk.placeholders |= {"NAME": "dense", "POD": one_pod(cluster, "train")}
    walk.open(TROUBLESHOOTING)
    walk.rest()
    secret = storage.environment()["AWS_SECRET_ACCESS_KEY"]
    for name in ("sweep.yaml", "operator.log"):
        text = (walk.folder / name).read_text()
        assert text
        assert secret not in text


def test_every_command_of_the_runbooks_can_be_typed(
    walk: Walk, cluster: KubeletCluster, user: User
) -> None:
    restart_operator(walk)
    walk.placeholders["POD"] = one_pod(cluster, "train")
    walk.open(RUNBOOKS)
    while walk.left:
        (command, *_) = walk.left
        walk.placeholders["NAME"] = "dense-8b" if " hpred " in command.text else "dense"
        # Nothing may be found in the log of an operator without troubles.
        walk.step("", statuses=(0, 1) if "| grep" in command.text else (0,))
    assert user.sweep("dense")["spec"]["suspend"], "a runbook stops it"
    assert walk.again(
        f'kubectl -n {SYSTEM} logs deployment/isoloss-operator | grep \'"level": "INFO"\''
    ), "the log has the form that the runbooks search for"
    walk.again(
        'kubectl -n NAMESPACE patch ssweep NAME --type merge -p \'{"spec":{"suspend":false}}\''
    )


def restart_operator(walk: Walk) -> None:
    """End the operator in its pod: the runbook asks for the log of the container before."""
    walk.again(
        f"kubectl -n {SYSTEM} exec deployment/isoloss-operator -- python -c 'import os; os.kill(1, 15)'"
    )
    count = "{.items[0].status.containerStatuses[0].restartCount}"
    pods = f"kubectl -n {SYSTEM} get pods -l app.kubernetes.io/name=isoloss-operator"
    wait_until(
        lambda: walk.again(f"{pods} -o jsonpath='{count}'") == "1",
        "the restart",
        120,
    )
    walk.again(f"kubectl -n {SYSTEM} rollout status deployment/isoloss-operator")


# ------------------------------------------------------------------------- upgrade and uninstall


def test_an_upgrade_by_the_guide_keeps_the_answer(walk: Walk, user: User) -> None:
    before = user.prediction("dense-8b")
    walk.open(UPGRADE)
    assert "STATUS: deployed" in walk.step("helm upgrade isoloss helm/isoloss")
    walk.step("kubectl apply --server-side -f crds/")
    walk.again(f"kubectl -n {SYSTEM} rollout status deployment/isoloss-operator")
    after = user.prediction("dense-8b")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["learningRate"] == before["status"]["learningRate"]


def test_the_roles_of_a_namespaced_installation_are_printed_and_accepted(walk: Walk) -> None:
    (walk.folder / "roles.yaml").write_text(walk.step("helm template isoloss helm/isoloss"))
    printed = walk.again("kubectl apply --dry-run=server -f roles.yaml")
    assert "role.rbac.authorization.k8s.io" in printed


def test_uninstalling_leaves_what_the_guide_says_until_the_reader_removes_it(
    walk: Walk, cluster: KubeletCluster, user: User
) -> None:
    printed = walk.step("kubectl get scalingsweeps,hyperparampredictions -A")
    assert "dense-8b" in printed
    assert 'release "isoloss" uninstalled' in printed
    assert user.sweep("dense")["metadata"]["name"] == "dense"
    walk.step("kubectl delete scalingsweeps,hyperparampredictions")
    assert not user.jobs(), "foreground deletion returns once the Jobs are gone"
    walk.rest()
    assert not [name for name in cluster.names("crds") if name.endswith("isoloss.dev")]
    assert not cluster.names("configmaps", "-n", RESEARCH) & {"configmap/dense-8b-hyperparams"}


@pytest.mark.parametrize("page", [CHART, README], ids=["chart", "readme"])
def test_the_short_ways_to_install_create_the_namespace(
    page: Path, walk: Walk, cluster: KubeletCluster
) -> None:
    """What the chart's README and the checkout's say for those who have their values already."""
    walk.again(f"kubectl delete namespace {SYSTEM}")
    edit = yaml.safe_load((walk.folder / "values.yaml").read_text())
    edit["storage"]["existingSecret"] = ""
    edit["storage"]["allowedPrefixes"] = {}
    (walk.folder / "values.yaml").write_text(yaml.safe_dump(edit))
    walk.open(page, "helm install")
    walk.rest()
    walk.again(f"helm uninstall isoloss --namespace {SYSTEM} --wait")
