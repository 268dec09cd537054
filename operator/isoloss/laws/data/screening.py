"""Which runs take part: without those that were excluded by name or that report losses that cannot be theirs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isoloss.laws.data.cells import Cell, make_cells
from isoloss.laws.data.outliers import Outlier, beyond_doubt, find_outliers
from isoloss.laws.data.trajectories import Collected, collect
from isoloss.laws.model import FitOptions, InvalidRunError, Run
from isoloss.laws.results import Exclusion
from isoloss.laws.run_noise import RunNoise


@dataclass(frozen=True)
class Screened:
    """The runs of a fit, and those that their neighbours contradict."""

    collected: Collected
    cells: list[Cell]
    """Of its trajectories."""
    left_out: tuple[Outlier, ...] = ()
    suspected: tuple[Outlier, ...] = ()
    """Named and kept."""
    noise_of_seeds: RunNoise | None = None
    """As all runs but those excluded by name show it."""


def screen(runs: Sequence[Run], options: FitOptions) -> Screened:
    """Collect the runs without those to exclude.

    Raises InvalidRunError for a name in `options.exclude` that no run has.
    """
    unknown = [name for name in options.exclude if name not in {run.name for run in runs}]
    if unknown:
        raise InvalidRunError(
            unknown[0], "exclude", "names a run that is not there: check its spelling"
        )
    dropped = {name: Exclusion(name, "excluded as asked") for name in options.exclude}
    left_out: list[Outlier] = []
    collected = collect([run for run in runs if run.name not in dropped])
    run_noise = collected.run_noise
    while True:
        cells = [] if collected.refusals else make_cells(collected.trajectories)
        found = find_outliers(collected.trajectories, cells)
        worst = beyond_doubt(found, collected.trajectories, left_out)
        if worst is None or options.keep_outliers:
            break
        left_out.append(worst)
        dropped[worst.run] = Exclusion(worst.run, worst.sentence)
        collected = collect([run for run in runs if run.name not in dropped], collected)
    collected = replace(collected, excluded=(*dropped.values(), *collected.excluded))
    return Screened(collected, cells, tuple(left_out), found, run_noise)
