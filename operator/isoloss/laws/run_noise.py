"""How much the losses of one configuration differ from seed to seed, as runs with several seeds show it.

It is what differences between two runs are to be judged by. The residuals of the joint surface are no measure of it:
they hold how far losses over a wide grid are from any such surface as well.
"""

import math
from dataclasses import dataclass

from isoloss.laws.arrays import Count, NotNegative
from isoloss.usual import USUAL_FREEDOM, USUAL_NOISE


@dataclass(frozen=True)
class RunNoise:
    """Measured on runs that differ in nothing but their seed."""

    squares: NotNegative
    """Sum of squares of losses about the mean of their configuration, nats per token squared, over the last third of
    the tokens that its seeds share."""
    freedom: Count
    """Degrees of freedom: runs less one, over all configurations; at least 1."""

    @property
    def deviation(self) -> float:
        """Standard deviation of a loss between seeds, nats per token, as it was measured."""
        return math.sqrt(self.squares / self.freedom)

    @property
    def believed(self) -> float:
        """The standard deviation to reckon with, nats per token.

        Few seeds may agree by chance: what is usual counts too, if it is more. The result is that of the
        normal distribution as wide as the Student distribution of so many degrees of freedom.
        """
        freedom = self.freedom + USUAL_FREEDOM
        pooled = (self.squares + USUAL_FREEDOM * USUAL_NOISE**2) / freedom
        variance = max(pooled, self.deviation**2)
        return math.sqrt(variance * freedom / (freedom - 2))
