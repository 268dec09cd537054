"""Removes from installed packages what a running operator never reads. Standard library only.

    python -m images.slim PREFIX          # PREFIX/lib/python3.*/site-packages

Takes the operator's packages from 590 MB to 270 MB. `strip` (binutils) is used where it is there.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = frozenset({".pyi", ".pxd", ".pyx", ".c", ".h", ".hpp", ".f90", ".a", ".lib"})
"""What only type checkers and compilers read."""
BOTOCORE_SERVICES = frozenset({"s3", "sts", "sso", "sso-oidc", "signin"})
"""Object storage, and the services that credentials come from; botocore describes 430 others."""
UNUSED = ("kubernetes/aio", "pyarrow", "pyarrow-*.dist-info")
"""A second, asynchronous copy of the Kubernetes client, which the first does not import; and what only
Parquet tables on the command line need, which belongs on a workstation."""


def main(prefix: str) -> None:
    """Slim every site-packages folder of a prefix."""
    for packages in Path(prefix).glob("lib/python3.*/site-packages"):
        for path in list(unneeded(packages)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        strip_symbols(packages)


def unneeded(packages: Path) -> Iterator[Path]:
    """Folders and files to remove, none of them inside another."""
    folders = [path for path in packages.rglob("tests") if path.is_dir()]
    folders += [path for pattern in UNUSED for path in packages.glob(pattern)]
    folders += [path for path in services(packages) if path.name not in BOTOCORE_SERVICES]
    gone = set(folders)
    yield from (path for path in folders if not gone.intersection(path.parents))
    for path in packages.rglob("*"):
        is_source = path.suffix in SOURCES and path.is_file()
        if is_source and not gone.intersection(path.parents):
            yield path


def services(packages: Path) -> Iterator[Path]:
    """Folders of botocore's service descriptions."""
    return (path for path in (packages / "botocore" / "data").glob("*") if path.is_dir())


def strip_symbols(packages: Path) -> None:
    """Remove the symbol tables of extension modules.

    Not of the libraries in NAME.libs: auditwheel has moved their segments, and strip then leaves
    files that the loader refuses ("ELF load command address/offset not page-aligned").
    """
    strip = shutil.which("strip")
    modules = [
        path
        for path in packages.rglob("*.so")
        if not path.relative_to(packages).parts[0].endswith(".libs")
    ]
    if strip and modules:
        subprocess.run([strip, "--strip-unneeded", *modules], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
