"""`pip install isoloss`, without extras, in an environment of its own: what works there and what says what it needs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended
from tests.support.planted_runs import planted_csv, planted_runs

ROOT = Path(__file__).parents[2]
HEAVY = ("fsspec", "kopf", "kubernetes", "torch", "tenacity", "yaml", "s3fs", "gcsfs")
EXAMPLE = ROOT / "crds" / "examples" / "dense-sweep.yaml"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("core installation")]


def ended(*command: object, where: Path = ROOT) -> Ended:
    # PYTHONPATH would lend the environment the checkout's packages; without bytecode, each process
    # would compile scipy and matplotlib again.
    dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    clean = {name: value for name, value in os.environ.items() if name not in dropped}
    words = [str(word) for word in command]
    process = subprocess.run(words, capture_output=True, text=True, cwd=where, env=clean)
    return Ended(process.returncode, process.stdout, process.stderr)


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its dependencies, versions as locked."""
    wheels = tmp_path_factory.mktemp("wheels")
    built = ended(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels)
    assert built.code == 0, built.err
    assert request.config.cache is not None
    # Kept between sessions: most of the time goes into compiling scipy's and matplotlib's modules.
    environment = request.config.cache.mkdir("core-installation") / _digest()
    (wheel,) = wheels.glob("*.whl")
    with environment.with_suffix(".lock").open("w") as lock:
        # Another worker may run the other tests of this file: it must not find half an installation.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = environment.with_suffix(".installed")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if not done.exists() or done.read_text() != digest:
            install(environment, wheel)
            done.write_text(digest)
    return environment / "bin" / "python"


def install(environment: Path, wheel: Path) -> None:
    """Put the wheel and its dependencies into the environment, which is made where there is none."""
    python = environment / "bin" / "python"
    uv = ended(ROOT / "scripts" / "find-uv.sh").out.strip()
    if not python.exists():
        assert ended(uv, "venv", "--python", sys.executable, environment).code == 0
    command = (
        *(uv, "pip", "install", "--python", python, "--reinstall-package", "isoloss"),
        *("-c", ROOT / "locks" / "dev.txt", wheel),
    )
    for mode in ("--offline", "--quiet"):  # uv's cache first: it usually has everything
        installed = ended(*command, mode)
        if installed.code == 0:
            return
    if "error sending request" in installed.err:
        pytest.skip(f"neither uv's cache nor a package index has the packages: {installed.err}")
    raise AssertionError(installed.err)


def _digest() -> str:
    """Names what determines the environment, except the wheel."""
    parts = [(ROOT / "locks" / "dev.txt").read_bytes(), sys.version.encode()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@pytest.fixture
def isoloss(python: Path, tmp_path: Path) -> Callable[..., Ended]:
    def call(*arguments: object) -> Ended:
        return ended(python.with_name("isoloss"), *arguments, where=tmp_path)

    return call


def test_importing_the_library_loads_no_object_storage_no_cluster_and_no_torch(
    python: Path, tmp_path: Path
) -> None:
    code = (
        "import isoloss, json, sys\n"
        "[getattr(isoloss, name) for name in isoloss.__all__]\n"
        "from importlib.util import find_spec\n"
        f"heavy = {HEAVY}\n"
        "print(json.dumps([[name for name in heavy if name in sys.modules],"
        " [name for name in heavy if find_spec(name)]]))"
    )
    loaded = ended(python, "-c", code, where=tmp_path)
    assert loaded.code == 0, loaded.err
    assert json.loads(loaded.out) == [[], []], "loaded, and installed at all"


def test_laws_predictions_and_reports_need_no_extra(
    isoloss: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").write_bytes(planted_csv(planted_runs(evaluations=10)))
    fit = isoloss("fit", "runs.csv", "--out", "laws.json", "--bootstrap-samples", 20, "--json")
    assert fit.code == 0, fit.err
    assert fit.document["status"] == "fitted"
    answer = isoloss("predict", "laws.json", "--total-flops", "3e19", "--json")
    assert answer.code == 0, answer.err
    assert 1e-5 < answer.document["learning_rate"]["value"] < 1e-2
    report = isoloss("report", "laws.json", "--runs", "runs.csv", "--out", "report.html")
    assert report.code == 0, report.err
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_sample_runs_come_with_the_wheel(
    isoloss: Callable[..., Ended], tmp_path: Path
) -> None:
    started = isoloss("quickstart", "--json")
    assert started.code == 0, started.err
    assert (tmp_path / "quickstart" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("plan", EXAMPLE), "operator"),
        (("init", "--help"), "operator"),
        (("fit", "s3://bucket/isoloss/sweeps/dense"), "store"),
        (("fit", "gs://bucket/runs.parquet"), "store"),
    ],
)
def test_what_needs_an_extra_names_it_in_one_sentence_with_the_command(
    isoloss: Callable[..., Ended], arguments: tuple[object, ...], extra: str
) -> None:
    refused = isoloss(*arguments, "--json")
    assert refused.code == 2
    assert f"pip install 'isoloss[{extra}]'" in refused.document["error"]["message"]
    assert "Traceback" not in refused.err
    assert len(refused.err.strip().splitlines()) == 1
