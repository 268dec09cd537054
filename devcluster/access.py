"""Kubeconfig files, and an administrator's few calls during start-up without the slow import of the Kubernetes client."""

import json
import ssl
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.files import write_private

NOT_FOUND, CONFLICT = 404, 409
CALL_SECONDS = 10


@dataclass(frozen=True)
class AdminApi:
    """An API server and an administrator's token."""

    url: str
    ca: Path
    token: str

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Make one call and return its JSON, or its bytes if it is not JSON.

        Raises OSError (of which urllib.error.HTTPError and URLError are subclasses) if it fails.
        """
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
            },
        )
        context = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=context) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text

    def answers(self, path: str) -> bool:
        """Whether a GET succeeds."""
        try:
            self.request("GET", path)
        except OSError:
            return False
        return True


def write_kubeconfig(
    path: Path, *, server: str, ca: Path, token: str, namespace: str = "default"
) -> Path:
    """Write a kubeconfig with one cluster, one bearer token and one context, for its owner alone; JSON is valid YAML."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "dev", "cluster": {"server": server, "certificate-authority": str(ca)}}
        ],
        "users": [{"name": "dev", "user": {"token": token}}],
        "contexts": [
            {"name": "dev", "context": {"cluster": "dev", "user": "dev", "namespace": namespace}}
        ],
        "current-context": "dev",
    }
    write_private(path, json.dumps(config, indent=1))
    return path
