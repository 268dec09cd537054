"""Builds the pinned Go programs of the development cluster, each once, into the user's cache.

The wrappers under tools/ hold no Go source: their go.mod names the programs and their go.sum pins
every byte. Standard library only, so that this runs before anything is installed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from devcluster.locking import exclusive
from devcluster.toolchain import TOOLS_FOLDER, cache_folder, find_go

FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-gcflags=all=-l -dwarf=false")
"""Nobody debugs these programs, and a cluster of tests does little: compiled without debugging data and
inlining they take a third less of the minutes that a new machine waits for."""
STRIP = "-s -w"
PROGRESS_SECONDS = 10

Report = Callable[[str], None]


@dataclass(frozen=True)
class Tool:
    """One program: where its pin lives and about how long it takes from cold on two cores."""

    name: str
    wrapper: str
    package: str
    version_flags: str
    seconds: int

    @property
    def folder(self) -> Path:
        """Folder of the wrapper's go.mod."""
        return TOOLS_FOLDER / self.wrapper

    @property
    def version(self) -> str:
        """The version of the program's module, as the wrapper requires it."""
        module = self.package.split("/cmd/")[0]
        text = (self.folder / "go.mod").read_text()
        match = re.search(rf"^(?:require)?\s+{re.escape(module)} (v\S+)", text, re.MULTILINE)
        if not match:
            message = f"{self.folder}/go.mod requires no {module}"
            raise RuntimeError(message)
        return match[1]

    @property
    def linker_flags(self) -> str:
        """Strips symbols and writes the version in, which Go leaves out for a dependency."""
        version = self.version
        major, minor = version.removeprefix("v").split(".")[:2]
        flags = self.version_flags.format(version=version, major=major, minor=minor)
        return f"{STRIP} {flags}".strip()

    @property
    def path(self) -> Path:
        """Where the program lies once built."""
        return cache_folder() / self._digest() / "bin" / self.name

    def _digest(self) -> str:
        parts = [(self.folder / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts.append(json.dumps([FLAGS, self.linker_flags]).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


_KUBERNETES_VERSION = " ".join(
    f"-X k8s.io/component-base/version.{key}={value}"
    for key, value in (
        ("gitVersion", "{version}"),
        ("gitMajor", "{major}"),
        ("gitMinor", "{minor}"),
        ("gitTreeState", "clean"),
    )
)


def _kubernetes(name: str, seconds: int) -> Tool:
    return Tool(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_VERSION, seconds)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("etcd", "etcd", "go.etcd.io/etcd/server/v3", "", 30),
        Tool(
            "versitygw",
            "versitygw",
            "github.com/versity/versitygw/cmd/versitygw",
            "-X main.Version={version}",
            45,
        ),
        _kubernetes("kube-apiserver", 150),
        _kubernetes("kube-controller-manager", 50),
        _kubernetes("kube-scheduler", 20),
        _kubernetes("kubectl", 40),
        # Asked for by `make test-images` alone.
        _kubernetes("kubelet", 120),
        Tool(
            "helm",
            "helm",
            "helm.sh/helm/v4/cmd/helm",
            "-X helm.sh/helm/v4/internal/version.version={version}",
            90,
        ),
        Tool(
            "kubeconform",
            "kubeconform",
            "github.com/yannh/kubeconform/cmd/kubeconform",
            "-X main.version={version}",
            5,
        ),
        # Asked for by `make test-gs` alone.
        Tool("fake-gcs-server", "fake-gcs-server", "github.com/fsouza/fake-gcs-server", "", 110),
    )
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
DEFAULT = (*CONTROL_PLANE, "versitygw")


def print_line(line: str) -> None:
    """Report progress on standard output at once, also through a pipe."""
    print(line, flush=True)


def build(names: Iterable[str] = DEFAULT, report: Report = print_line) -> dict[str, Path]:
    """Build what is not built yet and return the path of each program.

    Raises RuntimeError where the Go compiler fails (its output is in the message).
    """
    tools = [TOOLS[name] for name in names]
    missing = [tool for tool in tools if not tool.path.exists()]
    if missing:
        total = sum(tool.seconds for tool in missing)
        listed = ", ".join(tool.name for tool in missing)
        report(f"building {listed}: about {total} s from cold on two cores, once per machine")
        find_go(report)
        _build_wrappers(missing, report)
    return {tool.name: tool.path for tool in tools}


def _build_wrappers(tools: Sequence[Tool], report: Report) -> None:
    """Build two wrappers at a time: while one downloads or links, another compiles.

    Tools of one wrapper share most packages, so they follow one another.
    """
    wrappers = dict.fromkeys(tool.wrapper for tool in tools)
    groups = [[tool for tool in tools if tool.wrapper == wrapper] for wrapper in wrappers]
    groups.sort(key=lambda group: -sum(tool.seconds for tool in group))

    def build_group(group: Sequence[Tool]) -> None:
        for tool in group:
            _build_once(tool, report)

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(build_group, groups))


def tool_path(name: str) -> Path:
    """Path of one program, built first if it is not there."""
    return build([name])[name]


@functools.cache
def kubectl_path() -> Path:
    """Find a kubectl within one minor version of the server: the machine's own, else built."""
    on_path = shutil.which("kubectl")
    served = int(TOOLS["kube-apiserver"].version.split(".")[1])
    if on_path and abs(_kubectl_minor(on_path) - served) <= 1:
        return Path(on_path)
    return tool_path("kubectl")


def _kubectl_minor(kubectl: str) -> int:
    command = [kubectl, "version", "--client", "--output=json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r'"gitVersion": "v1\.(\d+)', answer.stdout)
    return int(match[1]) if match else 0


def _build_once(tool: Tool, report: Report) -> None:
    with exclusive(cache_folder() / f"{tool.name}.lock"):
        if tool.path.exists():
            return
        go = find_go(report)
        tool.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=tool.path.parent) as scratch:
            output = Path(scratch) / tool.name
            started = time.monotonic()
            _compile(tool, go, output, report)
            output.rename(tool.path)
        report(f"{tool.name} {tool.version}: built in {time.monotonic() - started:.0f} s")


def _compile(tool: Tool, go: Path, output: Path, report: Report) -> None:
    command = [str(go), "build", *FLAGS, "-ldflags", tool.linker_flags]
    command += ["-o", str(output), tool.package]
    # GOFLAGS and GOWORK of the machine must not change what the digest stands for.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    environment |= {"GOFLAGS": "", "GOWORK": "off"}
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        compiler = subprocess.Popen(
            command, cwd=tool.folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        while True:
            try:
                compiler.wait(PROGRESS_SECONDS)
                break
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - started
                report(f"{tool.name} {tool.version}: {elapsed:.0f} s of about {tool.seconds} s")
            except BaseException:
                compiler.terminate()
                compiler.wait()
                raise
        if compiler.returncode:
            log.seek(0)
            message = f"building {tool.name} failed:\n{log.read()[-4000:]}"
            raise RuntimeError(message)
