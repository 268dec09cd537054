"""A short hash of every training sequence, so that one of them can be read and trusted without the
gigabytes of its shard."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

HASH_BYTES = 8
"""BLAKE2b cut to 64 bits: against damage and mistaken files; the manifest is not signed either."""


def windows_path(shard_path: str) -> str:
    """Path of a shard's hashes, next to it."""
    return f"{shard_path}.windows"


def sequence_count(tokens: int, length: int) -> int:
    """Sequences of `length` + 1 tokens that overlap by one."""
    return max(0, (tokens - 1) // length)


def sequence_hash(tokens: NDArray[np.uint32]) -> bytes:
    """Hash of one sequence of little-endian tokens."""
    content = np.ascontiguousarray(tokens, dtype="<u4").data
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


def sequence_hashes(tokens: NDArray[np.uint32], length: int) -> bytes:
    """Hashes of all sequences in a shard, concatenated."""
    return b"".join(
        sequence_hash(tokens[number * length : (number + 1) * length + 1])
        for number in range(sequence_count(len(tokens), length))
    )
