"""Kubeconfig files, written as JSON, which is valid YAML."""

from __future__ import annotations

import json
from pathlib import Path

from devcluster.private_file import write_private


def write_kubeconfig(
    path: Path, *, server: str, ca: Path, token: str, namespace: str = "default"
) -> Path:
    """Write a kubeconfig with one cluster, one bearer token and one context, for its owner alone."""
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
