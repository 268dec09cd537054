"""A node that runs pods in containers, seen from the program that starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from devcluster.build import Report, print_line, tool_path
from devcluster.container_node.configuration import containerd_configuration, kubelet_configuration
from devcluster.container_node.leftovers import remove_cgroups
from devcluster.container_node.network import (
    API_SERVICE,
    GATEWAY,
    create_bridge,
    delete_bridge,
    write_cni_configuration,
)
from devcluster.control_plane import ControlPlane
from devcluster.daemon import Daemon

PROJECT = Path(__file__).parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_SECONDS = 180
STOP_SECONDS = 60


class ContainerNode:
    """kubelet and containerd, in namespaces of their own; one per machine, as they share a bridge.

    State is in `directory`, whose path must be short (Unix sockets take 107 bytes). Images are in
    `images`, which outlives the node.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        directory: Path,
        images: Path,
        name: str = "container-node",
    ) -> None:
        """Nothing is started yet."""
        self.name = name
        self.directory = Path(directory).absolute()
        self.socket = self.directory / "containerd.sock"
        self.daemon = Daemon("container-node", self.directory)
        self._control_plane = control_plane
        self._images = Path(images).absolute()

    def start(self, report: Report = print_line) -> None:
        """Start it, or keep it running; returns once containerd answers and the node is Ready."""
        kubelet = tool_path("kubelet")
        self._write_configuration(kubelet)
        create_bridge()
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command += [sys.executable, "-m", "devcluster.container_node.init", str(self.directory)]
        environment = {"PATH": PATH, "PYTHONPATH": str(PROJECT), "HOME": str(self.directory)}
        self.daemon.start(command, environment)
        self.daemon.wait_until(self._containerd_answers, START_SECONDS)
        report(f"{self.name}: containerd answers")

    def wait_until_ready(self) -> None:
        """Return once the node is Ready (it is not before its pause image is imported)."""
        ready = partial(self._control_plane.node_is_ready, self.name)
        self.daemon.wait_until(ready, START_SECONDS)

    def import_image(self, archive: Path) -> None:
        """Import an image archive, as `buildah push docker-archive:` writes it."""
        self.ctr("images", "import", str(archive))

    def image_names(self) -> list[str]:
        """Names of the images that pods can use."""
        return self.ctr("images", "list", "--quiet").split()

    def ctr(self, *arguments: str) -> str:
        """Output of containerd's own client. Raises CalledProcessError."""
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def stop(self) -> None:
        """Stop it and its pods, and take away what is not in its folder; images stay."""
        # unshare passes no signal on to the first process of the namespace, so ask that one.
        for pid in self._children():
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self.daemon.pid() is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        self.daemon.kill()
        delete_bridge()
        remove_cgroups()

    def _children(self) -> list[int]:
        pid = self.daemon.pid()
        if pid is None:
            return []
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _write_configuration(self, kubelet: Path) -> None:
        folder, keys = self.directory, self._control_plane.keys
        cni = folder / "cni"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        write_cni_configuration(cni)
        containerd = folder / "containerd.toml"
        containerd.write_text(
            containerd_configuration(folder, images=self._images, socket=self.socket, cni=cni)
        )
        settings = kubelet_configuration(
            folder, socket=self.socket, key=keys.key, certificate=keys.certificate
        )
        (folder / "kubelet.json").write_text(json.dumps(settings, indent=1))
        api = urlsplit(self._control_plane.url)
        forwarder = [sys.executable, "-m", "devcluster.container_node.forwarder"]
        commands = [
            {
                "name": "containerd",
                "command": ["containerd", "--config", str(containerd)],
                "socket": str(self.socket),
            },
            {
                "name": "forwarder",
                "command": [*forwarder, API_SERVICE, "443", str(api.hostname), str(api.port)],
            },
            {"name": "kubelet", "command": [str(kubelet), *self._kubelet_flags()]},
        ]
        (folder / "commands.json").write_text(json.dumps(commands, indent=1))

    def _kubelet_flags(self) -> list[str]:
        return [
            f"--config={self.directory / 'kubelet.json'}",
            f"--kubeconfig={self._control_plane.node_kubeconfig}",
            f"--root-dir={self.directory / 'kubelet'}",
            f"--cert-dir={self.directory / 'kubelet-pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={GATEWAY}",
        ]

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except subprocess.CalledProcessError:
            return False
        return True
