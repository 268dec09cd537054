"""kubectl as a user would call it, with the cluster's kubeconfig."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

CALL_SECONDS = 60
APPLY = ("apply", "--server-side", "--force-conflicts", "--field-manager=isoloss-demo", "-f")


class KubectlError(RuntimeError):
    """kubectl failed; the message is kubectl's."""


class Kubectl:
    """Runs kubectl against one cluster."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._program = program
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{program.parent}:{os.environ.get('PATH', '')}",
        }
        """For programs that call kubectl themselves."""

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of one call. Raises KubectlError with standard error."""
        done = subprocess.run(
            [str(self._program), *arguments],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *documents: Any) -> None:
        """Apply manifests server-side."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.run(*APPLY, "-", stdin=json.dumps(items))

    def apply_file(self, path: Path) -> None:
        """Apply a file or a folder's files server-side."""
        self.run(*APPLY, str(path))

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """One object; {} if it does not exist."""
        text = self.run("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "json")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found
