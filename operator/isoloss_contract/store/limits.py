"""The most that each kind of object in the store may be, and what it needs.

A limit of values is one of time: parsed, a million empty lists take a hundred times as long as one string
of as many bytes, and up to ten copies of a document are made when it is refused.
"""

from dataclasses import dataclass
from typing import Final

from isoloss_contract.store.errors import BadRecord


@dataclass(frozen=True)
class Limit:
    """The most that an object of some kind may be."""

    max_bytes: int
    max_values: int
    """Numbers, strings, lists and mappings; a comma in a string counts as well."""

    def check(self, content: bytes, source: str) -> None:
        """Raises BadRecord naming `source`."""
        self.check_size(content, source)
        values = sum(map(content.count, (b",", b"[", b"{")))
        if values > self.max_values:
            raise BadRecord(f"{source}: {values} values, more than {self.max_values}")

    def check_size(self, content: bytes, source: str) -> None:
        """The same for its bytes alone: those of a compressed object hold no values."""
        if len(content) > self.max_bytes:
            raise BadRecord(f"{source}: larger than {self.max_bytes} bytes")


MANIFEST: Final = Limit(16 * 2**20, 150_000)
"""Tokens of 30,000 shards; 15,000 of them (a trillion tokens) take 4.0 MB and 75,000 values."""
RESULT: Final = Limit(64 * 2**10, 2_000)
"""Result of a point. The largest takes 3 kB."""
EVALUATION: Final = Limit(64 * 2**10, 2_000)
"""Evaluation of a checkpoint. 8 kB with 64 domains."""
PROGRESS: Final = Limit(16 * 2**10, 500)
"""Progress report of a point. 0.5 kB."""
FIT: Final = Limit(8 * 2**20, 160_000)
"""fit.json. A step of a search that decides on 10,000 points takes 3.1 MB and 120,000 values."""
LAWS: Final = Limit(4 * 2**20, 150_000)
"""laws.json. Less than 2 MB for any number of runs."""
LEDGER: Final = Limit(16 * 2**20, 0)
"""A compressed ledger. 10,000 points take 2 MB; its lines have limits of their own."""
LEDGER_HEAD: Final = Limit(8 * 2**20, 120_000)
"""First line of a ledger. With 10,000 additions 1.3 MB and 60,000 values."""
LINE: Final = Limit(64 * 2**10, 2_000)
"""Line of a trajectory, or of a ledger, where a point that failed often takes 1.5 kB."""
MODEL_CONFIG: Final = Limit(2**20, 50_000)
"""A checkpoint's config.json, which others write."""
LARGEST: Final = Limit(16 * 2**20, 150_000)
"""Any other record."""
