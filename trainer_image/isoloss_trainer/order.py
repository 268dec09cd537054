"""The order of the training data: sequence number i of a run is a function of (seed, i) alone.

It does not depend on batch size, micro-batch or number of devices, so that runs that differ in these
read the same tokens in the same order, and resuming needs no state but the count.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples are spread most evenly over 64 bits."""
_MASK = 2**64 - 1


def domain_of(start: int, count: int, shares: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Domain of each of the `count` sequences from number `start` on.

    A Weyl sequence compared with the cumulative shares: any stretch contains each domain in its share
    to within a few sequences, so that short runs see the same mixture as long ones.
    """
    numbers = np.arange(start, start + count, dtype=np.uint64)
    points = numbers * np.uint64(_GOLDEN) + np.uint64(_mixed(seed, 0, 0))
    limits = [min(_MASK, int(share * 2.0**53) << 11) for share in np.cumsum(shares)[:-1]]
    return np.searchsorted(np.array(limits, dtype=np.uint64), points, side="right")


def permutation(size: int, seed: int, domain: int, epoch: int) -> NDArray[np.int64]:
    """A shuffle of range(`size`) that does not depend on library versions."""
    keys = np.arange(size, dtype=np.uint64) * np.uint64(_GOLDEN)
    keys = mix(keys + np.uint64(_mixed(seed, domain + 1, epoch)))
    return np.argsort(keys, kind="stable")


class DataOrder:
    """Which (domain, sequence) is number i. Any order of calls works; ascending order is cheap."""

    def __init__(self, sizes: Mapping[str, int], mixture: Mapping[str, float], seed: int) -> None:
        self.names = sorted(mixture)
        self._sizes = [sizes[name] for name in self.names]
        self._shares = np.array([mixture[name] for name in self.names])
        self._seed = seed
        self._counted = 0
        self._seen = np.zeros(len(self.names), dtype=np.int64)
        self._permutations: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def take(self, start: int, count: int) -> list[tuple[str, int]]:
        """Domain and sequence number of the run's sequences `start` … `start + count - 1`."""
        self._count_to(start)
        domains = domain_of(start, count, self._shares, self._seed)
        seen = self._seen.copy()
        taken = []
        for domain in domains.tolist():
            taken.append((self.names[domain], self._sequence(domain, int(seen[domain]))))
            seen[domain] += 1
        return taken

    def epochs(self, sequences: int) -> dict[str, float]:
        """How many times each domain has been read after `sequences` sequences."""
        self._count_to(sequences)
        pairs = zip(self.names, self._seen.tolist(), self._sizes, strict=True)
        return {name: seen / size for name, seen, size in pairs}

    def _sequence(self, domain: int, position: int) -> int:
        epoch, within = divmod(position, self._sizes[domain])
        known = self._permutations.get(domain)
        if known is None or known[0] != epoch:
            known = (epoch, permutation(self._sizes[domain], self._seed, domain, epoch))
            self._permutations[domain] = known
        return int(known[1][within])

    def _count_to(self, start: int, at_once: int = 2**20) -> None:
        """Count the sequences of each domain before number `start`."""
        if start < self._counted:
            self._counted, self._seen = 0, np.zeros_like(self._seen)
        while self._counted < start:
            count = min(at_once, start - self._counted)
            domains = domain_of(self._counted, count, self._shares, self._seed)
            self._seen = self._seen + np.bincount(domains, minlength=len(self.names))
            self._counted += count


def _mixed(*numbers: int) -> int:
    state = 0
    for number in numbers:
        state = int(mix(np.array([(state * _GOLDEN + number + 1) & _MASK], np.uint64))[0])
    return state


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit affects every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
