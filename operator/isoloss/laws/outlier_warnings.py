"""What runs that their neighbours contradict, and sizes that the others do, do to the laws, in sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from isoloss.laws.data.cells import make_cells
from isoloss.laws.data.screening import Screened
from isoloss.laws.data.trajectories import Trajectory, collect
from isoloss.laws.model import Run
from isoloss.laws.results import SurfaceLaw
from isoloss.laws.surface.estimate import fit_joint_surface
from isoloss.laws.surface.uncertainty import usual_scatter
from isoloss.usual import BATCH_EXPONENT_ERRORS, USUAL_BATCH_EXPONENTS

MOST_UNUSUAL = 2.1
"""Scatter of sizes about the law, or distance of the batch size's exponent of N, in usual ones. In the sweeps of `make bench-science` they
are below 1.9 and 1.3; a batch size that is four or more times too small at one of three to five sizes makes the first 2.2 to 5.0, one that
is eight times too small at one of two sizes a factor of four apart the second above 3."""
MOST_COMPARED = 5
"""Runs for which the laws are fitted once more."""


def unlike_sizes(surface: SurfaceLaw) -> list[str]:
    """A warning of sizes that no law describes: in one of them a column may be in another unit, or of another run."""
    if surface.error is None or surface.optimum is None or surface.curvature is None:
        return []
    usual = usual_scatter(surface.curvature)
    scatter = float(np.sqrt(surface.error.scatter[1, 1] / usual[1, 1]))
    exponent = float(surface.optimum.batch_size.of_params)
    mean, deviation = USUAL_BATCH_EXPONENTS[0], BATCH_EXPONENT_ERRORS[0]
    if scatter >= MOST_UNUSUAL:
        problem = f"scatter about any law {scatter:.1f} times as much as usual"
    elif abs(exponent - mean) >= MOST_UNUSUAL * deviation:
        problem = f"give batch sizes that follow parameters^{exponent:.2g} at equal tokens, where {mean:g} +- {deviation:g} is usual"
    else:
        return []
    return [
        f"The best settings of the sizes {problem}. Check batch_size (sequences per optimizer step, not per device), sequence_length, "
        "tokens and params of each size: with one of them in another unit the answer is wrong."
    ]


def outlier_warnings(
    runs: Sequence[Run], screened: Screened, surface: SurfaceLaw
) -> Iterator[str]:
    """One sentence or more per run, with what the best settings would be with or without it."""
    # Of a run that diverged later on its first evaluations count: it is excluded in part, and stays.
    counted = {name for each in screened.collected.trajectories for name in each.names}
    names = {entry.run for entry in screened.collected.excluded} - counted
    for at, outlier in enumerate((*screened.left_out, *screened.suspected)):
        dropped = outlier in screened.left_out
        other = names - {outlier.run} if dropped else names | {outlier.run}
        words = f"{outlier.sentence} {'Left out' if dropped else 'Kept'}"
        if at < MOST_COMPARED:
            kept = [run for run in runs if run.name not in other]
            rest = collect(kept, screened.collected).trajectories
            words += f"; {'with' if dropped else 'without'} it{_change(rest, surface)}"
        yield words + ("." if dropped else "; check it, or exclude it by name.")


def _change(trajectories: Sequence[Trajectory], surface: SurfaceLaw) -> str:
    """What the other trajectories give at the largest size's most tokens instead."""
    other = fit_joint_surface(trajectories, make_cells(trajectories), "fitted")
    if other.optimum is None:
        return " there is no joint surface"
    largest = max(t.params for t in trajectories)
    most = max(t.log_tokens[-1] for t in trajectories if t.params == largest and t.usable)
    rate, batch = (float(np.exp(v)) for v in other.optimum.at(np.log(largest), most))
    found = f" the best learning rate of the largest size would be {rate:.3g} and its batch size {batch:.3g}"
    if surface.optimum is not None:
        rate, batch = (float(np.exp(v)) for v in surface.optimum.at(np.log(largest), most))
        found += f" instead of {rate:.3g} and {batch:.3g}"
    return found
