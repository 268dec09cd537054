"""The images, built once, and a control plane with a node that runs them.

Everything lies in .images/ of the checkout (or ISOLOSS_IMAGES_FOLDER), kept between runs: buildah's storage,
containerd's, and the archives between them.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from devcluster.build import build
from devcluster.container_node.configuration import PAUSE_IMAGE
from devcluster.container_node.leftovers import traces
from devcluster.container_node.node import ContainerNode
from devcluster.container_node.requirements import (
    GIBIBYTE,
    IMAGE_PACKAGES,
    missing_for_node,
    missing_programs,
)
from devcluster.control_plane import ControlPlane
from devcluster.files import exclusive
from images.build import LOCAL_BASE, ROOT, Buildah, build_images, local_base
from tests.support.cluster import Kubectl
from tests.support.operator_process import User

ENABLED = "ISOLOSS_TEST_IMAGES"
PREFIX = "isoloss-node-"
FOLDER = Path(os.environ.get("ISOLOSS_IMAGES_FOLDER", ROOT / ".images"))
TAGS = {name: f"localhost/isoloss/{name}:0.1.0" for name in ("operator", "trainer")}
BUILD_ARGUMENTS = {"BASE": LOCAL_BASE, "COMPILER": ""}
"""Nothing is compiled on a CPU; without gcc the trainer's image is 200 MB smaller."""
COLD_DISK, WARM_DISK = 40 * GIBIBYTE, 8 * GIBIBYTE
MEMORY = 5 * GIBIBYTE
TOOLS = (
    "helm",
    "kubectl",
    "kubelet",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "versitygw",
)


def disk_needed() -> int:
    """What a first run takes, less what an earlier one left; bytes."""
    return max(WARM_DISK, COLD_DISK - disk_used(FOLDER))


def disk_used(folder: Path) -> int:
    """Bytes on disk of all files below a folder, in which a build may be at work."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(map(_disk_of, paths))


def _disk_of(path: Path) -> int:
    try:
        return 512 * path.lstat().st_blocks
    except FileNotFoundError:
        return 0  # a step of the build has ended and taken its scratch files away


@pytest.fixture(scope="session")
def buildah() -> Buildah:
    """buildah, where this machine can run these tests and was asked to."""
    if not os.environ.get(ENABLED):
        pytest.skip("builds gigabytes of images and starts a kubelet: make test-images")
    missing = [
        *missing_for_node(FOLDER, memory=MEMORY, disk=disk_needed()),
        *missing_programs(IMAGE_PACKAGES),
    ]
    if missing:
        pytest.skip(f"make test-images cannot run here: {'; '.join(missing)}")
    FOLDER.mkdir(exist_ok=True)
    build(TOOLS)
    return Buildah(FOLDER)


@pytest.fixture(scope="session")
def images(buildah: Buildah) -> dict[str, str]:
    """Both images and the pause image, built; image ID by tag."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        base = local_base(buildah, Path(scratch))
    build_images(buildah, list(TAGS), "localhost/isoloss/{name}:0.1.0", BUILD_ARGUMENTS)
    build_pause_image(buildah, base)
    return {tag: buildah.identity(tag) for tag in (PAUSE_IMAGE, *TAGS.values())}


def build_pause_image(buildah: Buildah, base: str) -> None:
    """What holds a pod's namespaces while its containers come and go."""
    if not buildah.identity(PAUSE_IMAGE):
        container = buildah("from", base).strip()
        buildah("config", "--entrypoint", '["/usr/bin/sleep", "infinity"]', container)
        buildah("commit", "--quiet", "--rm", container, PAUSE_IMAGE)


@dataclass(frozen=True)
class KubeletCluster:
    """A control plane with one container node and a volume that all pods may share."""

    plane: ControlPlane
    node: ContainerNode
    kubectl: Kubectl
    api: client.ApiClient
    folder: Path

    @property
    def volume(self) -> Path:
        """The folder behind the pods' volumes."""
        return self.folder / "volume"

    def apply(self, *manifests: dict[str, Any]) -> None:
        """kubectl apply."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        answer = self.kubectl("apply", "-f", "-", stdin=text)
        assert answer.returncode == 0, answer.stderr

    def names(self, *arguments: str) -> set[str]:
        """Names of objects, as `kubectl get ... -o name` prints them."""
        answer = self.kubectl("get", *arguments, "-o", "name")
        assert answer.returncode == 0, answer.stderr
        return set(answer.stdout.split())


RESEARCH = "research"
"""The users' namespace."""


@pytest.fixture
def user(cluster: KubeletCluster) -> User:
    return User(cluster.api, RESEARCH)


@pytest.fixture(scope="module")
def cluster(images: dict[str, str], buildah: Buildah) -> Iterator[KubeletCluster]:
    with running_cluster(images, buildah) as cluster:
        yield cluster


@contextmanager
def running_cluster(images: dict[str, str], buildah: Buildah) -> Iterator[KubeletCluster]:
    """A cluster of its own whose node has the images; it must leave nothing behind."""
    with exclusive(FOLDER / "node.lock"):
        stop_abandoned()
        before = traces()
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        plane, node = ControlPlane(folder / "plane"), node_of(folder)
        try:
            plane.start()
            node.start()
            import_images(node, buildah, images)
            node.wait_until_ready()
            (folder / "volume").mkdir()
            yield KubeletCluster(plane, node, Kubectl(plane), plane.api_client(), folder)
        finally:
            stop(folder)
        assert traces() - before == set()


def node_of(folder: Path) -> ContainerNode:
    """The node of a cluster's folder, whoever has started it."""
    plane = ControlPlane(folder / "plane")
    return ContainerNode(plane, folder / "node", FOLDER / "containerd")


def stop(folder: Path) -> None:
    """Stop the node and the control plane of a folder, and remove it."""
    node_of(folder).stop()
    ControlPlane(folder / "plane").stop()
    shutil.rmtree(folder, ignore_errors=True)


def stop_abandoned() -> None:
    """What a session that was killed has left running: the lock says that nobody else has a node."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if folder.stat().st_uid == os.getuid():
            stop(folder)


def import_images(node: ContainerNode, buildah: Buildah, images: dict[str, str]) -> None:
    """Have containerd know the images as they were built; what it has already takes no time."""
    record = FOLDER / "imported.json"
    imported = json.loads(record.read_text()) if record.exists() else {}
    known = set(node.image_names())
    for tag, identity in images.items():
        if tag not in known or imported.get(tag) != identity:
            archive = FOLDER / "image.tar"
            buildah.export(tag, archive)
            node.import_image(archive)
            archive.unlink()
    record.write_text(json.dumps(imported | images))
