"""kubeconform with the schemas of one Kubernetes version."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from devcluster.build import tool_path

REFERENCE = re.compile(r'"#/definitions/([^"]+)"')


class Kubeconform:
    """Validates manifests by an API server's OpenAPI v2 definitions; a kind without a schema is a fault."""

    def __init__(self, definitions: Mapping[str, Any], folder: Path) -> None:
        self._definitions = dict(definitions)
        self._folder = folder
        integer_or_text = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
        self._definitions[integer_or_text] = {"type": ["integer", "string"]}
        folder.mkdir()

    def __call__(self, *manifests: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        self._write_schemas({each["kind"] for each in manifests})
        place = (
            f"{self._folder}/{{{{.ResourceKind}}}}-{{{{.Group}}}}_{{{{.ResourceAPIVersion}}}}.json"
        )
        command = [str(tool_path("kubeconform")), "-strict", "-summary", "-schema-location", place]
        text = "\n---\n".join(map(json.dumps, manifests))
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def _write_schemas(self, kinds: set[str]) -> None:
        """One JSON Schema for each version of these kinds, with what it refers to and no more."""
        for name, definition in self._definitions.items():
            for kind in definition.get("x-kubernetes-group-version-kind", []):
                # kubeconform takes v1 for the core group's name.
                version = f"{kind['group'] or kind['version']}_{kind['version']}".lower()
                file = self._folder / f"{kind['kind'].lower()}-{version}.json"
                if kind["kind"] in kinds and not file.exists():
                    schema = {
                        "$ref": f"#/definitions/{name}",
                        "definitions": dict(self._reached(name)),
                    }
                    file.write_text(json.dumps(schema))

    def _reached(self, name: str) -> Iterator[tuple[str, Any]]:
        """The definition and those that it refers to, with unknown fields forbidden."""
        waiting, seen = [name], {name}
        while waiting:
            name = waiting.pop()
            definition = self._definitions[name]
            if "properties" in definition:
                definition = {"additionalProperties": False, **definition}
            yield name, definition
            found = set(REFERENCE.findall(json.dumps(definition))) - seen
            seen |= found
            waiting += found
