"""What synthetic trainers did, from the small files that they leave (SYNTHETIC_LOG)."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Traces:
    """Starts, ends and interruptions of runs in one folder."""

    folder: Path

    def read(self, what: str) -> list[Json]:
        """All traces of a kind (start, end, interrupted), oldest first."""
        found = [json.loads(path.read_text()) for path in self.folder.glob(f"{what}-*.json")]
        return sorted(found, key=lambda trace: trace["at"])

    def starts(self) -> Counter[str]:
        """How often each point was begun."""
        return Counter(trace["key"] for trace in self.read("start"))

    def ends(self) -> Counter[str]:
        """How often each point was trained to its end."""
        return Counter(trace["key"] for trace in self.read("end"))

    def most_at_once(self) -> int:
        """Most points that trained at the same time."""
        changes = [(trace["at"], 1) for trace in self.read("start")]
        changes += [(trace["at"], -1) for trace in self.read("end")]
        changes += [(trace["at"], -1) for trace in self.read("interrupted")]
        most = running = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        return most
