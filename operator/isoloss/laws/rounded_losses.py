"""Whether losses were rounded to steps that are larger than an evaluation's noise: in bfloat16, or to two decimals; and whether they
were carried on to rows without an evaluation."""

from collections.abc import Sequence

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.data.cells import LATER
from isoloss.laws.model import Run
from isoloss.usual import EVALUATION_NOISE

MOST_LATE = 64
"""Late evaluations of a run that are looked at: its last."""
FEWEST = 12
"""Late evaluations of all runs below which nothing is said."""


def rounding_warnings(runs: Sequence[Run]) -> list[str]:
    """A sentence if late losses, of all sizes, of one or of the runs that are in bfloat16, repeat one another, and those that do lie
    in steps that are too coarse; or if most repeat the one before."""
    sizes = [[run for run in runs if run.params == size] for size in {run.params for run in runs}]
    eight_bits = [run for run in runs if _has_eight_bits(_late(run))]
    found = [_rounding(some) for some in (runs, *sizes, eight_bits)] + [_carried(runs)]
    return [next(filter(None, found))] if any(found) else []


def _rounding(runs: Sequence[Run]) -> str:
    late = np.concatenate([_late(run) for run in runs] or [np.empty(0)])
    if len(late) < FEWEST:
        return ""
    values, counts = np.unique(late, return_counts=True)
    repeated, share = values[counts > 1], counts[counts > 1].sum() / len(late)
    if 2.0 * share < 1.0 or len(repeated) < 2:
        return ""
    steps = np.diff(repeated)
    # Losses rounded to steps err by a uniform distribution as wide as one.
    if steps.min() < np.sqrt(12.0) * EVALUATION_NOISE:
        return ""
    sizes = {run.params for run in runs}
    where = f" at {runs[0].params:.3g} parameters" if len(sizes) == 1 else ""
    return (
        f"{share:.0%} of the late losses{where} repeat one another, in steps of {steps.min():.3g} and more: they are rounded, as bfloat16 or "
        "two decimals round them, by more than evaluations scatter. Best values move, and intervals do not show it: take the losses "
        "in float32, with four decimals or more."
    )


def _carried(runs: Sequence[Run]) -> str:
    """Runs of which each loss stands in several rows."""
    late = [found for run in runs if len(np.unique(found := _late(run))) > 1]
    same = np.concatenate([np.diff(each) == 0.0 for each in late] or [np.empty(0)])
    if len(same) < FEWEST or 2.0 * same.mean() < 1.0:
        return ""
    return (
        f"{same.mean():.0%} of the late losses are that of the row before, to the last digit: they were carried on to rows without an "
        "evaluation, whose tokens they do not belong to. Bring the rows of evaluations alone."
    )


def _has_eight_bits(losses: Array) -> bool:
    """Whether all are numbers of bfloat16, but for what four decimals leave of them."""
    bits = 256.0 * np.frexp(losses)[0]
    return bool(np.all(np.abs(bits - np.round(bits)) < 0.01))


def _late(run: Run) -> Array:
    """The finite losses of its second half: before, they are far apart."""
    late: Array = run.losses[int(LATER * len(run.losses)) :][-MOST_LATE:]
    return late[np.isfinite(late)]
