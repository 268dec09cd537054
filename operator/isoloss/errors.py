"""The error for input that cannot be used, wherever it came from."""

from __future__ import annotations


class BadInput(ValueError):
    """A file, a table, a sweep or an option cannot be used; the message names it and says why.

    Base class of `BadTable`, `BadSweep` and `UnknownLaw`.
    """
