"""When a run is evaluated and when it is given up: rules over token counts, nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isoloss_contract.records import EvaluationConfig

EXPLODED_NATS = 1.0
"""A loss this far above the first step's …"""
EXPLODED_STEPS = 100
"""… for this many steps in a row is lost."""


def evaluation_tokens(config: EvaluationConfig, tokens: int) -> list[int]:
    """The fixed token counts up to `tokens` at which any run is evaluated."""
    counts = []
    number = 0
    while (count := round(config.first_tokens * 10 ** (number / config.per_decade))) <= tokens:
        counts.append(count)
        number += 1
    return counts


def evaluation_steps(config: EvaluationConfig, batch_tokens: int, steps: int) -> frozenset[int]:
    """The steps, counted from 1, after which a run of `steps` is evaluated by schedule: the first
    ones that reach each count."""
    counts = evaluation_tokens(config, steps * batch_tokens)
    return frozenset(-(-count // batch_tokens) for count in counts)


@dataclass
class Watch:
    """Decides step by step whether the training loss is lost."""

    first_loss: float | None = None
    high_steps: int = 0

    def is_lost(self, loss: float) -> bool:
        """Take in the next step's loss, nats per token."""
        if not math.isfinite(loss):
            return True
        if self.first_loss is None:
            self.first_loss = loss
        self.high_steps = self.high_steps + 1 if loss > self.first_loss + EXPLODED_NATS else 0
        return self.high_steps >= EXPLODED_STEPS
