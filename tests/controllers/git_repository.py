"""A Git repository on this machine, as Argo CD clones it."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOMEBODY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Somebody"), ("EMAIL", "somebody@example.com"))
}


class GitRepository:
    """A folder with one branch, main."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        return f"file://{self._folder}"

    def commit(self, files: Mapping[str, str]) -> str:
        """Make these files the whole content of the repository; the new revision."""
        for entry in self._folder.iterdir():
            if entry.name != ".git":
                shutil.rmtree(entry)
        for path, text in files.items():
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message=Change something")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        environment = {"PATH": os.defpath, "HOME": str(self._folder), **SOMEBODY}
        return subprocess.run(
            ["git", *arguments],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
