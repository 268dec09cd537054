"""Which files hold documents, by the endings of their names: what the trainer reads, and `isoloss init` writes."""

from __future__ import annotations

from typing import Final

FORMATS: Final = (".parquet", ".jsonl", ".json", ".arrow", ".txt")
COMPRESSIONS: Final = (".gz", ".zst")
IN_WORDS: Final = f"{', '.join(FORMATS)}, plain or with {' or '.join(COMPRESSIONS)}"


def endings(name: str) -> tuple[str, str]:
    """One of FORMATS and one of COMPRESSIONS by a file's name, in either case; '' for one that it has not."""
    name = name.lower()
    compression = next((c for c in COMPRESSIONS if name.endswith(c)), "")
    return next(
        (f for f in FORMATS if name.removesuffix(compression).endswith(f)), ""
    ), compression
