"""A command line run in this process: exit code, standard output, standard error."""

from pathlib import Path

import pytest

from isoloss.cli.application import run
from tests.support.command_line import Ended, Isoloss
from tests.support.synthetic_runs import synthetic_runs, write_runs


@pytest.fixture
def isoloss(capsys: pytest.CaptureFixture[str]) -> Isoloss:
    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def synthetic_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose laws can be fitted."""
    return write_runs(tmp_path_factory.mktemp("tables") / "runs.csv", synthetic_runs())


@pytest.fixture(scope="session")
def synthetic_laws(synthetic_table: Path) -> Path:
    """The laws of that table."""
    path = synthetic_table.with_name("laws.json")
    assert run(["fit", str(synthetic_table), "--out", str(path), "--json"]) == 0
    return path
