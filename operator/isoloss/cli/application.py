"""The commands under one name, each imported only when it runs, and errors of the command line itself."""

import errno
import functools
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.metadata import version as installed_version
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
import typer.core
import typer.main

from isoloss.cli.outcome import ANSWERED, BAD_INPUT, print_error
from isoloss.errors import BadInput
from isoloss.numbers import hint

INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STYLE: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""Help as plain text: its frames would take longer to import than all else that `--help` does."""
GROUP = "isoloss.commands"
"""Entry points of packages that add a command."""

OWN = {
    name: EntryPoint(name, f"isoloss.cli.{module}:{name}", GROUP)
    for name, module in (
        ("quickstart", "quickstart"),
        ("fit", "fitting"),
        ("predict", "predicting"),
        ("validate", "validating"),
        ("report", "reporting"),
        ("laws", "listing"),
        ("watch", "watching"),
    )
} | {"open": EntryPoint("open", "isoloss.cli.opening:open_page", GROUP)}
SUMMARIES = {
    "quickstart": "Fit, predict and report on sample runs, in ten seconds.",
    "fit": "Fit the laws of learning rate, batch size and loss to runs.",
    "predict": "Predict learning rate and batch size of a continued run.",
    "validate": "Check a prediction with short runs around it, and refine it.",
    "report": "Write laws, evidence and a prediction to one HTML page.",
    "laws": "List the published laws.",
    "watch": "Show a running sweep or prediction until it is ready.",
    "open": "Open the report page of a sweep or a prediction in a browser.",
    "measure": "Measure the initial loss of a checkpoint on text.",
    "init": "Write manifests for a checkpoint, and what they cost.",
    "plan": "Show what a sweep would train and cost.",
}
"""One line per command, so that listing the commands imports none of them."""


class _Light:
    """A command or group whose `--help` is False if it is not given.

    typer converts its own default, None, with pydantic, which takes longer to import than `isoloss laws` to run.
    """

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.default = False
        return option


class _Command(_Light, typer.core.TyperCommand):
    """One command."""


class _OnDemand(_Light, typer.core.TyperGroup):
    """Commands by name; the one that runs is imported and parses its own options.

    Importing them all would bring scipy, pyarrow and the operator: seconds before `--help`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, _loaded(_commands()[name or ""]), rest


@functools.cache
def _commands() -> dict[str, EntryPoint]:
    return {**OWN, **{entry.name: entry for entry in entry_points(group=GROUP)}}


def _loaded(entry: EntryPoint) -> Any:
    """The command behind an entry point. Raises BadInput if its extra is not installed."""
    try:
        body = entry.load()
    except ModuleNotFoundError as error:
        package, missing = entry.module.partition(".")[0], error.name or ""
        if missing.startswith("isoloss"):
            raise  # a fault in our own code, which no extra repairs
        extra = package.removeprefix("isoloss_")
        raise BadInput(
            f"isoloss {entry.name} needs {missing}, which is not installed: "
            f"install isoloss with the extra {extra!r} (pip install '.[{extra}]' in a checkout)"
        ) from error
    alone = typer.Typer(**STYLE)
    alone.command(entry.name, cls=_Command)(body)
    return typer.main.get_command(alone)


application = typer.Typer(cls=_OnDemand, **STYLE)
for command_name in _commands():
    # Listed in the help, never run: _OnDemand puts the real command in its place.
    application.command(command_name, help=SUMMARIES.get(command_name, ""))(lambda: None)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(installed_version("isoloss"))
        raise typer.Exit


@application.callback()
def isoloss(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Learning rates and batch sizes for continued pre-training, from iso-loss scaling laws.

    Exit codes: 0 answered, 2 bad input, 3 refused (the data do not support an answer) or stalled,
    130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal may lack a sign such as that of multiplication.
            stream.reconfigure(errors="replace")
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except OSError as error:
        if error.errno not in DISK_FULL or error.filename is not None:
            raise
        code = _output_lost(error)
    sys.exit(code)


def _output_lost(error: OSError) -> int:
    """Say that standard output takes no more. Returns the exit code."""
    # What is still in the buffer would fail again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    text = f"standard output: {error.strerror}"
    return print_error({"message": text}, text, as_json=False)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Without any argument that is the help, and bad input."""
    if not arguments:
        run(["--help"])
        return BAD_INPUT
    as_json = "--json" in arguments
    try:
        code = application(args=list(arguments), prog_name="isoloss", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        # Usage errors have no public base class in typer; each knows its message.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            if not _is_bad_input(error):
                raise
            return print_error(_described(error), str(error), as_json=as_json)
        message = _in_words(error) or format_message()
        asked = f"isoloss {arguments[0]}" if arguments[0] in _commands() else "isoloss"
        text = f"{message}\nTry '{asked} --help'."
        return print_error({"message": message}, text, as_json=as_json)
    return code if isinstance(code, int) else ANSWERED


def _is_bad_input(error: Exception) -> bool:
    # Not above: these bring numpy and pydantic, and a command that raised them has imported them.
    from isoloss.laws import InvalidRunError
    from isoloss_contract.store import StoreError

    return isinstance(error, BadInput | InvalidRunError | StoreError)


def _described(error: Exception) -> dict[str, Any]:
    """The message, and where the fault is: row and column of a table, or the run and its column."""
    names = {"source": "source", "row": "row", "column": "column", "run": "run", "field": "column"}
    place = {key: getattr(error, name) for name, key in names.items() if hasattr(error, name)}
    return {"message": getattr(error, "message", str(error)), **place}


def _in_words(error: Any) -> str:
    """What is wrong with the value of an option or argument and what to write; empty: typer says it well enough."""
    parameter, cause = getattr(error, "param", None), error.__cause__
    if parameter is None:
        return ""
    name, description = parameter.opts[0], parameter.help or ""
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
    if hasattr(error, "param_type"):
        return f"{name} is missing: {description}"
    if not hasattr(cause, "errors"):
        return ""
    # typer shows the words of the library that converts values, which are those of a programmer.
    found = cause.errors(include_url=False)[0]
    given, limits = f"{name} {found['input']}", found.get("ctx", {})
    match found["type"]:
        case "greater_than_equal":
            return f"{given}: must be at least {limits['ge']}. {description}"
        case "less_than_equal":
            return f"{given}: must be at most {limits['le']}. {description}"
        case "float_parsing" | "int_parsing" | "int_from_float":
            whole = found["type"] != "float_parsing"
            kind = "a whole number" if whole else "a number"
            text = str(found["input"])
            has_unit = text[:1].isdigit() and text[-1:].isalpha()
            instead = hint(text, whole=whole) or ": write it in digits" * has_unit
            return f"{given}: is not {kind}{instead}. {description}"
        case "value_error" if "|" in (parameter.metavar or ""):
            return f"{given}: must be {parameter.metavar.replace('|', ' or ')}. {description}"
    return ""
