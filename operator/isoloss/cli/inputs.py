"""Options that several commands have, and checks of their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoloss.errors import BadInput
from isoloss.numbers import count_of

if TYPE_CHECKING:  # it needs the store's records, which the help does not
    from isoloss.stored_sweeps import StoredSweep

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", metavar="NAME", help="Namespace of the resource in a cluster."
    ),
]
LARGEST_COUNT = 2.0**53
"""Beyond it, not every whole number is a float."""


def choice(of: type[StrEnum], description: str) -> Any:
    """An option that takes one of these words, whatever their case, with its help."""
    return typer.Option(case_sensitive=False, metavar="|".join(of), help=description)


def refuse_idle(options: Mapping[str, tuple[object, object]], why: str) -> None:
    """Raise BadInput for an option, by its value and its default, that was given and would do nothing."""
    for name, (value, default) in options.items():
        if value != default:
            raise BadInput(f"--{name.replace('_', '-')}: {why}")


def positive(option: str, value: float | None) -> None:
    """Raise BadInput unless the option is absent or a positive, finite number."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise BadInput(f"{option}: {value:g} is not a positive, finite number")


def not_an_input(option: str, out: Path | None, inputs: Iterable[str | Path]) -> None:
    """Raise BadInput if a result would be written over a file that the command reads."""
    if out is None or not out.is_file():
        return
    for given in inputs:
        path = Path(str(given).removeprefix("file://"))
        if path.is_file() and path.samefile(out):
            raise BadInput(
                f"{option} {out}: this file is read by the command, and would be overwritten: name another one"
            )


def count(option: str, text: str) -> int:
    """A number of tokens or parameters as people write it: 55B, 2.5T, 800M, 55e9. Raises BadInput."""
    value = count_of(text) or 0.0
    if not 0.5 < value <= LARGEST_COUNT:
        hint = " of at most 9e15" if value > LARGEST_COUNT else ""
        raise BadInput(
            f"{option}: {text[:40]} is not a count{hint}: write 55B, 2.5T, 800M or 55e9"
        )
    return round(value)


def optional_count(option: str, text: str | None) -> float | None:
    """The count that an option gives; None without the option. Raises BadInput."""
    return None if text is None else float(count(option, text))


def sweep_in_store(what: str, namespace: str) -> StoredSweep | None:
    """The sweep that a URI names; None for a resource in a cluster. Raises BadInput."""
    from isoloss.stored_sweeps import is_sweep_uri, open_sweep

    if not is_sweep_uri(what):
        return None
    if namespace:
        raise BadInput(f"--namespace: {what} is a URI in the store, which has none")
    return open_sweep(what)
