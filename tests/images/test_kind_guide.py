"""Someone follows the kind guide from its volume on, on a real kubelet: this machine is the node, not a container.

One story in order, as test_install_guide.py. The pods are real: they prepare a corpus on the shared
volume, which is what the guide's groups and modes are for. How points train on such a volume is in
test_on_a_kubelet.py.
"""

from typing import Any

import pytest
import yaml

from demo.corpus import write_jsonl
from demo.tokenizer import train_tokenizer
from isoloss_operator.decide.observation import LABEL_KIND
from tests.images.conftest import RESEARCH, KubeletCluster
from tests.images.reader import reader, reader_environment
from tests.support.cluster import wait_until
from tests.support.operator_process import User
from tests.support.pages import CHECKOUT, blocks
from tests.support.texts import text
from tests.support.walk import Walk

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

PAGE = CHECKOUT / "docs" / "guides" / "kind.md"
DEBUGGING = CHECKOUT / "docs" / "guides" / "debug-the-trainer.md"
EXAMPLE = CHECKOUT / "crds" / "examples" / "demo-sweep.yaml"
CORPUS_CHARACTERS = 300_000
PATIENCE = 600
Json = dict[str, Any]


@pytest.fixture(scope="module")
def walk(cluster: KubeletCluster) -> Walk:
    walk = reader(cluster)
    walk.placeholders = {
        "/var/isoloss": str(cluster.volume),
        # kind loads images into the node under these names; buildah has a host in each of its own.
        "isoloss/operator": "localhost/isoloss/operator",
        "isoloss/trainer": "localhost/isoloss/trainer",
    }
    walk.open(PAGE)
    return walk


def test_the_volume_is_shared_and_the_chart_installed_where_only_restricted_pods_are_admitted(
    walk: Walk,
) -> None:
    walk.step("docker exec isoloss-control-plane install -d")
    assert "successfully rolled out" in walk.step("helm install isoloss helm/isoloss")


def test_a_corpus_that_was_copied_in_is_prepared_on_the_shared_volume(
    walk: Walk, cluster: KubeletCluster, user: User
) -> None:
    texts = text(CORPUS_CHARACTERS).splitlines()
    (walk.folder / "corpus").mkdir()
    write_jsonl(texts, "text", walk.folder / "corpus" / "manual.jsonl")
    train_tokenizer([texts], walk.folder / "tokenizer")
    walk.step("docker cp corpus")
    user.apply_sweep(sweep_of_the_page())
    user.wait_for(lambda: user.sweep("dense"), "DataReady", seconds=PATIENCE)
    (manifest,) = (cluster.volume / "dense" / "data").glob("*/manifest.json")
    assert manifest.stat().st_gid == cluster.volume.stat().st_gid


def test_the_words_of_a_trainers_log_can_be_told_from_its_events(
    cluster: KubeletCluster, user: User
) -> None:
    wait_until(lambda: talking(cluster, user), "a point that trains", PATIENCE)
    walk = Walk(cluster.folder, reader_environment(cluster))
    walk.placeholders = {"NAMESPACE": RESEARCH, "POD": talking(cluster, user)[0]}
    walk.open(DEBUGGING, "kubectl")
    words = walk.step("kubectl -n NAMESPACE logs POD")
    assert walk.left == []
    assert words
    assert "{" not in {line[0] for line in words.splitlines()}


def talking(cluster: KubeletCluster, user: User) -> list[str]:
    """Pods that have told how far they are, in words."""
    training = [pod for pod in user.pods() if pod.metadata.labels[LABEL_KIND] == "train"]
    names = [str(pod.metadata.name) for pod in training if pod.status.phase != "Pending"]
    logs = {name: cluster.kubectl("-n", RESEARCH, "logs", name).stdout for name in names}
    return [name for name, log in logs.items() if " tokens/s" in log]


def sweep_of_the_page() -> Json:
    """The demo's sweep with what the page says about storage, data and pods."""
    (spec,) = (
        yaml.safe_load(each.text)["spec"] for each in blocks(PAGE) if each.language == "yaml"
    )
    sweep: Json = yaml.safe_load(EXAMPLE.read_text())
    data = {**sweep["spec"]["data"], **spec["data"]}
    merged = {**sweep["spec"], **spec, "data": data}
    return {**sweep, "metadata": {"name": "dense", "namespace": RESEARCH}, "spec": merged}


def test_what_is_taken_down_takes_its_jobs_along(
    walk: Walk, cluster: KubeletCluster, user: User
) -> None:
    walk.step("helm uninstall isoloss")
    assert walk.left == []
    assert not [name for name in cluster.names("crds") if name.endswith("isoloss.dev")]
    wait_until(lambda: not user.jobs() and not user.pods(), "Jobs and pods to go", 300)
