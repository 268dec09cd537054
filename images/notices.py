"""The licences of everything that an image installs, as one text, from its lock and the installed packages.

    python -m images.notices NAME LOCK PREFIX... > THIRD-PARTY-NOTICES.txt

Asks no network. A package without a licence file of its own is listed with what it states; torch and its CUDA
packages are of another layer, where each keeps its licence in its .dist-info folder.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment

from images.lock import Pin, read_lock
from images.sbom import installed_licences

LICENCE_NAMES = ("licen", "copying", "notice", "authors")
RULE = "=" * 100


@dataclass(frozen=True)
class Notice:
    """What a package says of its licence."""

    stated: str
    """The SPDX expression, or what the package calls it; empty: nothing."""
    texts: tuple[str, ...]
    """Its licence files."""


def notices(name: str, lock: str, environment: dict[str, str], found: Mapping[str, Notice]) -> str:
    """The document for an image called `name`; `found` by normalised package name."""
    pins = [pin for pin in read_lock(lock) if pin.applies(environment)]
    parts = [f"{name} is under the Apache License 2.0. It contains the following packages.\n"]
    for pin in pins:
        if pin.name in found or pin.belongs_to_torch:
            parts.extend(_section(pin, found.get(pin.name, Notice("", ()))))
    return "\n".join(parts)


def _section(pin: Pin, notice: Notice) -> Iterator[str]:
    yield f"{RULE}\n{pin.name} {pin.version}\n{notice.stated or 'see its .dist-info folder'}\n"
    for text in dict.fromkeys(notice.texts):
        yield f"{text.strip()}\n"


def installed_notices(prefixes: Sequence[str]) -> dict[str, Notice]:
    """By normalised package name, of what is below PREFIX/lib/python3.*/site-packages."""
    stated = installed_licences(prefixes)
    folders = [str(path) for each in prefixes for path in Path(each).glob("lib/*/site-packages")]
    found = {}
    for package in metadata.distributions(path=folders):
        name = str(package.metadata["Name"]).lower().replace("_", "-").replace(".", "-")
        found[name] = Notice(stated.get(name, ""), tuple(_licence_texts(package)))
    return found


def _licence_texts(package: metadata.Distribution) -> Iterator[str]:
    for file in package.files or ():
        is_own = any(part.endswith(".dist-info") for part in file.parts[:-1])
        if is_own and file.name.lower().startswith(LICENCE_NAMES):
            path = Path(str(file.locate()))
            if path.is_file():
                yield path.read_text(errors="replace")


def main(name: str, lock: str, *prefixes: str) -> None:
    """Print the document."""
    environment = {key: str(value) for key, value in default_environment().items()}
    print(notices(name, Path(lock).read_text(), environment, installed_notices(prefixes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
