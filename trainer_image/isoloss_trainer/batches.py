"""Turns the data order into batches of tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from isoloss_trainer.order import DataOrder
from isoloss_trainer.shards import PreparedData


class TrainingSequences:
    """The endless training stream of a mixture: sequence i is the same for every batch size."""

    def __init__(self, data: PreparedData, mixture: Mapping[str, float], seed: int) -> None:
        self._domains = {name: data.training(name) for name in mixture}
        sizes = {name: domain.sequences for name, domain in self._domains.items()}
        self.order = DataOrder(sizes, mixture, seed)

    def read(self, start: int, count: int) -> torch.Tensor:
        """Sequences `start` … `start + count - 1`: int64 [count, S + 1]."""
        places = self.order.take(start, count)
        windows = [self._domains[domain].window(number) for domain, number in places]
        return torch.from_numpy(np.stack(windows).astype(np.int64))
