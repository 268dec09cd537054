"""kubeconform with the schemas of one Kubernetes version."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

from devcluster.build import tool_path


def kubeconform(schemas: str, manifests: str) -> subprocess.CompletedProcess[str]:
    """Validate manifests; a kind without a schema is a fault."""
    command = [str(tool_path("kubeconform")), "-strict", "-summary", "-schema-location", schemas]
    return subprocess.run(command, input=manifests, capture_output=True, text=True, check=False)


def write_schemas(definitions: dict[str, Any], folder: Path) -> str:
    """One JSON Schema per kind, from an API server's OpenAPI v2 definitions; returns their location."""
    folder.mkdir()
    definitions = copy.deepcopy(definitions)
    for definition in definitions.values():
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {
        "type": ["integer", "string"]
    }
    (folder / "all.json").write_text(json.dumps({"definitions": definitions}))
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            # kubeconform takes v1 for the core group's name.
            version = f"{kind['group'] or kind['version']}_{kind['version']}".lower()
            file = folder / f"{kind['kind'].lower()}-{version}.json"
            file.write_text(json.dumps({"$ref": f"all.json#/definitions/{name}"}))
    return f"{folder}/{{{{.ResourceKind}}}}-{{{{.Group}}}}_{{{{.ResourceAPIVersion}}}}.json"
