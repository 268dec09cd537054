"""The training data in its order: batches of tokens, read in a thread while the step before is computed.

Sequence number i of a run is a function of (seed, i) alone. It does not depend on batch size, micro-batch or number of
devices, so that runs that differ in these read the same tokens in the same order, and resuming needs no state but the
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from isoloss_trainer.shards import PreparedData
from isoloss_trainer.world import World

# ----------------------------------------------------------------------------------------- the order


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


# ------------------------------------------------------------------------------------------- batches


REQUESTS = 16
"""Sequences that are asked for at once: a request takes tens of milliseconds, however small."""


class TrainingSequences:
    """The endless training stream of a mixture: sequence i is the same for every batch size.

    Each process reads its own share of a batch. The batch that follows is read in a thread while this one
    is used, and for an accelerator into pinned memory, from which it is copied without waiting. What is
    read follows from the numbers asked for alone.
    """

    def __init__(
        self,
        data: PreparedData,
        mixture: Mapping[str, float],
        seed: int,
        world: World | None = None,
    ) -> None:
        self._width = data.manifest.sequence_length + 1
        self._domains = {name: data.training(name) for name in mixture}
        sizes = {name: domain.sequences for name, domain in self._domains.items()}
        self.order = DataOrder(sizes, mixture, seed)
        self._world = world or World()
        self._requests = None if data.is_mapped else ThreadPoolExecutor(REQUESTS, "sequences")
        self._reader = ThreadPoolExecutor(1, "batches", self._enter_reader)
        self._ahead: tuple[tuple[int, int], Future[torch.Tensor]] | None = None

    def read(self, start: int, count: int) -> torch.Tensor:
        """Sequences `start` … `start + count - 1`: int64 [count, S + 1]. Those of other processes'
        shares are zeros. Raises what reading them raised, such as BadData."""
        ahead, self._ahead = self._ahead, None
        asked = ahead[1] if ahead and ahead[0] == (start, count) else self._ask(start, count)
        # Before waiting, so that there is no pause between the two.
        self._ahead = ((start + count, count), self._ask(start + count, count))
        return asked.result()

    def close(self) -> None:
        """Ask for nothing more, and end the thread."""
        if self._requests is not None:
            self._requests.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _ask(self, start: int, count: int) -> Future[torch.Tensor]:
        # The order is counted here: it is not for two threads.
        numbers = self.order.take(start, count)[self._world.share(count)]
        if self._requests is None:
            windows = (self._window(*number) for number in numbers)
            return self._reader.submit(self._batch, windows, count)
        asked = [self._requests.submit(self._window, *number) for number in numbers]
        return self._reader.submit(self._batch, (window.result() for window in asked), count)

    def _window(self, domain: str, number: int) -> NDArray[np.uint32]:
        return self._domains[domain].window(number)

    def _batch(self, windows: Iterable[NDArray[np.uint32]], count: int) -> torch.Tensor:
        """In the reader's thread."""
        batch = np.zeros((count, self._width), np.int64)
        share = self._world.share(count)
        for row, window in zip(range(share.start, share.stop), windows, strict=True):
            batch[row] = window
        found = torch.from_numpy(batch)
        return found if self._world.on_cpu else found.pin_memory()

    def _enter_reader(self) -> None:
        """Pinning is a call to the device that a thread has chosen, which is the first by default."""
        if not self._world.on_cpu:
            torch.cuda.set_device(self._world.device)
