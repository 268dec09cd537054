"""Builds the pinned Go programs of the development cluster into the user's cache, once each.

The wrappers under tools/ contain no Go source: go.mod names the programs and go.sum pins every byte.
Only the standard library is imported, so that this runs before anything is installed.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.files import exclusive
from devcluster.toolchain import TOOLS_FOLDER, cache_folder, download, find_go

FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-gcflags=all=-l -dwarf=false")
"""Without debugging data and inlining, compiling takes a third less of the minutes that a new machine
waits. Nobody debugs these programs, and a cluster for tests has little to do."""
STRIP = "-s -w"
PROGRESS_SECONDS = 10
GO_MESSAGE = "go: "
STALE_PACKAGES = '{{if and .Stale (ne .Name "main")}}{{.ImportPath}}{{end}}'

KUBERNETES_VARIABLE = "DEVCLUSTER_KUBERNETES"
"""Names another wrapper of Kubernetes than the newest: kubernetes-1.31, the oldest supported."""

Report = Callable[[str], None]
Progress = Callable[[Sequence[str]], str]
"""Says how far a go command is, from the lines it has written."""


@dataclass(frozen=True)
class Tool:
    """One program, and the wrapper whose go.mod pins it."""

    name: str
    package: str
    stamps: Mapping[str, str] = field(default_factory=dict)
    """Go's variables that the linker sets to the version."""
    wrapper: str = ""
    """By default named as the program."""

    @property
    def folder(self) -> Path:
        """Folder of the wrapper's go.mod."""
        return TOOLS_FOLDER / (self.wrapper or self.name)

    @property
    def module(self) -> str:
        """The module that the program is part of."""
        return re.split(r"/cmd(?:/|$)", self.package)[0]

    @property
    def version(self) -> str:
        """The version of the program's module, as the wrapper requires it."""
        module = self.module
        text = (self.folder / "go.mod").read_text()
        match = re.search(rf"^(?:require)?\s+{re.escape(module)} (v\S+)", text, re.MULTILINE)
        if not match:
            message = f"{self.folder}/go.mod requires no {module}"
            raise RuntimeError(message)
        return match[1]

    @property
    def linker_flags(self) -> str:
        """Strip symbols and set the version, which Go leaves out for a dependency."""
        number = self.version.removeprefix("v")
        major, minor = number.split(".")[:2]
        words = {"version": self.version, "number": number, "major": major, "minor": minor}
        stamps = (f"-X {name}={value.format(**words)}" for name, value in self.stamps.items())
        return " ".join([STRIP, *stamps])

    def module_folder(self) -> Path:
        """Folder of the program's module, whose manifests its installation needs; downloaded if it is not there."""
        return Path(download(self.module, self.folder, print_line)["Dir"])

    @property
    def executable(self) -> str:
        """The file name that `go build` chooses: the package's last element that is no version."""
        *_, parent, last = self.package.split("/")
        return parent if re.fullmatch(r"v\d+", last) else last

    @property
    def path(self) -> Path:
        """Where the program is once built."""
        return cache_folder() / self._digest() / "bin" / self.name

    def _digest(self) -> str:
        parts = [(self.folder / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts.append(json.dumps([FLAGS, self.linker_flags]).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


KUEUE, ARGO_CD = "sigs.k8s.io/kueue", "github.com/argoproj/argo-cd/v3"
VERSION, NUMBER = "{version}", "{number}"
"""With its leading v, and without."""
_KUBERNETES = "k8s.io/component-base/version"
KUBERNETES_STAMPS = {
    f"{_KUBERNETES}.gitVersion": VERSION,
    f"{_KUBERNETES}.gitMajor": "{major}",
    f"{_KUBERNETES}.gitMinor": "{minor}",
    f"{_KUBERNETES}.gitTreeState": "clean",
}


def _kubernetes(name: str) -> Tool:
    wrapper = os.environ.get(KUBERNETES_VARIABLE, "kubernetes")
    return Tool(name, f"k8s.io/kubernetes/cmd/{name}", KUBERNETES_STAMPS, wrapper)


_TOOLS = (
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubectl"),
    Tool("etcd", "go.etcd.io/etcd/server/v3"),
    Tool("versitygw", "github.com/versity/versitygw/cmd/versitygw", {"main.Version": VERSION}),
    # For `make test-images` only.
    _kubernetes("kubelet"),
    Tool(
        "helm", "helm.sh/helm/v4/cmd/helm", {"helm.sh/helm/v4/internal/version.version": VERSION}
    ),
    Tool("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform", {"main.version": VERSION}),
    # For `make test-controllers` only.
    Tool("kustomize-controller", "github.com/fluxcd/kustomize-controller"),
    Tool("kueue", f"{KUEUE}/cmd/kueue", {f"{KUEUE}/pkg/version.GitVersion": VERSION}),
    Tool("argo-cd", f"{ARGO_CD}/cmd", {f"{ARGO_CD}/common.version": NUMBER}),
    # For `make test-gs` only.
    Tool("fake-gcs-server", "github.com/fsouza/fake-gcs-server"),
)
TOOLS = {tool.name: tool for tool in _TOOLS}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
DEFAULT = (*CONTROL_PLANE, "versitygw")


def print_line(line: str) -> None:
    """Report progress on standard output, unbuffered even through a pipe."""
    print(line, flush=True)


def print_note(line: str) -> None:
    """Report progress on standard error, of a command whose output a shell evaluates."""
    print(line, file=sys.stderr, flush=True)


def build(names: Iterable[str] = DEFAULT, report: Report = print_line) -> dict[str, Path]:
    """Build what is not built yet and return the path of each program.

    Raises RuntimeError where the Go compiler fails (its output is in the message).
    """
    tools = [TOOLS[name] for name in names]
    missing = [tool for tool in tools if not tool.path.exists()]
    if missing:
        listed = ", ".join(tool.name for tool in missing)
        report(f"building {listed} from source: once per machine, minutes on two cores")
        find_go(report)
        _build_wrappers(missing, report)
    return {tool.name: tool.path for tool in tools}


def _build_wrappers(tools: Sequence[Tool], report: Report) -> None:
    """Build two wrappers at a time: while one downloads or links, another compiles."""
    groups: dict[str, list[Tool]] = {}
    for tool in sorted(tools, key=list(TOOLS.values()).index):  # the longest first
        groups.setdefault(tool.folder.name, []).append(tool)
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(lambda group: _build_once(group, report), groups.values()))


def tool_path(name: str, report: Report = print_line) -> Path:
    """Path of one program, built first if it is not there."""
    return build([name], report)[name]


@functools.cache
def kubectl_path(report: Report = print_line) -> Path:
    """A kubectl within one minor version of the server: the machine's own, else built."""
    return _kubectl_on_path() or tool_path("kubectl", report)


def client_tools() -> tuple[str, ...]:
    """Names of what `kubectl_path` would build: to be built with the server, which shares most of it."""
    return () if _kubectl_on_path() else ("kubectl",)


def _kubectl_on_path() -> Path | None:
    on_path = shutil.which("kubectl")
    served = int(TOOLS["kube-apiserver"].version.split(".")[1])
    return Path(on_path) if on_path and abs(_kubectl_minor(on_path) - served) <= 1 else None


def _kubectl_minor(kubectl: str) -> int:
    command = [kubectl, "version", "--client", "--output=json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r'"gitVersion": "v1\.(\d+)', answer.stdout)
    return int(match[1]) if match else 0


def _build_once(tools: Sequence[Tool], report: Report) -> None:
    """Build tools of one wrapper together, unless another process has built them by now."""
    wrapper = tools[0].folder.name
    with exclusive(cache_folder() / f"{wrapper}.lock"):
        missing = [tool for tool in tools if not tool.path.exists()]
        if not missing:
            return
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            Compilation(find_go(report), missing, report).run(Path(scratch))
            for tool in missing:
                tool.path.parent.mkdir(parents=True, exist_ok=True)
                Path(scratch, tool.executable).rename(tool.path)
        report(f"{wrapper} {tools[0].version}: built in {time.monotonic() - started:.0f} s")


class Compilation:
    """The Go compiler at work on tools of one wrapper, with progress that is counted."""

    def __init__(self, go: Path, tools: Sequence[Tool], report: Report) -> None:
        """`tools` share their go.mod and linker flags, and so most of their packages."""
        self._go = go
        self._tools = tools
        self._report = report

    def run(self, folder: Path) -> None:
        """Write the executables to `folder`. Raises RuntimeError with the compiler's messages."""
        listed = self._run_go(_count_downloads, "list", "-deps", "-f", STALE_PACKAGES)
        stale = {line for line in listed if line and not line.startswith(GO_MESSAGE)}

        def count_packages(lines: Sequence[str]) -> str:
            done = len(stale.intersection(lines))
            return (
                f"{done:,} of {len(stale):,} packages compiled" if done < len(stale) else "linking"
            )

        # With -v the compiler names each package that it compiles.
        options = ("-v", "-ldflags", self._tools[0].linker_flags, "-o", f"{folder}/")
        self._run_go(count_packages, "build", *options)

    def _run_go(self, progress: Progress, verb: str, *options: str) -> list[str]:
        """Lines that a go command wrote; reports progress every PROGRESS_SECONDS."""
        packages = [tool.package for tool in self._tools]
        tool = self._tools[0]
        # GOFLAGS and GOWORK of the machine must not change what the digest stands for.
        environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        environment |= {"GOFLAGS": "", "GOWORK": "off"}
        command = [str(self._go), verb, *FLAGS, *options, *packages]
        with tempfile.NamedTemporaryFile("w") as log:
            written = Path(log.name)
            compiler = subprocess.Popen(
                command, cwd=tool.folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            while not _ended_within(compiler, PROGRESS_SECONDS):
                self._report(f"{tool.folder.name} {tool.version}: {progress(_lines(written))}")
            if compiler.returncode:
                message = f"building {', '.join(t.name for t in self._tools)} failed:\n"
                raise RuntimeError(message + written.read_text()[-4000:])
            return _lines(written)


def _count_downloads(lines: Sequence[str]) -> str:
    count = sum(line.startswith("go: downloading ") for line in lines)
    return f"{count} modules downloaded" if count else "looking for what to compile"


def _lines(written: Path) -> list[str]:
    return written.read_text().splitlines()


def _ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process has ended; an interrupt ends it."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return True
