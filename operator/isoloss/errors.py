"""The error for input that cannot be used."""

import difflib
import os
from pathlib import Path


class BadInput(ValueError):
    """A file, a table, a sweep or an option cannot be used; the message names it and says why.

    Base class of `BadTable`, `BadSweep` and `UnknownLaw`.

    >>> try:
    ...     isoloss.read_runs("no-such-table.csv")
    ... except isoloss.BadInput as error:
    ...     print(error)
    no-such-table.csv: No such file or directory: check its path
    """


def why_unreadable(path: str | Path, error: OSError) -> str:
    """What the system says of a file that cannot be read, and the one beside it whose name is most like it."""
    why = error.strerror or "cannot be read"
    folder, name = os.path.split(path)
    if isinstance(error, FileNotFoundError) and os.path.isdir(folder or "."):
        close = difflib.get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.75)
        return f"{why}: " + (
            f"did you mean {os.path.join(folder, close[0])}?" if close else "check its path"
        )
    return f"{why}: name a file" if isinstance(error, IsADirectoryError) else why
