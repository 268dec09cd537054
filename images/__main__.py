"""`make images`: build both images, from a registry's base or one made here."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from images.build import DOCKERFILES, Buildah, build_images, find_builder, local_base


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(prog="python -m images", description=__doc__)
    parser.add_argument("images", nargs="*", type=_image, metavar="operator|trainer")
    parser.add_argument("--tag", default="isoloss/{name}:0.1.0", help="{name} is the image's")
    parser.add_argument("--base", help="base image (default: the Dockerfile's)")
    parser.add_argument(
        "--local-base", action="store_true", help="make the base with debootstrap; needs root"
    )
    parser.add_argument("--storage", type=Path, help="folder of buildah's storage")
    parser.add_argument(
        "--build-arg", action="append", type=_build_argument, default=[], metavar="NAME=VALUE"
    )
    options = parser.parse_args()
    arguments = dict(options.build_arg)
    builder = find_builder(options.storage)
    if options.base:
        arguments["BASE"] = options.base
    elif options.local_base and isinstance(builder, Buildah):
        with tempfile.TemporaryDirectory() as scratch:
            arguments["BASE"] = local_base(builder, Path(scratch))
    elif options.local_base:
        parser.error("--local-base needs buildah")
    build_images(builder, options.images or list(DOCKERFILES), options.tag, arguments)


def _image(name: str) -> str:
    if name not in DOCKERFILES:
        raise argparse.ArgumentTypeError(f"no image {name}: choose from {', '.join(DOCKERFILES)}")
    return name


def _build_argument(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"{text}: write NAME=VALUE")
    return name, value


if __name__ == "__main__":
    main()
