"""Translates mount paths of a container to paths of this machine.

A plain process has no mounts of its own, so its arguments and environment are rewritten instead.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
# What may precede a path in a value or argument: a scheme, or the name of an option or variable.
PREFIX = re.compile(r"file://(?=/)|[A-Za-z_-][\w.-]*=(?:file://)?(?=/)")


@dataclass(frozen=True)
class Mount:
    """A path in the container and the corresponding file or folder of this machine."""

    path: str
    real: Path

    def rewrite(self, text: str) -> str | None:
        """The real path if `text` is the mount path or a path below it, else None."""
        path = self.path.rstrip("/")
        if text == path or text.startswith(f"{path}/"):
            return f"{self.real}{text.removeprefix(path)}"
        return None


def rewrite_path(text: str, mounts: tuple[Mount, ...]) -> str:
    """Rewrite a value that is, or starts with, a mount path; the longest mount path wins.

    `file://` and one `name=` may precede the path. Paths further inside a text, such as a shell
    script, are not rewritten.
    """
    match = PREFIX.match(text)
    prefix = match[0] if match else ""
    rest = text[len(prefix) :]
    for mount in sorted(mounts, key=lambda mount: len(mount.path), reverse=True):
        rewritten = mount.rewrite(rest)
        if rewritten is not None:
            return prefix + rewritten
    return text


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: unknown names stay, `$$` is one dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return REFERENCE.sub(replace, text)
