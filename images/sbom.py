"""A CycloneDX 1.6 bill of materials of one image, from its lock file and the licences installed.

    python -m images.sbom NAME VERSION LOCK [PREFIX...] > sbom.cdx.json

Asks no network. PREFIX/lib/python3.*/site-packages is where the licences of the packages are read, and a
package that is not there is left out (but for torch's, whose layer is built elsewhere).
Packages of the base image's distribution are not in it: they are the base's own business.
Runs on the image's own Python and platform, which decide which of the lock's markers hold.
"""

import hashlib
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.markers import default_environment

from images.lock import Pin, read_lock

NAMESPACE = uuid.UUID("6d3c1f6e-8f0e-5d0e-9a51-7c0f2b6a9d10")
"""Of serial numbers: the same lock gives the same document."""


def bill_of_materials(
    name: str,
    version: str,
    lock: str,
    environment: dict[str, str],
    licences: Mapping[str, str],
) -> dict[str, Any]:
    """The document for an image called `name`.

    `licences` by normalised name, "" for an unknown one, are of the packages that are installed.
    """
    pins = [
        pin
        for pin in read_lock(lock)
        if pin.applies(environment) and (pin.belongs_to_torch or pin.name in licences)
    ]
    reference = f"pkg:oci/{name}@{version}"
    digest = hashlib.sha256(f"{reference}\n{lock}".encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": reference,
                "name": name,
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [component(pin, licences.get(pin.name, "")) for pin in pins],
        "dependencies": [{"ref": reference, "dependsOn": [package_url(pin) for pin in pins]}],
    }


def component(pin: Pin, licence: str) -> dict[str, Any]:
    """One package. A pin's hashes are those of all its distributions, of which one is installed."""
    described: dict[str, Any] = {
        "type": "library",
        "bom-ref": package_url(pin),
        "name": pin.name,
        "version": pin.version,
        "purl": package_url(pin),
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{pin.name}/{pin.version}/",
                "hashes": [{"alg": "SHA-256", "content": value} for value in pin.hashes],
            }
        ],
    }
    if licence:
        described["licenses"] = [{"license": {"name": licence}}]
    return described


def package_url(pin: Pin) -> str:
    """The package as a purl."""
    return f"pkg:pypi/{pin.name}@{pin.version}"


def installed_licences(prefixes: Sequence[str]) -> dict[str, str]:
    """Licence by normalised package name: the SPDX expression, else what the package calls it."""
    folders = [str(path) for each in prefixes for path in Path(each).glob("lib/*/site-packages")]
    found = {}
    for package in metadata.distributions(path=folders):
        fields: dict[str, Any] = dict(package.metadata.json)
        # Old packages put the licence's whole text into License.
        text = str(fields.get("license_expression") or fields.get("license") or "").strip()
        name = str(fields["name"]).lower().replace("_", "-").replace(".", "-")
        classifiers = [c for c in fields.get("classifier", ()) if c.startswith("License ::")]
        stated = text if "\n" not in text and len(text) < 200 else ""
        found[name] = stated or " AND ".join(c.rpartition(" :: ")[2] for c in classifiers)
    return found


def main(name: str, version: str, lock: str, *prefixes: str) -> None:
    """Print the document."""
    environment = {key: str(value) for key, value in default_environment().items()}
    text = Path(lock).read_text()
    document = bill_of_materials(name, version, text, environment, installed_licences(prefixes))
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
