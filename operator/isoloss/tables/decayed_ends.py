"""Runs whose last losses fall off their own course, as those evaluated after the learning rate was decayed do."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from isoloss import formatting
from isoloss.laws import Array, Run
from isoloss.usual import EVALUATION_NOISE, SURELY

LONGEST_DECAY = 0.6
"""Share of a run's tokens after which an end begins."""
COURSE, FEWEST, LEAST = 2.0, 4, 3
"""Factor in tokens, and evaluations at least, of the course before an end; of a run that has no more."""
EXPONENT = 0.2
"""A course is straight over tokens^-0.2. Losses have larger exponents, 0.28 to 0.5 in published laws, so they flatten over it."""
FALL_NATS, SURE = 0.01, 6.0
"""Fall and standard errors beyond which a run is named by itself."""
MANY = 5
"""Runs whose median fall tells, too. Of the 21 published runs at a constant rate (Hägele et al.), with 4 to all of their evaluations, it is
at most 0.0003 nats, as a straight course lies above the true one; of those whose rate was decayed 0.012 and more."""

MEDIAN_ERROR = 1.86
"""Standard error of a median, in median absolute deviations over the root of the count."""

_Ends: TypeAlias = tuple[Array, Array, Array, Array]
"""By the evaluation with which an end begins: its tokens; nats by which the last loss is below the line through the course before;
the losses' scatter about that line, nats; a fall's standard error in scatters."""


def decay_warning(runs: Sequence[Run]) -> str | None:
    """A warning that names the runs of a fit whose ends fall off their courses; None: none does."""
    watched = {run.name: _ends(run) for run in runs if run.loss_kind is None and not run.diverged}
    ends = {name: found for name, found in watched.items() if found is not None}
    if not ends:
        return None
    usual = float(np.median([np.median(scatter) for _, _, scatter, _ in ends.values()]))
    last = np.array([falls[-1] for _, falls, _, _ in ends.values()])
    error = MEDIAN_ERROR * np.median(np.abs(last - np.median(last))) / np.sqrt(len(last))
    is_common = len(ends) >= MANY and np.median(last) > max(FALL_NATS, SURELY * error)
    falling: list[tuple[float, float, str]] = []
    for name, (tokens, falls, scatter, reach) in ends.items():
        errors = falls / (np.maximum(scatter, max(usual, EVALUATION_NOISE)) * reach)
        at = int(np.argmax(errors))
        if falls[at] > FALL_NATS and (is_common or errors[at] > SURE):
            place = f"{name} from {formatting.count(float(tokens[at]))} tokens"
            falling.append((float(errors[at]), float(falls[at]), place))
    if not falling:
        return None
    fall = float(np.median([nats for _, nats, _ in falling]))
    places = ", ".join(place for _, _, place in falling[:3]) + ", ..." * (len(falling) > 3)
    return (
        f"The last losses of {len(falling)} of {len(ends)} runs are {fall:.2g} nats below the course of their earlier ones ({places}), as "
        "those evaluated after the learning rate was decayed are. Laws are of losses of one kind: leave these evaluations out, or, if every "
        "run was decayed, bring its last evaluation alone, of runs of several lengths."
    )


def _ends(run: Run) -> _Ends | None:
    """None where a run has too few evaluations."""
    seen = np.isfinite(run.losses)
    log_tokens, y = np.log(run.tokens[seen]), run.losses[seen]
    fewest = min(FEWEST, len(y) - 1)
    if fewest < LEAST:
        return None
    late = int(np.searchsorted(log_tokens, log_tokens[-1] + np.log(LONGEST_DECAY)))
    starts = np.arange(max(fewest, late), len(y))
    first = np.searchsorted(log_tokens, log_tokens[starts] - np.log(COURSE))
    first = np.minimum(first, starts - fewest)
    x = np.expm1(EXPONENT * (log_tokens[-1] - log_tokens))  # 0 at the last
    y = y - y[-1]
    # Sums over each course, as differences of running ones.
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y])
    sums = np.concatenate([np.zeros((len(terms), 1)), terms.cumsum(axis=1)], axis=1)
    count, sx, sy, sxx, sxy, syy = sums[:, starts] - sums[:, first]
    spread = sxx - sx * sx / count
    slope = (sxy - sx * sy / count) / spread
    squares = syy - sy * sy / count - slope * slope * spread
    scatter = np.sqrt(np.maximum(squares, 0.0) / (count - 2.0))
    reach = np.sqrt(1.0 + 1.0 / count + (sx / count) ** 2 / spread)
    return run.tokens[seen][starts], (sy - slope * sx) / count, scatter, reach
