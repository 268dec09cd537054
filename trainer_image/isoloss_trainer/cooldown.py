"""How the learning rate of a cooldown decays."""

from __future__ import annotations

import math

from isoloss_contract.records import CooldownConfig


def rate_factors(config: CooldownConfig, steps: int) -> list[float]:
    """What each of the `steps` of a cooldown multiplies the learning rate by.

    The shape in the middle of each step: so the rate summed over tokens is nearly the same at every batch
    size, and no step is lost to a rate of zero. Linear decay and 1 - sqrt(x): Hägele et al. 2405.18392.
    """
    shares = ((number + 0.5) / steps for number in range(steps))
    if config.shape == "Linear":
        return [1.0 - share for share in shares]
    return [1.0 - math.sqrt(share) for share in shares]
