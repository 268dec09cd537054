"""The settings of a process node."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

READY_FILE = "ready"
"""Created in the node's folder once the node is registered."""


@dataclass(frozen=True)
class NodeSettings:
    """One node; written by ProcessNode, read by its agent."""

    name: str
    kubeconfig: str
    capacity: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Environment of every process, in addition to PATH, HOME and LANG."""
    path: str = ""
    """PATH of every process."""
    entrypoint: tuple[str, ...] = ()
    """Used instead of the image's entry point where a container names no command."""
    certificate: str = ""
    key: str = ""
    heartbeat_seconds: float = 2
    retry_seconds: float = 0.5
    """Delay between checks for a missing Secret or ConfigMap."""
    restart_seconds: float = 10
    """Initial delay before a container is restarted; doubles up to 300, as in a kubelet."""
    shutdown_seconds: float = 5
    """Maximum grace period of pods when the node is shut down."""

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> NodeSettings:
        """Read what `save` wrote."""
        values = json.loads(path.read_text())
        return cls(**{**values, "entrypoint": tuple(values["entrypoint"])})
