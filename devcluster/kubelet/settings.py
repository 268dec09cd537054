"""The settings of a process node."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

READY_FILE = "ready"
"""Created in the node's folder once the node is registered."""
PODS = "2000"


@dataclass(frozen=True)
class NodeOptions:
    """What a node offers to the scheduler and passes to its processes."""

    cpu: str = field(default_factory=lambda: str(os.cpu_count()))
    """Allocatable CPUs, as a quantity; by default as many as the machine has."""
    memory: str = "16Gi"
    """Allocatable memory; not enforced."""
    gpus: int = 0
    """Allocatable `nvidia.com/gpu`; no device needs to exist."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The Node's labels."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment of every process, in addition to PATH, HOME and LANG."""
    path: str = f"{Path(sys.executable).parent}:/usr/local/bin:{os.defpath}"
    """PATH of every process: by default this Python's folder followed by the system's."""

    @property
    def capacity(self) -> dict[str, str]:
        """Allocatable resources."""
        room = {"cpu": self.cpu, "memory": self.memory, "pods": PODS}
        return room | {"nvidia.com/gpu": str(self.gpus)}


@dataclass(frozen=True)
class NodeSettings:
    """One node; written by ProcessNode, read by its agent."""

    name: str
    kubeconfig: str
    certificate: str
    key: str
    options: NodeOptions

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> NodeSettings:
        """Read what `save` wrote."""
        values = json.loads(path.read_text())
        return cls(**{**values, "options": NodeOptions(**values["options"])})
