"""Whether losses fall with tokens as training makes them: several epochs, or a column in the wrong order, do not."""

from collections.abc import Iterator, Sequence

import numpy as np

from isoloss.laws.data.smoothing import DENSE
from isoloss.laws.data.trajectories import RISE_NATS, Trajectory
from isoloss.laws.results import SurfaceLaw

LATE = 0.5
"""Share of a run's tokens after which its loss is watched."""
FEWEST_LATE = 4
"""Evaluations there, or as many of its last ones."""
SURELY = 3.0
"""Standard errors by which a slope is above 0."""
NOTABLE_RISE = 0.003
"""Rise of ln L over these tokens that is no noise: 0.009 nats at 3."""
CONSIDERABLE = 0.2
"""Share of the runs that rise from which there is a warning: a few at high learning rates do in healthy sweeps."""
MOST = 0.5
"""Share of the runs that diverge from which there is a warning: losses in the wrong order look like that."""
USUAL_SLOPES = (0.01, 1.0)
"""-dL/dlnD, nats, at the end of runs: 0.06 to 0.13 on the published sweeps, 0.15 on the sample runs."""


def rising_warnings(trajectories: Sequence[Trajectory], surface: SurfaceLaw) -> Iterator[str]:
    """Sentences if most runs diverge, if many end above their lowest loss, and if losses hardly depend on tokens, or too much."""
    diverged = [t for t in trajectories if t.diverged]
    if len(diverged) > MOST * len(trajectories):
        yield (
            f"{len(diverged)} of {len(trajectories)} runs are marked as diverged, or end more than {RISE_NATS:g} nat above their "
            f"lowest loss ({diverged[0].name} first). They count up to that loss alone. If they did not diverge, check that each "
            "loss belongs to its tokens."
        )
    watched = [t for t in trajectories if len(t.log_tokens) >= DENSE and not t.diverged]
    rising = [t for t in watched if _rises(t)]
    if watched and len(rising) > CONSIDERABLE * len(watched):
        yield (
            f"The losses of {len(rising)} of {len(watched)} runs rise over the second half of their tokens ({rising[0].name} "
            "first). The laws count a loss as reached once a run was there. If the text was repeated, leave out what was trained after "
            "the lowest losses; if not, check that each loss belongs to its tokens."
        )
    low, high = USUAL_SLOPES
    if surface.token_slope is not None and not low <= surface.token_slope <= high:
        yield (
            f"At the end of the largest size's runs the loss falls by {surface.token_slope:.2g} nats per factor e of tokens; "
            f"{low:g} to {high:g} are usual. Check the units of tokens and losses, and whether the text was repeated."
        )


def _rises(t: Trajectory) -> bool:
    """Whether a straight line through the late evaluations surely rises, by more than noise."""
    late = np.flatnonzero(t.log_tokens >= t.log_tokens[-1] + np.log(LATE))
    late = (
        late
        if len(late) >= FEWEST_LATE
        else np.arange(len(t.log_tokens) - FEWEST_LATE, len(t.log_tokens))
    )
    x, y = t.log_tokens[late], t.log_losses[late]
    x = x - x.mean()
    spread = float((x**2).sum())
    slope = float((x * y).sum()) / spread
    residuals = y - y.mean() - slope * x
    error = float(np.sqrt((residuals**2).sum() / (len(x) - 2) / spread))
    return slope > SURELY * error and slope * float(np.ptp(x)) > NOTABLE_RISE
