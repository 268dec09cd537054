"""What a command of the command line leaves behind."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as one JSON object; fails where there is anything beside it."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    @property
    def words(self) -> str:
        """Standard output without where its lines are folded."""
        return " ".join(self.out.split())

    @property
    def error(self) -> str:
        """What it says of bad input, to programs if it was asked for JSON; fails where it ended otherwise."""
        assert self.code == 2, self.out
        return str(self.document["error"]["message"]) if self.out else self.err


Isoloss = Callable[..., Ended]
"""Runs a command line in this process: arguments in, what it left behind out."""
