"""The OpenAPI documents of other Kubernetes versions, to hold manifests against without running these versions.

They are files of the Go module k8s.io/kubernetes, which Go downloads once and verifies.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from devcluster.build import TOOLS, print_line
from devcluster.toolchain import download

MODULE = "k8s.io/kubernetes"
SUMS = {
    "v1.31.0": "h1:sYAB12TTWexXKp4RxqJMm/7EC+P0mNOgn4Xdj5eu7HM=",
    "v1.34.0": "h1:NvUrwPAVB4W3mSOpJ/RtNGHWWYyUP/xPaX5rUSpzA0w=",
}
"""By version, as in a go.sum."""
NEWEST = TOOLS["kube-apiserver"].version
"""That of the development control plane, whose sum is in its own go.sum."""


def openapi_definitions(version: str) -> dict[str, Any]:
    """Schemas by definition name. Raises RuntimeError where the module cannot be had or differs from its sum."""
    with tempfile.TemporaryDirectory() as empty:  # outside of any module
        answer = download(f"{MODULE}@{version}", Path(empty), print_line)
    if version != NEWEST and answer["Sum"] != SUMS[version]:
        message = f"{MODULE}@{version} has the sum {answer['Sum']}, not {SUMS[version]}"
        raise RuntimeError(message)
    document = Path(answer["Dir"], "api", "openapi-spec", "swagger.json")
    definitions: dict[str, Any] = json.loads(document.read_text())["definitions"]
    return definitions
