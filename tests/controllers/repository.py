"""A Git repository as Flux's source-controller shows it: a GitRepository whose artifact is served here.

source-controller itself cannot be built from the Go module proxy, which refuses a module that it needs. What it
does for kustomize-controller is an archive at an address and its digest in a status.
"""

import hashlib
import io
import tarfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

from kubernetes import client

from tests.support.crds import Json, apply, install
from tests.support.http_server import Answer, serving

GROUP = "source.toolkit.fluxcd.io"
KINDS = {
    "GitRepository": "gitrepositories",
    "OCIRepository": "ocirepositories",
    "Bucket": "buckets",
    "ExternalArtifact": "externalartifacts",
}
"""All that kustomize-controller watches."""


def source_definitions() -> list[Json]:
    """CRDs of source-controller's kinds, of any shape."""
    return [_definition(kind, plural) for kind, plural in KINDS.items()]


def _definition(kind: str, plural: str) -> Json:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


class Repository:
    """Serves the newest commit as an archive on a free port of 127.0.0.1."""

    def __init__(self, api_client: client.ApiClient, namespace: str, name: str) -> None:
        self._api_client = api_client
        self._identity = {"namespace": namespace, "name": name}
        self._archives: dict[str, bytes] = {}
        self._commits = 0
        self._server = ExitStack()
        self._address = self._server.enter_context(serving(self._archive_at))
        install(api_client, source_definitions())
        body = {**self._head(), "spec": {"interval": "1m", "url": "https://git.example.com/x.git"}}
        apply(api_client, KINDS["GitRepository"], body)

    def commit(self, files: Mapping[str, str]) -> str:
        """Make these files the whole content of the repository; the new revision."""
        self._commits += 1
        content = _archive(files)
        digest = hashlib.sha256(content).hexdigest()
        path = f"/{digest}.tar.gz"
        self._archives[path] = content
        revision = f"main@sha1:{self._commits:040x}"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        artifact = {
            "digest": f"sha256:{digest}",
            "lastUpdateTime": now,
            "path": path,
            "revision": revision,
            "size": len(content),
            "url": f"{self._address}{path}",
        }
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Succeeded",
            "message": f"stored artifact for revision '{revision}'",
            "lastTransitionTime": now,
            "observedGeneration": 1,
        }
        status = {"observedGeneration": 1, "artifact": artifact, "conditions": [ready]}
        apply(
            self._api_client,
            KINDS["GitRepository"],
            {**self._head(), "status": status},
            status=True,
        )
        return revision

    def close(self) -> None:
        """Serve nothing more."""
        self._server.close()

    def _head(self) -> Json:
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": "GitRepository",
            "metadata": dict(self._identity),
        }

    def _archive_at(self, request: BaseHTTPRequestHandler) -> Answer:
        content = self._archives.get(request.path)
        return (404, {}, b"") if content is None else (200, {}, content)


def _archive(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
