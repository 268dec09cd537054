"""Builds both images with buildah or docker; on a machine without a registry, from a base made here."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCKERFILES = {"operator": "operator/Dockerfile", "trainer": "trainer_image/Dockerfile"}
SUITE = "trixie"
LOCAL_BASE = f"localhost/isoloss-base:{SUITE}"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Where Debian's programs look for trusted authorities; a machine behind a proxy may have more."""


@dataclass(frozen=True)
class Buildah:
    """buildah with its storage in a folder of ours, as root (None: the user's own storage)."""

    folder: Path | None = None

    def __call__(self, *arguments: str) -> str:
        """Standard output of one command. Raises CalledProcessError."""
        command = self._command(*arguments)
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def build(self, dockerfile: str, tag: str, arguments: Mapping[str, str]) -> None:
        """Build an image from this checkout. Raises CalledProcessError."""
        options = [*self.build_options(arguments), "--file", dockerfile, "--tag", tag]
        subprocess.run(self._command("bud", *options, str(ROOT)), check=True)

    def build_options(self, arguments: Mapping[str, str]) -> list[str]:
        """Of `buildah bud`: steps with chroot isolation, which needs neither a daemon nor systemd."""
        options = ["--layers", "--isolation", "chroot", "--network", "host"]
        if CERTIFICATES.exists():
            options += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        return options + build_arguments({**arguments, "PIP_CERT": str(CERTIFICATES)})

    def identity(self, tag: str) -> str:
        """The image's ID; "" where there is none."""
        images = json.loads(self("images", "--json"))
        return next((image["id"] for image in images if tag in (image["names"] or ())), "")

    def export(self, tag: str, archive: Path) -> None:
        """Write an image as an archive that `ctr images import` reads."""
        archive.unlink(missing_ok=True)  # buildah does not write into an archive that exists
        self("push", "--quiet", tag, f"docker-archive:{archive}:{tag}")

    def _command(self, *arguments: str) -> list[str]:
        if self.folder is None:
            return ["buildah", *arguments]
        storage = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")]
        # In a mount namespace of its own: what an interrupted build has mounted goes with it.
        return ["unshare", "--mount", "buildah", *storage, *arguments]


@dataclass(frozen=True)
class Docker:
    """docker, or a program with its command line, such as podman."""

    program: str = "docker"

    def build(self, dockerfile: str, tag: str, arguments: Mapping[str, str]) -> None:
        """Build an image. Raises CalledProcessError."""
        options = build_arguments(arguments)
        command = [self.program, "build", *options, "--file", dockerfile, "--tag", tag, str(ROOT)]
        subprocess.run(command, check=True, cwd=ROOT)


def build_arguments(values: Mapping[str, str]) -> list[str]:
    """`--build-arg` options."""
    return [part for name, value in values.items() for part in ("--build-arg", f"{name}={value}")]


def revision() -> str:
    """The commit that is built; "" outside a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def local_base(buildah: Buildah, scratch: Path) -> str:
    """An image of Debian with Python, made by debootstrap where there is none yet; its name.

    Needs root and Debian's archive. About 120 MB and a minute.
    """
    if buildah.identity(LOCAL_BASE):
        return LOCAL_BASE
    system = scratch / "base"
    shutil.rmtree(system, ignore_errors=True)
    packages = "python3,python3-venv,ca-certificates"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(system)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    remove_documentation(system)
    container = buildah("from", "scratch").strip()
    buildah("add", "--quiet", container, str(system), "/")
    buildah("commit", "--quiet", "--rm", container, LOCAL_BASE)
    shutil.rmtree(system)
    return LOCAL_BASE


def remove_documentation(system: Path) -> None:
    """What Debian's own slim images leave out: caches, manuals, translations; never a copyright file."""
    for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(system / folder, ignore_errors=True)
        (system / folder).mkdir(parents=True)
    for path in (system / "usr/share/doc").rglob("*"):
        if path.name != "copyright" and not path.is_dir():
            path.unlink()


def build_images(
    builder: Buildah | Docker,
    names: Sequence[str],
    tag: str,
    arguments: Mapping[str, str],
) -> None:
    """Build the named images; `tag` has {name} where the image's name goes."""
    common = {"REVISION": revision(), **arguments}
    for name in names:
        builder.build(str(ROOT / DOCKERFILES[name]), tag.format(name=name), common)


def find_builder(folder: Path | None) -> Buildah | Docker:
    """buildah as root, else docker or podman. Raises RuntimeError where there is none."""
    if shutil.which("buildah") and (os.geteuid() == 0 or folder is None):
        return Buildah(folder)
    for program in ("docker", "podman"):
        if shutil.which(program):
            return Docker(program)
    message = "no buildah, docker or podman on PATH; on Debian: apt-get install buildah"
    raise RuntimeError(message)
