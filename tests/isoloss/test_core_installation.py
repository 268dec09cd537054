"""`pip install isoloss`, without extras, in an environment of its own: what works there and what says what it needs."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.support.command_line import Ended

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheels = tmp_path_factory.mktemp("wheels")
    built = ended(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels)
    assert built.code == 0, built.err
    (found,) = wheels.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest, wheel: Path) -> Path:
    """The interpreter of an environment with the wheel and its dependencies, versions as locked."""
    return environment_of(request, "core-installation", wheel)


@pytest.fixture(scope="module")
def notebook_python(request: pytest.FixtureRequest, wheel: Path) -> Path:
    """The same with what a notebook needs."""
    return environment_of(request, "notebook-installation", wheel, "ipykernel", "pandas")


def environment_of(request: pytest.FixtureRequest, name: str, wheel: Path, *others: str) -> Path:
    assert request.config.cache is not None
    # Kept between sessions: most of the time goes into compiling scipy's and matplotlib's modules.
    environment = request.config.cache.mkdir(name) / _digest()
    with environment.with_suffix(".lock").open("w") as lock:
        # Another worker may run the other tests of this file: it must not find half an installation.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = environment.with_suffix(".installed")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if not done.exists() or done.read_text() != digest:
            install(environment, wheel, *others)
            done.write_text(digest)
    return environment / "bin" / "python"


def install(environment: Path, wheel: Path, *others: str) -> None:
    """Put the wheel, others and their dependencies into the environment, which is made where there is none."""
    python = environment / "bin" / "python"
    uv = ended(ROOT / "scripts" / "find-uv.sh").out.strip()
    if not python.exists():
        assert ended(uv, "venv", "--python", sys.executable, environment).code == 0
    command = (
        *(uv, "pip", "install", "--python", python, "--reinstall-package", "isoloss"),
        *("-c", ROOT / "locks" / "dev.txt", wheel, *others),
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


def test_laws_predictions_and_reports_of_the_sample_runs_need_no_extra(
    isoloss: Callable[..., Ended], tmp_path: Path
) -> None:
    """The sample runs come with the wheel. The commands of the quickstart must end well, or it ends with 2."""
    started = isoloss("quickstart", "--json")
    assert started.code == 0, started.err
    words = [command.split()[:2] for command in started.document["commands"]]
    assert words == [["isoloss", "fit"], ["isoloss", "predict"], ["isoloss", "report"]]
    assert 1e-5 < started.document["learning_rate"]["value"] < 1e-2
    folder = tmp_path / "quickstart"
    assert json.loads((folder / "laws.json").read_text())["laws"]["status"] == "fitted"
    page = (folder / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg ") == 4


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
    assert f"pip install '.[{extra}]' in a checkout" in refused.document["error"]["message"]
    assert "Traceback" not in refused.err
    assert len(refused.err.strip().splitlines()) == 1


CELLS = (
    "import isoloss\nfrom isoloss import datasets\ntable = datasets.load_sample_runs()",
    "laws = isoloss.fit_laws(table)\nlaws",
    "query = isoloss.PredictionQuery(initial_loss=2.75, cpt_flops=3e19, params=1e9)\n"
    "answer = isoloss.predict(laws, query)\nanswer",
    "laws.to_pandas()",
    "answer.to_pandas()",
    "isoloss.plot_laws(laws, answer, initial_loss=2.75)",
    "isoloss.plot_contours(laws)",
    "isoloss.plot_trajectories(laws, table)",
    "isoloss.fit_laws(laws.to_pandas())",
    "isoloss.PredictionQuery(cpt_flops='3e19')",
)


def test_a_notebook_shows_tables_and_figures_and_names_wrong_types(
    notebook_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a browser's user sees it: a kernel beside the installed wheel, asked cell by cell."""
    kernel = tmp_path / "kernels" / "wheel"
    kernel.mkdir(parents=True)
    argv = [str(notebook_python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "wheel", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the checkout is not the wheel
    book = new_notebook(cells=[new_code_cell(cell) for cell in CELLS])
    client = NotebookClient(
        book,
        kernel_name="wheel",
        timeout=300,
        allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    shown = [cell.outputs[-1] if cell.outputs else None for cell in book.cells]
    _, laws, answer, optima, quantities, *figures, bad_table, bad_query = shown
    for table, words in (
        (laws, "loss over compute"),
        (answer, "learning rate"),
        (optima, "log_learning_rate_error"),
        (quantities, "equivalent_flops"),
    ):
        html = table["data"]["text/html"]
        assert "<table" in html
        assert words in html
    assert len(laws["data"]["text/html"]) < 3000
    assert len(figures) == 3
    assert all(len(figure["data"]["image/png"]) > 10_000 for figure in figures)
    assert (bad_table["ename"], "column" in bad_table["evalue"]) == ("BadTable", True)
    assert (bad_query["ename"], "cpt_flops must be a number" in bad_query["evalue"]) == (
        "TypeError",
        True,
    )
