"""kubectl against a development control plane."""

import os
import subprocess

from devcluster.build import kubectl_path
from devcluster.control_plane import ControlPlane


class Kubectl:
    """Runs kubectl as administrator."""

    def __init__(self, plane: ControlPlane) -> None:
        self._environment = {"KUBECONFIG": str(plane.admin_kubeconfig), "PATH": os.defpath}
        self._environment["HOME"] = str(plane.directory)  # its discovery cache, off the user's

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(kubectl_path()), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self._environment,
        )
