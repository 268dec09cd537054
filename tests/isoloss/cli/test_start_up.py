"""What a command imports: its start-up takes as long as that, so that each names what it does without."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NUMERICS = ("numpy", "scipy", "pydantic", "matplotlib", "pyarrow")
ELSEWHERE = ("isoloss.laws", "isoloss_contract", "isoloss_operator", "fsspec", "torch")
TERMINAL = ("rich", "typer.rich_utils")
"""A tenth of a second and more; plain text does where there is no table."""


def imported(*lines: Sequence[object]) -> list[set[str]]:
    """The modules of a process that ran one command line after the other, after each of them."""
    program = (
        "import sys\n"
        "from isoloss.cli.application import run\n"
        f"for line in {[[*map(str, line)] for line in lines]!r}:\n"
        "    code = run(line)\n"
        "    print('ran', code, *sys.modules, file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    reported = [line.split(" ") for line in ended.stderr.splitlines() if line.startswith("ran ")]
    assert [code for _, code, *_ in reported] == ["0"] * len(lines)
    return [set(modules) for _, _, *modules in reported]


def found(modules: set[str], unwanted: tuple[str, ...]) -> list[str]:
    """The unwanted modules among those imported, with what is inside them."""
    return sorted(
        module
        for module in modules
        if any(module == name or module.startswith(f"{name}.") for name in unwanted)
    )


def test_commands_that_compute_nothing_import_nothing_that_computes() -> None:
    lines = (("--help",), ("--version",), ("laws",), ("laws", "--json"))
    for line, modules in zip(lines, imported(*lines), strict=True):
        assert found(modules, (*NUMERICS, *ELSEWHERE, *TERMINAL)) == [], line


def test_the_help_of_a_command_imports_neither_scipy_nor_the_terminals_tables() -> None:
    commands = ("predict", "fit", "validate", "watch", "quickstart", "report")
    lines = [(command, "--help") for command in commands]
    for line, modules in zip(lines, imported(*lines), strict=True):
        assert found(modules, ("scipy", *TERMINAL)) == [], line


def test_a_prediction_imports_neither_scipy_nor_what_draws_or_reads_tables_and_as_json_no_terminal(
    synthetic_laws: Path,
) -> None:
    asked = ("predict", synthetic_laws, "--total-flops", "1e20", "--params", "1e9")
    as_json, from_a_file = imported((*asked, "--json"), asked)
    assert found(as_json, TERMINAL) == []
    records = ("isoloss_contract.records", "isoloss_contract.store")
    assert found(from_a_file, ("scipy", "matplotlib", "pyarrow", *records)) == []
    assert "numpy" in from_a_file, "or the tests would not see what a command imports"
