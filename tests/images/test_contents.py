"""What is in the built images, and what is not."""

import json
from typing import Any

import pytest

from images.build import Buildah
from tests.images.conftest import TAGS

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(3600)]

MEGABYTE = 10**6
LARGEST = {"operator": 520 * MEGABYTE, "trainer": 7_000 * MEGABYTE}
"""With the base: 494 MB and 6.6 GB when this was written."""
CODE = 6 * MEGABYTE
FACTS = """
import importlib.util, json, os, shutil, sys
packages = ("pip", "setuptools", "ensurepip", "pyarrow", "torch")
ours = ("isoloss", "isoloss_contract", "isoloss_operator", "isoloss_trainer")
commands = ("isoloss", "isoloss-operator", "isoloss-trainer")
print(json.dumps({
    "user": os.getuid(),
    "programs": [name for name in ("pip", "pip3", "gcc", "cc", "strip") if shutil.which(name)],
    "packages": [name for name in packages if importlib.util.find_spec(name)],
    "ours": [name for name in ours if importlib.util.find_spec(name)],
    "commands": [name for name in commands if shutil.which(name)],
    "sbom": json.load(open(sys.prefix + "/share/isoloss/sbom.cdx.json")),
}))
"""
Json = dict[str, Any]


def inspect(buildah: Buildah, tag: str) -> tuple[Json, list[int]]:
    """The image's OCI configuration, and its layers' sizes in bytes, uncompressed, base first."""
    described = json.loads(buildah("inspect", "--type", "image", tag))
    layers = json.loads(described["Manifest"])["layers"]
    return described["OCIv1"]["config"], [layer["size"] for layer in layers]


def facts(buildah: Buildah, tag: str) -> Json:
    """What the image's own Python sees, as the image's own user."""
    container = buildah("from", "--pull-never", tag).strip()
    try:
        printed = buildah("run", "--isolation", "chroot", container, "--", "python", "-c", FACTS)
    finally:
        buildah("rm", container)
    found: Json = json.loads(printed)
    return found


@pytest.mark.parametrize("name", TAGS)
def test_labels_user_and_sizes(name: str, buildah: Buildah, images: dict[str, str]) -> None:
    config, layers = inspect(buildah, TAGS[name])
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    print(name, [round(size / MEGABYTE, 1) for size in layers])
    assert sum(layers) < LARGEST[name]
    assert layers[-1] < CODE, "a change of the code is a small layer"


@pytest.mark.parametrize("name", TAGS)
def test_what_an_intruder_finds(name: str, buildah: Buildah, images: dict[str, str]) -> None:
    found = facts(buildah, TAGS[name])
    assert found["user"] == 65532
    listed = {component["name"] for component in found["sbom"]["components"]}
    if name == "operator":
        assert found["programs"] == []
        assert found["packages"] == []
        assert {"kopf", "kubernetes", "scipy"} <= listed
        assert not {"pyarrow", "torch"} & listed
    else:
        assert "pip" not in found["programs"] + found["packages"]
        assert {"torch", "pyarrow"} <= set(found["packages"])
        assert {"torch", "nvidia-cublas", "transformers"} <= listed


@pytest.mark.parametrize(
    ("name", "ours", "commands"),
    [
        (
            "operator",
            ["isoloss", "isoloss_contract", "isoloss_operator"],
            ["isoloss", "isoloss-operator"],
        ),
        ("trainer", ["isoloss_contract", "isoloss_trainer"], ["isoloss-trainer"]),
    ],
)
def test_neither_image_has_what_only_the_other_runs(
    name: str, ours: list[str], commands: list[str], buildah: Buildah, images: dict[str, str]
) -> None:
    found = facts(buildah, TAGS[name])
    assert found["ours"] == ours
    assert found["commands"] == commands
