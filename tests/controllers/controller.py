"""A controller of another project as a process of its own, with an administrator's rights."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from devcluster.build import TOOLS, build
from devcluster.control_plane import ControlPlane
from tests.support.cluster import wait_until

Json = dict[str, Any]


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
