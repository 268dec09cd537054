"""Laws from wherever the runs are: a table's name, a data frame, what `read_runs` returned, or runs in memory."""

from collections.abc import Iterable
from dataclasses import replace
from os import PathLike

from isoloss.laws import FitOptions, Laws, Run
from isoloss.laws import fit_laws as fit_runs
from isoloss.run_sources import not_collected, read_runs
from isoloss.runs import RunSet
from isoloss.tables import InMemory, is_frame, is_listed
from isoloss.tables.decayed_ends import decay_warning
from isoloss.tables.run_objects import check_runs


def fit_laws(
    runs: str | PathLike[str] | InMemory | RunSet | Iterable[Run],
    options: FitOptions | None = None,
    *,
    provisional: bool | None = None,
) -> Laws:
    """Laws or typed refusals from the runs of a sweep.

    `runs` are those of `read_runs`, a list of `Run`, or what `read_runs` takes: the name of a table, the URI of a sweep,
    a data frame, a list of rows (dicts by column). `provisional` marks laws of a partial sweep; None: whether a run has not finished says it. What reading
    the runs warned of comes first among the laws' own warnings, and so with every answer of these laws.

    Raises BadInput for a table or sweep that cannot be used, TypeError for anything else, and InvalidRunError if a
    run's numbers are impossible (negative losses, tokens out of order, a unit that a table is refused for) or
    `options.exclude` has a name that no run has.

    >>> laws = isoloss.fit_laws("runs.csv")
    """
    if options is not None and not isinstance(options, FitOptions):
        raise TypeError(f"fit_laws takes options as FitOptions, not {type(options).__name__}")
    found = _run_set(runs)
    partial = found.provisional if provisional is None else provisional
    laws = fit_runs(found.runs, options or FitOptions(), provisional=partial)
    decayed = filter(None, [decay_warning(found.runs)])
    return replace(laws, warnings=(*found.warnings, *decayed, *laws.warnings))


def _run_set(runs: object) -> RunSet:
    if isinstance(runs, RunSet):
        return runs
    if isinstance(runs, str | PathLike) or is_frame(runs) or is_listed(runs):
        return read_runs(runs)
    if isinstance(runs, Run) or not isinstance(runs, Iterable):
        raise TypeError(f"fit_laws takes {_TAKEN}, not {type(runs).__name__}{not_collected(runs)}")
    listed = tuple(runs)
    for index, run in enumerate(listed):
        if not isinstance(run, Run):
            raise TypeError(
                f"fit_laws takes {_TAKEN}: item {index} of what was given is of type {type(run).__name__}"
            )
    return RunSet(listed, check_runs(listed))


_TAKEN = "what read_runs returned, a list of Run, the name of a table, the URI of a sweep, a list of rows or a data frame"
