"""Turns the data order into batches of tokens, read while the step before is computed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from isoloss_trainer.order import DataOrder
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.world import World

REQUESTS = 16
"""Sequences that are asked for at once: a request takes tens of milliseconds, however small."""


class TrainingSequences:
    """The endless training stream of a mixture: sequence i is the same for every batch size.

    Each process reads its own share of a batch. Where reading takes requests, the share of the batch
    that follows is asked for while this one is used.
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
        self._requests = None if data.is_local else ThreadPoolExecutor(REQUESTS, "sequences")
        self._ahead: tuple[tuple[int, int], list[Future[NDArray[np.uint32]]]] | None = None

    def read(self, start: int, count: int) -> torch.Tensor:
        """Sequences `start` … `start + count - 1`: int64 [count, S + 1]. Those of other processes'
        shares are zeros."""
        batch = np.zeros((count, self._width), np.int64)
        if windows := self._windows(start, count):
            batch[self._world.share(count)] = windows
        return torch.from_numpy(batch)

    def close(self) -> None:
        """Ask for nothing more."""
        if self._requests is not None:
            self._requests.shutdown(wait=False, cancel_futures=True)

    def _windows(self, start: int, count: int) -> list[NDArray[np.uint32]]:
        if self._requests is None:
            return [
                self._domains[name].window(number) for name, number in self._mine(start, count)
            ]
        ahead, self._ahead = self._ahead, None
        asked = ahead[1] if ahead and ahead[0] == (start, count) else self._ask(start, count)
        # Before waiting, so that there is no pause between the two.
        self._ahead = ((start + count, count), self._ask(start + count, count))
        return [window.result() for window in asked]

    def _ask(self, start: int, count: int) -> list[Future[NDArray[np.uint32]]]:
        assert self._requests is not None
        return [
            self._requests.submit(self._domains[name].window, number)
            for name, number in self._mine(start, count)
        ]

    def _mine(self, start: int, count: int) -> list[tuple[str, int]]:
        return self.order.take(start, count)[self._world.share(count)]
