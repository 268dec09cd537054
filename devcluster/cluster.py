"""Control plane, S3 server and process nodes of one folder, started and stopped together."""

import os
import select
import shutil
import stat
import sys
from pathlib import Path

from devcluster import build
from devcluster.control_plane import ControlPlane
from devcluster.daemon import Daemon, live_pid, save_identity
from devcluster.kubelet.settings import NodeOptions
from devcluster.object_storage import ObjectStorage
from devcluster.process_node import ProcessNode, python_path

NODE = "process-node"
OWNER_FILE = "owner.json"
"""Identifies the process whose end stops the cluster and removes the folder."""


class DevCluster:
    """Everything under one folder: `control-plane`, `s3`, `nodes/NAME`."""

    def __init__(self, directory: Path) -> None:
        """Nothing is started yet."""
        self.directory = Path(directory).absolute()
        self.control_plane = ControlPlane(self.directory / "control-plane")
        self.object_storage = ObjectStorage(self.directory / "s3")

    def start(self, report: build.Report = build.print_line) -> None:
        """Build and start control plane and S3 server, unless they are running."""
        build.build(build.DEFAULT, report)
        self.control_plane.start(report)
        self.object_storage.start()

    def node(self, name: str = NODE, options: NodeOptions | None = None) -> ProcessNode:
        """A node of this cluster, not started yet."""
        return ProcessNode(self.control_plane, self.directory / "nodes" / name, name, options)

    def stop(self) -> None:
        """Stop everything: nodes first, so that they can still report their pods' status."""
        if self._reaper.pid() != os.getpid():
            self._reaper.stop()
        for node in self._nodes():
            node.stop()
        self.control_plane.stop()
        self.object_storage.stop()

    def status(self) -> dict[str, int | None]:
        """Pid of each component, None if it is stopped."""
        daemons = [self.control_plane.component(name) for name in build.CONTROL_PLANE]
        daemons.append(self.object_storage.daemon)
        states = {daemon.name: daemon.pid() for daemon in daemons}
        return states | {f"node {node.name}": node.agent.pid() for node in self._nodes()}

    @property
    def has_started(self) -> bool:
        """Whether it was ever started, so that there are credentials."""
        return self.control_plane.admin_kubeconfig.exists() and self.object_storage.has_started

    def environment(self, report: build.Report = build.print_line) -> dict[str, str]:
        """Environment for kubectl and S3 clients."""
        paths = {"KUBECONFIG": str(self.control_plane.admin_kubeconfig)}
        paths["KUBECTL"] = str(build.kubectl_path(report))
        return paths | self.object_storage.environment()

    def stop_with(self, owner: int, *, remove: bool = False) -> None:
        """Stop everything, and remove the folder if asked, when a process ends."""
        if remove:
            save_identity(self.directory / OWNER_FILE, owner)
        command = [sys.executable, "-m", "devcluster", "reap", "--owner", str(owner)]
        command += [*(["--remove"] if remove else []), str(self.directory)]
        environment = {"PATH": os.defpath, "PYTHONPATH": python_path()}
        self._reaper.start(command, environment)

    def is_abandoned(self) -> bool:
        """Whether its owner has ended and no reaper is left to remove it."""
        try:
            found = self.directory.lstat()
        except FileNotFoundError:
            return False
        # A folder made by another user could name any process for us to kill.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        owner = self.directory / OWNER_FILE
        return owner.exists() and live_pid(owner) is None and self._reaper.pid() is None

    @property
    def _reaper(self) -> Daemon:
        return Daemon("reaper", self.directory)

    def _nodes(self) -> list[ProcessNode]:
        return [self.node(folder.name) for folder in sorted((self.directory / "nodes").glob("*"))]


def remove_abandoned(parent: Path, prefix: str) -> list[Path]:
    """Stop and remove the clusters below `parent` whose owner and reaper have both ended.

    That happens when everything is killed at once. Folders of other users, without an owner
    (`stop_with`), or whose owner or reaper is running are left alone. Returns what was removed.
    """
    removed = []
    for folder in sorted(parent.glob(f"{prefix}*")):
        cluster = DevCluster(folder)
        if cluster.is_abandoned():
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def reap(owner: int, directory: Path, *, remove: bool) -> None:
    """Wait for a process to end, then stop the cluster of a folder."""
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        pass
    else:
        select.select([descriptor], [], [])
        os.close(descriptor)
    DevCluster(directory).stop()
    if remove:
        shutil.rmtree(directory, ignore_errors=True)
