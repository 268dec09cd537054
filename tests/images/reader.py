"""What a reader of the guides has at hand: a copy of the checkout, a few programs, a bucket, a login."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster.build import tool_path
from devcluster.container_node.network import GATEWAY
from devcluster.object_storage import ObjectStorage
from images.build import ROOT
from tests.images.conftest import KubeletCluster
from tests.images.docker_stand_in import CLUSTER
from tests.support.walk import Walk

# -P: the reader is in a copy of the checkout, whose modules are not meant.
STAND_IN = """\
#!/bin/sh
PYTHONPATH={root} exec {python} -P -m tests.images.docker_stand_in "$@"
"""


def reader(cluster: KubeletCluster) -> Walk:
    """Someone with the rights of an administrator, in a copy of the checkout."""
    checkout = cluster.folder / "checkout"
    copy_checkout(checkout)
    install_programs(cluster.folder / "programs")
    return Walk(checkout, reader_environment(cluster))


def reader_environment(cluster: KubeletCluster) -> dict[str, str]:
    """The reader's programs and login, and nothing that the tests themselves run with."""
    ours = {"PYTHONPATH", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST"}
    own = {name: value for name, value in os.environ.items() if name not in ours}
    folder = str(cluster.folder / "helm")
    return {
        **own,
        "PATH": f"{cluster.folder / 'programs'}:{os.defpath}:/usr/sbin:/sbin",
        "KUBECONFIG": str(cluster.plane.admin_kubeconfig),
        "KUBECACHEDIR": str(cluster.folder / "kubectl"),
        **{f"HELM_{kind}_HOME": folder for kind in ("CACHE", "CONFIG", "DATA")},
        "COLUMNS": "100",  # a terminal's width, in which tables are not wrapped
        CLUSTER: str(cluster.folder),
    }


def copy_checkout(target: Path) -> None:
    """Every file that git knows or would add, with its times: layers of equal files are equal."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run([*command, "-z"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def install_programs(folder: Path) -> None:
    """kubectl, helm, a Python without our packages, and a docker."""
    folder.mkdir()
    for name in ("kubectl", "helm"):
        (folder / name).symlink_to(tool_path(name))
    python = (
        Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    )
    (folder / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (folder / "docker").write_text(STAND_IN.format(root=ROOT, python=sys.executable))
    for name in ("python3", "docker"):
        (folder / name).chmod(0o755)


@contextmanager
def bucket_server(cluster: KubeletCluster, *buckets: str) -> Iterator[ObjectStorage]:
    """An S3 server that pods reach, with these buckets."""
    storage = ObjectStorage(cluster.folder / "s3", GATEWAY)
    storage.start()
    try:
        for bucket in buckets:
            storage.create_bucket(bucket)
        yield storage
    finally:
        storage.stop()
