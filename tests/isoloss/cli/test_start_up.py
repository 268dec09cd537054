"""What a command imports: its start-up takes as long as that, so that each names what it does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NUMERICS = ("numpy", "scipy", "pydantic", "matplotlib", "pyarrow")
ELSEWHERE = ("isoloss.laws", "isoloss_contract", "isoloss_operator", "fsspec", "torch")
TERMINAL = ("rich", "typer.rich_utils")
"""A tenth of a second and more; plain text does where there is no table."""


def imported(*arguments: object, code: int = 0) -> set[str]:
    """The modules of a process that ran a command line."""
    program = (
        "import sys\n"
        "from isoloss.cli.application import run\n"
        f"code = run({[str(argument) for argument in arguments]!r})\n"
        "print(code, *sys.modules, file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    told, *modules = ended.stderr.splitlines()[-1].split(" ")
    assert told == str(code)
    return set(modules)


def found(modules: set[str], unwanted: tuple[str, ...]) -> list[str]:
    """The unwanted modules among those imported, with what is inside them."""
    return sorted(
        module
        for module in modules
        if any(module == name or module.startswith(f"{name}.") for name in unwanted)
    )


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("laws",), ("laws", "--json")])
def test_commands_that_compute_nothing_import_nothing_that_computes(
    arguments: tuple[str, ...],
) -> None:
    assert found(imported(*arguments), (*NUMERICS, *ELSEWHERE, *TERMINAL)) == []


@pytest.mark.parametrize(
    "command",
    [
        *("predict", "fit", "report", "validate", "watch", "explain", "quickstart"),
    ],
)
def test_the_help_of_a_command_imports_neither_scipy_nor_the_terminals_tables(
    command: str,
) -> None:
    assert found(imported(command, "--help"), ("scipy", *TERMINAL)) == []


def test_a_prediction_from_a_file_imports_neither_scipy_nor_what_draws_or_reads_tables(
    planted_laws: Path,
) -> None:
    modules = imported("predict", planted_laws, "--total-flops", "1e20", "--params", "1e9")
    assert found(modules, ("scipy", "matplotlib", "pyarrow", "isoloss_contract")) == []


def test_a_prediction_as_json_imports_no_terminal(planted_laws: Path) -> None:
    modules = imported(
        "predict", planted_laws, "--total-flops", "1e20", "--params", "1e9", "--json"
    )
    assert found(modules, TERMINAL) == []


def test_the_test_sees_what_a_command_imports(planted_laws: Path) -> None:
    """A prediction needs numpy: were it not found, nothing above would mean anything."""
    assert "numpy" in imported("predict", planted_laws, "--total-flops", "1e20")
