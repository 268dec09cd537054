"""The images as users run them: installed with helm, under restricted Pod Security, on a real kubelet.

One story in order, told twice. Every step needs those before it, so
run it with -x, as `make test-images` does.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from demo.corpus import pieces, write_jsonl
from demo.tokenizer import train_tokenizer
from devcluster.build import tool_path
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.store import Store
from isoloss_operator.decide.observation import LABEL_KIND
from tests.images.conftest import RESEARCH, TAGS, KubeletCluster
from tests.support.cluster import wait_until
from tests.support.operator_process import (
    SYNTHETIC_TRAINER,
    User,
    conditions,
    prediction_manifest,
    sweep_manifest,
    trained_manifest,
)

pytestmark = [
    pytest.mark.images,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    # What the first leaves behind would disturb the second, and is an error itself.
    pytest.mark.parametrize("cluster", ["first", "second"], indirect=True, scope="module"),
]

CHART = Path(__file__).parents[2] / "helm" / "isoloss"
SYSTEM = "isoloss-system"
DEPLOYMENT = "isoloss-operator"
STORE = "file:///sweeps"
GROUP = 65532
"""Of the operator's pod; the task pods get it by podTemplate, and the volume's root belongs to it."""
POINTS = 18
REAL_POINTS = 8
PATIENCE = 900
"""Seconds that a sweep may take: the machine has other work."""
Json = dict[str, Any]


# ------------------------------------------------------------------------------ what users bring


def namespace(name: str) -> Json:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def shared_volume(namespace: str, folder: Path) -> list[Json]:
    """One volume per namespace over the same folder, as with one NFS export."""
    size = {"storage": "10Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {"capacity": size, "hostPath": {"path": str(folder)}, "claimRef": None}
    volume["claimRef"] = {"namespace": namespace, "name": "sweeps"}
    claim = {"resources": {"requests": size}, "volumeName": f"sweeps-{namespace}"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"sweeps-{namespace}"},
            "spec": {**common, **volume},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "sweeps", "namespace": namespace},
            "spec": {**common, **claim},
        },
    ]


def values() -> Json:
    volume = {"name": "sweeps", "persistentVolumeClaim": {"claimName": "sweeps"}}
    repository = {name: {"repository": tag.rpartition(":")[0]} for name, tag in TAGS.items()}
    return {
        "image": {**repository["operator"], "pullPolicy": "Never"},
        "trainer": {"image": {**repository["trainer"], "pullPolicy": "Never"}},
        "storage": {"allowedPrefixes": {RESEARCH: [STORE, "s3://corpora"]}},
        "extraVolumes": [volume],
        "extraVolumeMounts": [{"name": "sweeps", "mountPath": "/sweeps"}],
    }


def pod_template(limits: Json | None = None, *, synthetic: bool, **environment: str) -> Json:
    """The shared volume and its group; `synthetic` puts a trainer of milliseconds before the real one."""
    volumes: list[Json] = [{"name": "sweeps", "persistentVolumeClaim": {"claimName": "sweeps"}}]
    mounts = [{"name": "sweeps", "mountPath": "/sweeps"}]
    environment = {"OMP_NUM_THREADS": "1", **environment}
    if synthetic:
        volumes.append({"name": "synthetic", "configMap": {"name": "synthetic"}})
        mounts.append({"name": "synthetic", "mountPath": "/synthetic/isoloss_trainer"})
        environment["PYTHONPATH"] = "/synthetic"
    container: Json = {"name": "trainer", "volumeMounts": mounts}
    container["env"] = [{"name": key, "value": value} for key, value in environment.items()]
    container["resources"] = {"limits": limits or {}}
    context = {"fsGroup": GROUP}
    return {"spec": {"securityContext": context, "volumes": volumes, "containers": [container]}}


def synthetic_sweep(name: str, **environment: str) -> Json:
    template = pod_template(synthetic=True, **environment)
    return sweep_manifest(name, "", storage={"uri": f"{STORE}/{name}"}, podTemplate=template)


def real_sweep(name: str, limits: Json | None = None) -> Json:
    """Eight points."""
    return trained_manifest(
        name,
        "",
        STORE,
        tokens=40_000,
        storage={"uri": f"{STORE}/{name}"},
        grid={"batchSizes": [1, 4], "learningRates": ["1e-3", "4e-3"]},
        parallelism=2,
        podTemplate=pod_template(limits, synthetic=False),
    )


def write_inputs(volume: Path) -> None:
    """A corpus (Python's manual pages) and its tokenizer, on a volume that one group writes to."""
    from pydoc_data.topics import topics

    os.chown(volume, 0, GROUP)
    volume.chmod(0o2770)
    texts = [piece for name in sorted(topics) for piece in pieces(topics[name])]
    (volume / "corpus").mkdir()
    write_jsonl(texts, "text", volume / "corpus" / "manual.jsonl")
    train_tokenizer([texts], volume / "tokenizer")


# ---------------------------------------------------------------------------------------- helm


def helm(cluster: KubeletCluster, *arguments: str) -> str:
    environment = {"PATH": os.defpath, "KUBECONFIG": str(cluster.plane.admin_kubeconfig)}
    environment["HOME"] = str(cluster.folder)  # the discovery cache, off the user's
    environment |= {
        f"HELM_{kind}_HOME": str(cluster.folder) for kind in ("CACHE", "CONFIG", "DATA")
    }
    answer = subprocess.run(
        [str(tool_path("helm")), *arguments, "--namespace", SYSTEM],
        env=environment,
        input=json.dumps(values()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def previous_chart(folder: Path) -> Path:
    """Today's chart as an older release: another version, and a CRD without its short name.

    Nothing has been released yet; from the first release on this is the chart of that.
    """
    chart = folder / "isoloss"
    shutil.copytree(CHART, chart)
    edit(chart / "Chart.yaml", "version: 0.1.0\nappVersion", "version: 0.0.9\nappVersion")
    crd = chart / "templates" / "crds" / "hyperparampredictions.yaml"
    edit(crd, "    shortNames:\n      - hpred\n", "")
    return chart


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} of {old!r}"
    path.write_text(text.replace(old, new))


def wait_for_operator(cluster: KubeletCluster) -> str:
    """Wait until the Deployment is rolled out; the pod's name."""
    answer = cluster.kubectl(
        *("-n", SYSTEM, "rollout", "status", f"deployment/{DEPLOYMENT}", "--timeout=300s")
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr + describe(cluster, SYSTEM)
    (pod,) = operator_pods(cluster)
    return str(pod.metadata.name)


def operator_pods(cluster: KubeletCluster) -> list[Any]:
    core = client.CoreV1Api(cluster.api)
    found = core.list_namespaced_pod(SYSTEM, label_selector="app.kubernetes.io/instance=isoloss")
    return [pod for pod in found.items if pod.metadata.deletion_timestamp is None]


def describe(cluster: KubeletCluster, namespace: str) -> str:
    """What a user would look at when pods do not start."""
    described = cluster.kubectl("-n", namespace, "describe", "pods").stdout
    return described + cluster.kubectl("-n", namespace, "get", "events").stdout


def succeeded(body: Json) -> int:
    return int(body.get("status", {}).get("points", {}).get("succeeded", 0))


# ---------------------------------------------------------------------------------------- story


def test_helm_installs_the_previous_chart_where_only_restricted_pods_are_admitted(
    cluster: KubeletCluster,
) -> None:
    write_inputs(cluster.volume)
    cluster.apply(namespace(SYSTEM), namespace(RESEARCH))
    for name in (SYSTEM, RESEARCH):
        cluster.apply(*shared_volume(name, cluster.volume))
    synthetic = {"__init__.py": "", "__main__.py": SYNTHETIC_TRAINER.read_text()}
    metadata = {"name": "synthetic", "namespace": RESEARCH}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": synthetic}
    )
    with tempfile.TemporaryDirectory() as scratch:
        chart = previous_chart(Path(scratch))
        helm(cluster, "install", "isoloss", str(chart), "--values", "-")
    wait_for_operator(cluster)
    (pod,) = operator_pods(cluster)
    assert pod.status.container_statuses[0].restart_count == 0


def test_a_sweep_and_a_prediction_become_ready(cluster: KubeletCluster, user: User) -> None:
    user.apply_sweep(synthetic_sweep("dense"))
    checkpoint = {"uri": f"{STORE}/loss-2.6", "podTemplate": pod_template(synthetic=True)}
    publish = {"configMapName": "answer"}
    user.apply_prediction(
        prediction_manifest("target", "dense", checkpoint=checkpoint, publish=publish)
    )
    fitted = user.wait_for(lambda: user.sweep("dense"), "Ready", seconds=PATIENCE)
    predicted = user.wait_for(lambda: user.prediction("target"), "Ready", seconds=PATIENCE)
    assert succeeded(fitted) == POINTS
    rate = predicted["status"]["learningRate"]
    assert float(rate["low"]) <= float(rate["value"]) <= float(rate["high"])
    answer = client.CoreV1Api(cluster.api).read_namespaced_config_map("answer", RESEARCH)
    assert answer.data["learningRate"] == rate["value"]
    (ledger,) = (cluster.volume / "dense" / "sweeps").glob("*/ledger.jsonl.gz")
    assert ledger.stat().st_uid == GROUP, "written by the operator"
    (manifest,) = (cluster.volume / "dense" / "data").glob("*/manifest.json")
    assert manifest.stat().st_uid == 1000, "written by a task"


def test_an_upgrade_changes_the_crds_and_keeps_what_was_there(
    cluster: KubeletCluster, user: User
) -> None:
    assert cluster.kubectl("get", "hpred").returncode != 0
    before = wait_for_operator(cluster)
    sweep, prediction = user.sweep("dense"), user.prediction("target")
    helm(cluster, "upgrade", "isoloss", str(CHART), "--values", "-")
    wait_until(
        lambda: [p.metadata.name for p in operator_pods(cluster)] != [before], "a new pod", 300
    )
    wait_for_operator(cluster)
    wait_until(lambda: cluster.kubectl("get", "hpred").returncode == 0, "the short name", 60)
    for old, new in ((sweep, user.sweep("dense")), (prediction, user.prediction("target"))):
        assert new["metadata"]["uid"] == old["metadata"]["uid"]
        assert conditions(new)["Ready"]["status"] == "True"


def test_a_pod_killed_by_the_kernel_for_its_memory_is_said(
    cluster: KubeletCluster, user: User
) -> None:
    user.apply_sweep(real_sweep("starved", {"memory": "40Mi"}))
    found = user.wait_for(
        lambda: user.sweep("starved"), "DataReady", "False", "PreparationFailed", PATIENCE
    )
    assert "OOMKilled" in conditions(found)["DataReady"]["message"]
    killed = [pod for pod in user.pods() if terminated_reason(pod) == "OOMKilled"]
    assert killed, "the kernel killed it, not the trainer itself"
    user.delete_sweep("starved")
    wait_until(lambda: not user.pods() or not running(user, "starved"), "its pods to go")


def terminated_reason(pod: Any) -> str:
    states = pod.status.container_statuses or []
    return next((s.state.terminated.reason for s in states if s.state.terminated), "")


def running(user: User, sweep: str) -> list[Any]:
    return [p for p in user.pods() if sweep in p.metadata.name and p.status.phase == "Running"]


def training(user: User, sweep: str) -> list[Any]:
    """Not the pods that prepare its corpus, which end soon."""
    return [p for p in running(user, sweep) if p.metadata.labels[LABEL_KIND] == "train"]


def test_real_training_survives_a_drained_node_and_a_deleted_operator(
    cluster: KubeletCluster, user: User
) -> None:
    user.apply_sweep(real_sweep("real"))
    wait_until(
        lambda: [p for p in training(user, "real") if "long" in p.metadata.name],
        "a long point to train",
        PATIENCE,
    )
    drain(cluster)
    assert not running(user, "real")
    assert cluster.kubectl("uncordon", cluster.node.name).returncode == 0
    operator = wait_for_operator(cluster)

    wait_until(lambda: succeeded(user.sweep("real")) >= 1, "points to succeed", PATIENCE)
    client.CoreV1Api(cluster.api).delete_namespaced_pod(operator, SYSTEM)
    wait_until(lambda: wait_for_operator(cluster) != operator, "another operator")

    finished = user.wait_for(
        lambda: user.sweep("real"), "Progressing", "False", "Finished", PATIENCE
    )
    assert succeeded(finished) == REAL_POINTS
    (folder,) = (cluster.volume / "real" / "sweeps").iterdir()
    ledger = read_ledger(Store(f"file://{cluster.volume}/real"), f"sweeps/{folder.name}")
    charged = [point.name for point in ledger.points if point.attempts.charged]
    assert charged == [], "a drained node is nobody's failure"


def drain(cluster: KubeletCluster) -> None:
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s")
    answer = cluster.kubectl("drain", cluster.node.name, *options)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_uninstalling_leaves_running_jobs_and_all_results(
    cluster: KubeletCluster, user: User
) -> None:
    user.apply_sweep(synthetic_sweep("running", SYNTHETIC_SECONDS="600"))
    wait_until(lambda: training(user, "running"), "a point to train", PATIENCE)
    crds = cluster.names("crds")
    helm(cluster, "uninstall", "isoloss", "--wait")
    assert operator_pods(cluster) == []

    assert training(user, "running"), "Jobs belong to the sweep, not to the operator"
    assert cluster.names("crds") == crds
    assert {"dense", "real", "running"} == {
        name.rpartition("/")[2] for name in cluster.names("scalingsweeps", "-n", RESEARCH)
    }
    # helm does not wait for pods, which may take their grace period.
    wait_until(lambda: not cluster.names("pods", "-n", SYSTEM), "the operator's pods to go", 90)
    left = cluster.names("all,configmaps,secrets,serviceaccounts,leases", "-n", SYSTEM)
    assert left == {
        "configmap/kube-root-ca.crt",
        "serviceaccount/default",
        f"lease.coordination.k8s.io/{DEPLOYMENT}",
    }
    selector = "app.kubernetes.io/part-of=isoloss"
    assert cluster.names("clusterroles,clusterrolebindings", "-l", selector) == set()


def test_installed_again_it_takes_over_and_deleting_sweeps_then_crds_removes_everything(
    cluster: KubeletCluster, user: User
) -> None:
    helm(cluster, "install", "isoloss", str(CHART), "--values", "-")
    wait_for_operator(cluster)
    user.wait_for(lambda: user.sweep("running"), "Progressing", seconds=PATIENCE)
    assert conditions(user.sweep("dense"))["Ready"]["status"] == "True"
    helm(cluster, "uninstall", "isoloss", "--wait")
    kinds = "scalingsweeps,hyperparampredictions"
    every = ("--all", "--all-namespaces", "--cascade=foreground")
    assert cluster.kubectl("delete", kinds, *every).returncode == 0
    assert not user.jobs(), "foreground deletion returns once the Jobs are gone"
    crds = [name for name in cluster.names("crds") if name.endswith("isoloss.dev")]
    assert cluster.kubectl("delete", *crds).returncode == 0
    wait_until(lambda: not user.pods(), "pods to go", 300)
