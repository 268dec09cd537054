"""The real operator with the real trainer; the operator is killed and a pod deleted."""

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from demo.corpus import write_jsonl
from demo.tokenizer import train_tokenizer
from devcluster.control_plane import ControlPlane
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointRecord, PointState
from isoloss_contract.ledger_files import read_ledger
from isoloss_contract.records import Claimant, PointConfig, PointResult, TrainTask
from isoloss_contract.store import Store
from isoloss_trainer.log import Log
from isoloss_trainer.termination import Interruption
from isoloss_trainer.train import train
from tests.support.cluster import wait_until
from tests.support.models import example_model
from tests.support.operator_process import OperatorProcess, User, env_template, trained_manifest
from tests.support.texts import text

pytestmark = [pytest.mark.cluster, pytest.mark.s3, pytest.mark.slow]

PARALLELISM = 2
CORPUS_CHARACTERS = 700_000
VICTIM = "long-b1-lr1e-3"
"""The point whose pod is deleted: one with the most steps."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
Json = dict[str, Any]


@pytest.fixture
def store(object_storage: ObjectStorage, tmp_path: Path, monkeypatch: Any) -> Store:
    """A bucket with a corpus, its tokenizer and nothing else."""
    for name, value in object_storage.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"test-{os.urandom(6).hex()}"
    object_storage.create_bucket(bucket)
    store = Store(f"s3://{bucket}")
    texts = text(CORPUS_CHARACTERS).splitlines()
    write_jsonl(texts, "text", tmp_path / "manual.jsonl")
    train_tokenizer([texts], tmp_path / "tokenizer")
    store.write("corpus/manual.jsonl", (tmp_path / "manual.jsonl").read_bytes())
    for path in (tmp_path / "tokenizer").iterdir():
        store.write(f"tokenizer/{path.name}", path.read_bytes())
    return store


@pytest.fixture
def operator(
    control_plane: ControlPlane,
    object_storage: ObjectStorage,
    user: User,
    store: Store,
    tmp_path: Path,
) -> Iterator[OperatorProcess]:
    """An operator that runs the real trainer."""
    environment = {
        **object_storage.environment(),
        "ISOLOSS_ALLOWED_STORAGE": json.dumps({user.namespace: [store.uri]}),
        "ISOLOSS_TRAINER_COMMAND": json.dumps(["python", "-m", "isoloss_trainer"]),
    }
    process = OperatorProcess(control_plane, [user.namespace], tmp_path, environment, fresh=True)
    yield process
    process.end()


def real_sweep(store: Store) -> Json:
    return trained_manifest(
        "real",
        f"{store.uri}/sweep",
        store.uri,
        tokens=24_000,
        grid={"batchSizes": [1], "learningRates": ["1e-3", "4e-3"]},
        failurePolicy={},
        parallelism=PARALLELISM,
        podTemplate=env_template(**ONE_THREAD),
    )


@pytest.mark.parametrize(
    ("sizes", "preemptions"),
    [(1, 1), pytest.param(2, 3, marks=pytest.mark.whole)],
    ids=["once", "again and again"],
)
def test_a_killed_operator_and_preempted_pods_change_no_result(
    operator: OperatorProcess,
    user: User,
    store: Store,
    process_node: ProcessNode,
    tmp_path: Path,
    sizes: int,
    preemptions: int,
) -> None:
    """tests/faults plays a hundred preemptions without a real trainer."""
    operator.start()
    manifest = real_sweep(store)
    del manifest["spec"]["proxies"][sizes:]
    user.apply_sweep(manifest)
    for _ in range(preemptions):
        preempt(user, store)
    operator.kill()
    operator.start()
    most = wait_for_end(user)

    assert most <= PARALLELISM
    sweep = user.sweep("real")
    records = ledger(store, sweep).points
    assert {record.state for record in records} == {PointState.SUCCEEDED}
    assert len(records) == sizes * len(manifest["spec"]["grid"]["learningRates"])
    assert not [record.name for record in records if record.attempts.charged]
    assert {r.name: attempts(store, r) for r in records if r.name != VICTIM} == {
        r.name: 1 for r in records if r.name != VICTIM
    }
    victim = next(record for record in records if record.name == VICTIM)
    assert attempts(store, victim) == 1 + preemptions, "it went on from its checkpoints"
    assert trajectory(store, victim.key) == undisturbed(store, sweep, victim.key, tmp_path)
    fit = user.wait_for(lambda: user.sweep("real"), "Stalled")["status"]["conditions"]
    reasons = {c["type"]: c["reason"] for c in fit}
    assert reasons["FitReady"] == reasons["Ready"], "so few tokens give no laws, and it says so"


@pytest.mark.whole
def test_two_pods_prepare_one_corpus(
    operator: OperatorProcess, user: User, store: Store, process_node: ProcessNode
) -> None:
    """Each one of the two domains; the first pod waits for the second and writes the manifest."""
    store.write("notes/manual.jsonl", store.read("corpus/manual.jsonl"))
    manifest = real_sweep(store)
    notes = {"name": "notes", "uri": f"{store.uri}/notes/*.jsonl", "weight": 1}
    data = manifest["spec"]["data"]
    data["domains"].append(notes)
    data["parallelism"] = 2
    operator.start()
    user.apply_sweep(manifest)

    def prepared() -> dict[int, str]:
        """What the pods of the preparation said at their end, by their number."""
        return {
            int(
                pod.metadata.annotations["batch.kubernetes.io/job-completion-index"]
            ): ended.message
            for pod in user.pods()
            if "-prepare-" in pod.metadata.name
            for container in pod.status.container_statuses or ()
            if (ended := container.state.terminated) is not None
        }

    wait_until(lambda: len(prepared()) == 2, "both pods to end", 240)
    words = prepared()
    assert "units of input files prepared: 1" in words[1]
    assert "manual:" in words[0]
    assert "notes:" in words[0]
    user.wait_for(lambda: user.sweep("real"), "DataReady", seconds=60)
    user.delete_sweep("real")


@pytest.mark.whole
def test_two_pods_train_one_point_and_go_on_together_after_one_was_deleted(
    operator: OperatorProcess, user: User, store: Store, process_node: ProcessNode
) -> None:
    """The second pod has no checkpoint of its own: the first one saves for both, and both are replaced."""
    manifest = real_sweep(store)
    size = {
        "name": "long",
        "model": {"config": example_model("dense-tiny")},
        "tokens": 12_000,
        "nodes": 2,
    }
    manifest["spec"] |= {"proxies": [size], "parallelism": 1}
    operator.start()
    user.apply_sweep(manifest)
    preempt(user, store, index=1)
    wait_for_end(user)
    records = ledger(store, user.sweep("real")).points
    assert {record.state for record in records} == {PointState.SUCCEEDED}
    assert not [record.name for record in records if record.attempts.charged]
    assert sorted(attempts(store, record) for record in records) == [1, 2]
    user.delete_sweep("real")


def preempt(user: User, store: Store, index: int | None = None) -> None:
    """Delete the victim's pod, of several that of the number `index`, as soon as it has written a checkpoint of its
    own."""
    core = client.CoreV1Api(user.api_client)
    number = "" if index is None else f"-{index}-"

    def pod() -> Any:
        found = (p for p in user.pods() if VICTIM in p.metadata.name and number in p.metadata.name)
        running = (p for p in found if p.status.phase == "Running")
        return next((p for p in running if p.metadata.deletion_timestamp is None), None)

    wait_until(pod, "the victim to run", 120)
    point = PointConfig.model_validate_json(json.dumps(json.loads(task_text(pod()))["point"]))

    def checkpoints() -> set[str]:
        return set(store.names(f"sweep/{layout.point_checkpoints(point.key)}"))

    # The pod before it has ended: it writes a last checkpoint when it is told to.
    before = checkpoints()
    wait_until(lambda: checkpoints() - before, "a new checkpoint of the victim", 60)
    core.delete_namespaced_pod(pod().metadata.name, user.namespace)


def task_text(pod: Any) -> str:
    variables = {each.name: each.value for each in pod.spec.containers[0].env}
    return str(variables["ISOLOSS_TASK"])


def wait_for_end(user: User) -> int:
    """Wait until every point has its outcome; returns the maximum number of concurrent pods."""
    most, deadline = 0, time.monotonic() + 240
    while time.monotonic() < deadline:
        running = [p for p in user.pods() if p.status.phase in ("Pending", "Running")]
        most = max(most, len(running))
        conditions = user.sweep("real").get("status", {}).get("conditions", [])
        if any(c["type"] == "Progressing" and c["reason"] == "Finished" for c in conditions):
            return most
        time.sleep(0.2)
    pytest.fail(f"the sweep does not end: {json.dumps(user.sweep('real')['status'], indent=1)}")


def ledger(store: Store, sweep: Json) -> Ledger:
    metadata = sweep["metadata"]
    folder = layout.sweep_folder(metadata["name"], metadata["uid"])
    return read_ledger(store, f"sweep/{folder}")


def attempts(store: Store, record: PointRecord) -> int:
    return store.read_record(f"sweep/{layout.point_result(record.key)}", PointResult).attempts


def trajectory(store: Store, key: str) -> bytes:
    return store.read(f"sweep/{layout.point_trajectory(key)}")


def undisturbed(store: Store, sweep: Json, key: str, scratch: Path) -> bytes:
    """The trajectory of the same point, trained without interruption in its own store."""
    point = store.read_record(f"sweep/{layout.point_config(key)}", PointConfig)
    elsewhere = f"file://{scratch}/undisturbed"
    task = TrainTask(
        point=point,
        tokens=sweep["spec"]["proxies"][0]["tokens"],
        store_uri=elsewhere,
        data_uri=data_uri(store),
        claimant=Claimant(sweep_uid="undisturbed", attempt=1),
    )
    train(task, scratch, Interruption(), Log(io.StringIO()))
    return Store(elsewhere).read(layout.point_trajectory(key))


def data_uri(store: Store) -> str:
    (key,) = store.names("sweep/data")
    return store.location(f"sweep/{layout.data_folder(key)}")
