"""Turns the data order into batches of tokens, read in a thread while the step before is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
