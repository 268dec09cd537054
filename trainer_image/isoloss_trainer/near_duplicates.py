"""Finds held-out documents that have a near-duplicate among the training documents.

MinHash over token 8-grams in 4 bands of 8 rows: two documents share a key with probability
1 - (1 - s**8)**4 at a Jaccard similarity of s: 0.99 at 0.95, 0.89 at 0.9, 0.02 at 0.5. Near-duplicates
are reported, not removed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoloss_trainer.order import mix

BANDS = 4
ROWS = 8
NGRAM = 8
MAX_SHINGLES = 20_000
"""Only the beginning of longer documents is compared."""

_random = np.random.Generator(np.random.Philox(key=8))
_MULTIPLIERS = _random.integers(0, 2**63, size=BANDS * ROWS, dtype=np.uint64) * np.uint64(2) + (
    np.uint64(1)
)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def sketch(tokens: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """BANDS keys of a document; documents that share one are probably near-duplicates."""
    shingles = mix(_shingles(tokens[: MAX_SHINGLES + NGRAM].astype(np.uint64)))
    smallest = np.array([mix(shingles * m).min() for m in _MULTIPLIERS], dtype=np.uint64)
    rows = smallest.reshape(BANDS, ROWS)
    keys = np.arange(BANDS, dtype=np.uint64)
    for row in rows.T:
        keys = mix(keys * _STEP + row)
    return keys


def count_twins(held_out: NDArray[np.uint64], training: list[NDArray[np.uint64]]) -> int:
    """How many rows of `held_out` [documents, BANDS] share a key with a row of `training`."""
    twins = np.zeros(len(held_out), dtype=bool)
    for part in training:
        twins |= np.isin(held_out, part).any(axis=1)
    return int(twins.sum())


def _shingles(tokens: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of every NGRAM consecutive tokens; of the whole document where it is shorter."""
    width = min(NGRAM, len(tokens))
    count = len(tokens) - width + 1
    hashes = np.zeros(max(count, 1), dtype=np.uint64)
    for offset in range(width):
        hashes = hashes * _STEP + tokens[offset : offset + count] + np.uint64(1)
    return hashes
