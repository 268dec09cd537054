"""A controller of another project as a process of its own, with an administrator's rights."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client

from devcluster.build import TOOLS, build
from devcluster.control_plane import ControlPlane
from tests.support.cluster import wait_until

Json = dict[str, Any]
MANAGER = "isoloss-tests"


@dataclass
class Controller:
    """Started at once; everything it writes is in `log`."""

    name: str
    plane: ControlPlane
    folder: Path
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        program = build([self.name])[self.name]
        environment = {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "KUBECONFIG": str(self.plane.admin_kubeconfig),
            **self.environment,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(program), *self.arguments],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def wait_for_line(self, words: str) -> None:
        """Wait until its log has these words; fails with the log's end once it has exited."""

        def is_there() -> bool:
            text = self.log.read_text()
            assert self.process.poll() is None, f"{self.name} ended:\n{text[-4000:]}"
            return words in text

        wait_until(is_there, f"{self.name} to say {words!r}")

    def end(self) -> None:
        """Stop it, and wait."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def manifests_of(name: str, folder: str) -> list[Json]:
    """All objects in a folder of a program's own module."""
    root = TOOLS[name].module_folder() / folder
    return [
        document
        for path in sorted(root.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]


def install(api_client: client.ApiClient, definitions: Sequence[Json]) -> None:
    """Apply CRDs, and wait until their kinds are served."""
    api = client.ApiextensionsV1Api(api_client)
    for crd in definitions:
        api.patch_custom_resource_definition(
            crd["metadata"]["name"],
            crd,
            field_manager=MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
        )
    custom = client.CustomObjectsApi(api_client)
    for crd in definitions:
        spec = crd["spec"]
        # Others would have to be converted, by a controller that is yet to start.
        (stored,) = (each["name"] for each in spec["versions"] if each["storage"])
        place = (spec["group"], stored, spec["names"]["plural"])

        def is_served(place: tuple[str, str, str] = place) -> bool:
            try:
                custom.list_cluster_custom_object(*place, limit=1)
            except client.ApiException:
                return False
            return True

        wait_until(is_served, f"{crd['metadata']['name']} to be served")


def apply(api_client: client.ApiClient, plural: str, body: Json, *, status: bool = False) -> None:
    """Server-side apply of one object of any group, or of its status."""
    group, version = body["apiVersion"].split("/")
    api, metadata = client.CustomObjectsApi(api_client), body["metadata"]
    options: Json = {
        "field_manager": MANAGER,
        "force": True,
        "_content_type": "application/apply-patch+yaml",
    }
    if "namespace" in metadata:
        place = (group, version, metadata["namespace"], plural, metadata["name"], body)
        patch = (
            api.patch_namespaced_custom_object_status
            if status
            else api.patch_namespaced_custom_object
        )
        patch(*place, **options)
    else:
        api.patch_cluster_custom_object(group, version, plural, metadata["name"], body, **options)
