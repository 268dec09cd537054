"""Finds held-out documents that have a near-duplicate among the training documents.

MinHash over token 8-grams in 4 bands of 8 rows: two documents share a key with probability
1 - (1 - s**8)**4 at a Jaccard similarity of s: 0.99 at 0.95, 0.89 at 0.9, 0.02 at 0.5. Near-duplicates
are reported, not removed.

Every 8-gram is hashed once, and falls into one of 32 bins whose smallest hash it may be (one
permutation hashing, Li, Owen and Zhang 2012), instead of being hashed 32 times. A bin that stays empty,
as in documents of few tokens, borrows from the next one that did not (Shrivastava and Li 2014).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from isoloss_trainer.shards import mix

BANDS = 4
ROWS = 8
BINS = BANDS * ROWS
BIN_BITS = 5
NGRAM = 8
MAX_SHINGLES = 20_000
"""Only the beginning of longer documents is compared."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.uint64(2**64 - 1)


def sketches(documents: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint64]:
    """BANDS keys of each document [documents, BANDS]; documents that share one are probably
    near-duplicates."""
    beginnings = [tokens[: MAX_SHINGLES + NGRAM - 1] for tokens in documents]
    sizes = np.array([len(tokens) for tokens in beginnings], dtype=np.int64)
    hashes, owners = _shingles(beginnings, sizes)
    smallest = np.full(len(documents) * BINS, _EMPTY, dtype=np.uint64)
    bins = (hashes >> np.uint64(64 - BIN_BITS)).astype(np.int64)
    np.minimum.at(smallest, owners * BINS + bins, hashes)
    return _band_keys(_filled(smallest.reshape(-1, BINS)))


def _shingles(
    documents: list[NDArray[np.uint32]], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """A hash of every NGRAM consecutive tokens, and the number of its document. Behind the end of a
    document follow zeros, which no token has, so that one of fewer tokens has shingles, too."""
    gap = NGRAM - 1
    firsts = np.concatenate([[0], np.cumsum(sizes + gap)])
    stream = np.zeros(firsts[-1] + gap, dtype=np.uint64)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    places = np.arange(len(owners)) + owners * gap
    stream[places] = np.concatenate([*documents, np.empty(0, np.uint32)]) + np.uint64(1)
    # Whole shingles only, but one at least of every document.
    whole = np.maximum(sizes - gap, np.minimum(sizes, 1))
    owners = np.repeat(np.arange(len(sizes)), whole)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(whole) - whole, whole)
    starts = firsts[owners] + within
    hashes = np.zeros(len(stream) - gap, dtype=np.uint64)
    for offset in range(NGRAM):
        hashes = hashes * _STEP + stream[offset : offset + len(hashes)]
    return mix(hashes[starts]), owners


def _filled(smallest: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each empty bin gets the value of the next filled one, changed by how far that is away."""
    filled = smallest.copy()
    for distance in range(1, BINS):
        empty = filled == _EMPTY
        if not empty.any():
            break
        borrowed = np.roll(smallest, -distance, axis=1)
        usable = empty & (borrowed != _EMPTY)
        filled[usable] = mix(borrowed[usable] * _STEP + np.uint64(distance))
    return filled


def _band_keys(smallest: NDArray[np.uint64]) -> NDArray[np.uint64]:
    rows = smallest.reshape(-1, BANDS, ROWS)
    keys = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), rows.shape[:2])
    for row in range(ROWS):
        keys = mix(keys * _STEP + rows[:, :, row])
    return keys


def count_twins(
    held_out: Sequence[NDArray[np.uint64]], training: Iterable[NDArray[np.uint64]]
) -> list[int]:
    """How many rows of each part of `held_out` [documents, BANDS] share a key with a row of `training`."""
    rows = np.concatenate(held_out)
    twins = np.zeros(len(rows), dtype=bool)
    for part in training:
        twins |= np.isin(rows, part).any(axis=1)
    ends = np.cumsum([len(part) for part in held_out])
    return [int(part.sum()) for part in np.split(twins, ends[:-1])]
