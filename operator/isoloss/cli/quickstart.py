"""`isoloss quickstart`: fit, predict and report on the sample runs, by the commands that a user would type."""

import contextlib
import io
import os
import re
import shlex
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from isoloss import datasets, formatting
from isoloss.cli.inputs import AsJson
from isoloss.cli.outcome import ANSWERED, PIPED_WIDTH, print_document
from isoloss.errors import BadInput
from isoloss.laws import Prediction, hyperparameter_formula, loss_compute_formula
from isoloss.laws import predict as predict_from
from isoloss.laws_files import read_laws, write_file

FOLDER = "quickstart"
RUNS, PROBES, LAWS, PAGE = "runs.csv", "probes.csv", "laws.json", "report.html"
ASKED = datasets.QUESTION
QUESTION = (
    *("--initial-loss", f"{ASKED.initial_loss:g}"),
    *("--params", formatting.exponential(ASKED.params)),
    *("--cpt-tokens", formatting.exponential(ASKED.cpt_tokens)),
)
KNOWN = (
    "--known-optimum",
    formatting.learning_rate(datasets.OPTIMUM[0]),
    formatting.batch_size(datasets.OPTIMUM[1]),
)


def quickstart(
    folder: Annotated[
        Path, typer.Option(help="Folder for the sample runs, their laws and the report.")
    ] = Path(FOLDER),
    opened: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="Open the report in a browser. By default if there is a desktop.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Fit laws to sample runs, predict and write a report: about ten seconds, without a cluster."""
    _write_samples(folder)
    page = (folder / PAGE).resolve()
    typed = commands(folder)
    show: Callable[[str], None] = (lambda _: None) if as_json else typer.echo
    show(_introduction(folder))
    for arguments, result in zip(typed, (_laws_in_words, _answer_in_words, None), strict=True):
        show(f"\n{in_shell(arguments)}")
        _run(arguments)
        if result is not None:
            show(result(folder))
    if as_json:
        answer = _answer(folder)
        print_document(
            {
                "commands": [shlex.join(("isoloss", *arguments)) for arguments in typed],
                "learning_rate": answer.learning_rate,
                "batch_size": answer.batch_size,
                "report": str(page),
            }
        )
        return ANSWERED
    is_opened = (_has_desktop() if opened is None else opened) and webbrowser.open(page.as_uri())
    typer.echo(f"  {page}{', opened in a browser' if is_opened else ''}")
    typer.echo(_outlook(folder))
    return ANSWERED


def commands(folder: Path) -> tuple[tuple[str, ...], ...]:
    """What is typed, one after the other, after `isoloss`."""
    runs, laws, page = (str(folder / name) for name in (RUNS, LAWS, PAGE))
    return (
        ("fit", runs, "--out", laws),
        ("predict", laws, *QUESTION),
        ("report", laws, "--runs", runs, "--out", page, *QUESTION, *KNOWN),
    )


def in_shell(arguments: tuple[str, ...]) -> str:
    """A command as it can be pasted, continued if it is longer than a line."""
    # What stays together, a word with its blanks and an option with its value, is folded as one word.
    words = (shlex.quote(word).replace(" ", "\0") for word in ("isoloss", *arguments))
    text = re.sub(r"( --\S+) ", "\\1\0", " ".join(words))
    first, *further = formatting.wrapped(text, PIPED_WIDTH - len("     \\"))
    return " \\\n    ".join((first, *further)).replace("\0", " ")


def _write_samples(folder: Path) -> None:
    """Put the tables into the folder. Raises BadInput if it has files that are not ours."""
    for parent in folder.parents:
        if parent.is_file():
            raise BadInput(f"--folder: {folder}: {parent} is a file: name another folder")
    runs = folder / RUNS
    sample = datasets.sample_text(datasets.RUNS)
    try:
        is_ours = runs.exists() and runs.read_text("utf-8") == sample
        is_in_use = folder.exists() and not is_ours and any(folder.iterdir())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"--folder: {folder}: {why}: name another folder") from error
    if is_in_use:
        raise BadInput(f"--folder: {folder} has files of your own: name another folder")
    write_file(runs, sample)
    write_file(folder / PROBES, datasets.sample_text(datasets.PROBES))


def _run(arguments: tuple[str, ...]) -> None:
    """Run a command without what it prints."""
    from isoloss.cli.application import run

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run(arguments)
    if code != ANSWERED:
        raise BadInput(f"{in_shell(arguments)} ends with {code}:\n{printed.getvalue()}")


def _answer(folder: Path) -> Prediction:
    answer = predict_from(read_laws(folder / LAWS), ASKED)
    assert isinstance(answer, Prediction)  # the command was run, and refused nothing
    return answer


# ------------------------------------------------------------------------------------- in words


def _introduction(folder: Path) -> str:
    runs = datasets.load_sample_runs().runs
    sizes = ", ".join(formatting.count(size) for size in sorted({run.params for run in runs}))
    params, tokens = map(formatting.count, (ASKED.params, ASKED.cpt_tokens))
    return (
        f"A checkpoint of {params} parameters with a validation loss of {ASKED.initial_loss:g} is to be trained\n"
        f"on {tokens} more tokens: with which learning rate and batch size? {len(runs)} runs of\n"
        f"smaller models answer that ({sizes} parameters). They are made up, so\n"
        f"that nothing has to be trained first: {folder / RUNS}"
    )


def _laws_in_words(folder: Path) -> str:
    laws = read_laws(folder / LAWS)
    formulas = map(hyperparameter_formula, (laws.learning_rate, laws.batch_size))
    return "\n".join(f"  {each}" for each in (*formulas, loss_compute_formula(laws.loss_compute)))


def _answer_in_words(folder: Path) -> str:
    answer = _answer(folder)
    rate = formatting.interval(answer.learning_rate, formatting.learning_rate)
    batch = formatting.interval(answer.batch_size, formatting.batch_size)
    return f"  learning rate           {rate}\n  batch size (sequences)  {batch}"


def _outlook(folder: Path) -> str:
    validate = in_shell(("validate", str(folder / LAWS), str(folder / PROBES), *QUESTION))
    return (
        "\nIn brackets are 80% intervals; isoloss predict prints what makes them wide.\n"
        "LR is the learning rate, B the batch size, L the loss in nats per token, C the\n"
        "compute in FLOPs. Next, ask whether the answer holds, by five short runs around\n"
        f"it (made up, too):\n\n{validate}"
    )


# ------------------------------------------------------------------------------------ the browser


def _has_desktop() -> bool:
    """Whether a page can be opened without taking over the terminal, by someone who looks at it."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    on_its_own = sys.platform in {"darwin", "win32"}
    return on_its_own or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
