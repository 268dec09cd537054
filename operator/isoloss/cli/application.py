"""The commands under one name, and what happens when the command line itself can not be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.metadata import version as installed_version
from typing import Annotated, NoReturn

import typer

from isoloss.cli.fitting import fit
from isoloss.cli.listing import laws
from isoloss.cli.outcome import ANSWERED, BAD_INPUT, BadInput, command, console, print_document
from isoloss.cli.predicting import predict
from isoloss.cli.reporting import report

INTERRUPTED = 130

application = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
for body in (fit, predict, report, laws):
    application.command()(body)


def _of_an_extra(entry: EntryPoint) -> Callable[..., None]:
    """A command that another package brings, or one that says which extra is missing."""
    try:
        loaded: Callable[..., None] = entry.load()
    except ModuleNotFoundError as error:
        missing = error.name
        extra = entry.module.partition(".")[0].removeprefix("isoloss_")

        @command
        def absent() -> int:
            raise BadInput(
                f"isoloss {entry.name} needs {missing}, which is not installed: "
                f"pip install 'isoloss[{extra}]'"
            )

        return absent
    return loaded


for entry in entry_points(group="isoloss.commands"):
    application.command(
        entry.name, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
    )(_of_an_extra(entry))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(installed_version("isoloss"))
        raise typer.Exit


@application.callback()
def isoloss(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Learning rates and batch sizes for continued pre-training, from iso-loss scaling laws.

    Exit codes: 0 answered, 2 bad input, 3 refused: the data do not support an answer.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with its code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    try:
        code = application(args=list(arguments), prog_name="isoloss", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        # Usage errors have no public base class in typer; each knows its message.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return _usage_error(format_message(), as_json="--json" in arguments)
    return code if isinstance(code, int) else ANSWERED


def _usage_error(message: str, *, as_json: bool) -> int:
    if as_json:
        print_document({"error": {"message": message}})
    if message:  # without any argument typer has shown the help already
        console(stderr=True).print(f"isoloss: {message}\nisoloss --help tells more.")
    return BAD_INPUT
