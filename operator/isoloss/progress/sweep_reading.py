"""Reads the state of a sweep from the store, again and again: the laws only if they have changed."""

from __future__ import annotations

from isoloss.errors import BadInput
from isoloss.laws import STATUS_WORDS, Laws, law_rows
from isoloss.progress.moment import Moment
from isoloss.progress.operator_files import FitSummary, read_fit, read_status
from isoloss.progress.resources import View, planned_flops
from isoloss.progress.sweep_state import asks_for_progress, sweep_state
from isoloss.stored_sweeps import StoredSweep, open_sweep, stored_laws
from isoloss.summaries import not_yet
from isoloss_contract import layout
from isoloss_contract.records import PointProgress
from isoloss_contract.store import NotFound, StoreError


class StoredSweepReader:
    """Reads one sweep in the store."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        """As given, and once it is read the sweep's own folder."""
        self._laws_sha256 = ""
        self.laws: Laws | None = None
        """Those of the newest reading; None if there were none."""

    def read(self) -> Moment:
        """Its status as the operator copied it last, and its points. Raises BadSweep if the store or the sweep
        cannot be read."""
        sweep = open_sweep(self.uri)
        # A name that two sweeps have in turn must not change what is watched.
        self.uri = sweep.uri
        paths = {
            layout.point_progress(record.key): record.key
            for record in sweep.ledger.points
            if asks_for_progress(record)
        }
        found = sweep.store.read_many(paths, PointProgress)
        # Progress is for display only: what cannot be read is shown as not reported.
        progress = {
            paths[path]: each for path, each in found.items() if isinstance(each, PointProgress)
        }
        try:
            laws = self.laws = self._read_laws(sweep, read_fit(sweep.store, sweep.folder))
        except StoreError as error:
            raise BadInput(str(error)) from error
        view = read_told(sweep)
        is_over = view.is_true(view.sweep, "Ready")
        lines = laws_in_lines(laws, is_over=is_over) if laws is not None else ()
        told = planned_flops(view)
        return Moment(view, sweep_state(sweep.ledger, progress, lines, told))

    def _read_laws(self, sweep: StoredSweep, fit: FitSummary | None) -> Laws | None:
        if fit is None or not fit.laws_sha256:
            return None
        if fit.laws_sha256 != self._laws_sha256:
            try:
                self.laws = stored_laws(sweep)
            except NotFound:
                return None
            self._laws_sha256 = fit.laws_sha256
        return self.laws


def read_told(sweep: StoredSweep) -> View:
    """What the operator told last of a sweep in the store. Raises BadInput if that cannot be read."""
    try:
        return View(read_status(sweep.store, sweep.folder))
    except StoreError as error:
        raise BadInput(str(error)) from error


def laws_in_lines(laws: Laws, *, is_over: bool) -> tuple[str, ...]:
    """A line for each law; while the sweep runs, a refusal is no verdict."""
    sizes = len(laws.data.sizes)
    return tuple(
        f"{name}: {not_yet(text, sizes)}"
        if word == STATUS_WORDS["refused"] and not is_over
        else f"{name}: {word} {text}"
        for name, word, text, _ in law_rows(laws)
    )
