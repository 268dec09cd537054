"""Which documents are held out for validation, and the file with their texts."""

from __future__ import annotations

import gzip
import hashlib
import json

MAX_HELD_OUT_BYTES = 4 * 2**30
"""Size of a domain's texts: they are sorted in memory."""


def document_hash(text: str) -> bytes:
    """SHA-256 of the text: it decides about holding out, and the order of held-out documents."""
    return hashlib.sha256(text.encode()).digest()


def is_held_out(text: str, per_thousand: int) -> bool:
    """Whether a document is kept for validation."""
    return int.from_bytes(document_hash(text)[:8], "big") % 1000 < per_thousand


def pack_texts(texts: list[str]) -> bytes:
    """Gzipped JSON lines; equal texts give equal bytes."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    return gzip.compress(lines.encode(), compresslevel=3, mtime=0)


def unpack_texts(content: bytes) -> list[str]:
    """Undo `pack_texts`."""
    return [json.loads(line)["text"] for line in gzip.decompress(content).splitlines()]


def validation_texts(domain: str) -> str:
    """Path of the held-out documents' texts, in evaluation order, relative to the data folder."""
    return f"{domain}/validation.jsonl.gz"
