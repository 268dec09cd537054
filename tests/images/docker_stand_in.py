"""`docker` of a reader whose machine has buildah instead, and is itself the one node of the cluster.

Arguments that a machine without a registry needs are added to a build: a base made here, and what the
fixture of the images gives, so that equal layers are built once. What is pushed is imported by the node.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from images.build import Buildah, revision
from tests.images.conftest import BUILD_ARGUMENTS, FOLDER, import_images, node_of

CLUSTER = "ISOLOSS_WALK_CLUSTER"
"""Environment variable with the folder of the cluster."""


def main(arguments: Sequence[str]) -> int:
    """Do what docker would; its exit status."""
    buildah = Buildah(FOLDER)
    match arguments:
        case ["build", *options, context]:
            settings = {"REVISION": revision(), **BUILD_ARGUMENTS}
            print(buildah("bud", *buildah.build_options(settings), *options, context))
        case ["push", tag]:
            node = node_of(Path(os.environ[CLUSTER]))
            import_images(node, buildah, {tag: buildah.identity(tag)})
        case ["exec", _, *command]:
            return subprocess.run(command, check=False).returncode
        case ["cp", source, target]:
            shutil.copytree(source, target.partition(":")[2])
        case _:
            print(f"no such command here: docker {' '.join(arguments)}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
