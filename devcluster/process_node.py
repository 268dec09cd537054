"""A node that runs pods as local processes, seen from the program that starts it."""

import os
import sys
from pathlib import Path

from devcluster.control_plane import ControlPlane
from devcluster.daemon import Daemon
from devcluster.kubelet.container import kill_runs
from devcluster.kubelet.settings import READY_FILE, NodeOptions, NodeSettings

START_SECONDS = 60
STOP_SECONDS = 20
PROJECT = Path(__file__).parents[1]


class ProcessNode:
    """A test double of a kubelet, in its own process: containers are local processes.

    No images, isolation or limits; README.md lists what it does and does not do.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        directory: Path,
        name: str = "process-node",
        options: NodeOptions | None = None,
    ) -> None:
        """Nothing is started yet."""
        self.name = name
        self.directory = Path(directory).absolute()
        self._control_plane = control_plane
        self._options = options or NodeOptions()
        self.agent = Daemon("agent", self.directory)

    def start(self) -> None:
        """Start the agent, or keep it running; returns when the node is registered.

        It adopts processes that an earlier agent left running.
        """
        if self.agent.pid() is not None:
            return
        self._settings().save(self.directory / "settings.json")
        ready = self.directory / READY_FILE
        ready.unlink(missing_ok=True)
        environment = {"PATH": os.defpath, "PYTHONPATH": python_path(), "LANG": "C.UTF-8"}
        command = [sys.executable, "-m", "devcluster", "node", str(self.directory)]
        self.agent.start(command, environment)
        self.agent.wait_until(ready.exists, START_SECONDS)

    def stop(self) -> None:
        """Shut the node down: its pods are terminated and reported as disrupted, not failed."""
        self.agent.stop(STOP_SECONDS)
        self._kill_processes()

    def remove(self) -> None:
        """Stop, and delete the Node object, as if the machine had been removed."""
        self.stop()
        self._control_plane.delete_node(self.name)

    def kill_agent(self) -> None:
        """SIGKILL only the agent; the pods' processes keep running."""
        self.agent.kill()

    def crash(self) -> None:
        """Kill agent and processes at once, as in a power cut: nothing is reported."""
        self.agent.kill()
        self._kill_processes()

    def is_running(self) -> bool:
        """Whether the agent is running."""
        return self.agent.pid() is not None

    def _kill_processes(self) -> None:
        for pod in (self.directory / "pods").glob("*"):
            kill_runs(pod)

    def _settings(self) -> NodeSettings:
        keys = self._control_plane.keys
        return NodeSettings(
            name=self.name,
            kubeconfig=str(self._control_plane.node_kubeconfig),
            certificate=str(keys.certificate),
            key=str(keys.key),
            options=self._options,
        )


def python_path() -> str:
    """PYTHONPATH that makes this package importable from any folder."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(PROJECT), *([inherited] if inherited else [])])
