"""Quantiles of Student's distribution, without scipy.

A prediction needs nothing else of scipy.special, whose import takes longer than the prediction.
"""

import numpy as np

from isoloss.laws.arrays import Array

STEPS = 4000
"""Steps of the integration; errors are below 1e-6 of a quantile from one degree of freedom on."""


def student_quantiles(freedom: float, levels: Array) -> Array:
    """Student's t with `freedom` degrees of freedom (at least 1), of probabilities between 0 and 1.

    With t = sqrt(freedom) tan(a), the density of a is proportional to cos(a)^(freedom - 1): smooth and
    on a bounded range, where Simpson's rule sums it up.
    """
    angles = np.linspace(-0.5 * np.pi, 0.5 * np.pi, 2 * STEPS + 1)
    density = np.cos(angles).clip(0.0) ** (freedom - 1.0)
    pieces = (density[:-2:2] + 4.0 * density[1:-1:2] + density[2::2]) / 3.0
    reached = np.concatenate([[0.0], np.cumsum(pieces)])
    found = np.interp(levels, reached / reached[-1], angles[::2])
    return np.asarray(np.sqrt(freedom) * np.tan(found))
