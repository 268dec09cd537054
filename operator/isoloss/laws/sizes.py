"""Whether the sizes of a sweep are far enough apart to show what a size does."""

from collections.abc import Iterable

import numpy as np

from isoloss.laws.model import Refusal, RefusalReason

NARROWEST_SPREAD = 0.05
"""Root mean square of ln N, or of ln N and ln D across their common line, below which a trend drowns in scatter: the best
values of sizes scatter by as much (USUAL_SCATTER)."""


def refuse_alike_sizes(params: Iterable[float]) -> Refusal | None:
    """None if there is one size, or several that differ enough.

    The best values of each size scatter about any law by a few per cent. Over a small step in size that looks like any
    exponent at all, and a law through it is believed where it is asked about other sizes.
    """
    sizes = np.unique(np.fromiter(params, dtype=float))
    if len(sizes) < 2 or np.log(sizes).std() >= NARROWEST_SPREAD:
        return None
    least, most = float(sizes[0]), float(sizes[-1])
    return Refusal(
        RefusalReason.TOO_FEW_SIZES,
        f"The sizes are too alike ({least:.3g} to {most:.3g} parameters, {most / least - 1:.1%} apart) to show the effect of "
        "size: train another of at least twice as many parameters.",
        {"sizes": len(sizes), "smallest": least, "largest": most},
    )
