"""Reads a sweep from the store, again and again: the laws only where they have changed."""

from __future__ import annotations

from typing import Any

from isoloss.errors import BadInput
from isoloss.progress.fit_summary import FitSummary, read_fit
from isoloss.progress.point_facts import read_stored_laws
from isoloss.progress.stored_status import read_status
from isoloss.progress.sweep_state import SweepState, asks_for_progress, sweep_state
from isoloss.report import content
from isoloss.stored_sweeps import StoredSweep, open_sweep
from isoloss_contract import layout
from isoloss_contract.records import PointProgress
from isoloss_contract.store import NotFound, StoreError


class StoredSweepReader:
    """Reads one sweep in the store."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._laws_sha256 = ""
        self._laws: tuple[str, ...] = ()

    def read(self) -> tuple[dict[str, Any], SweepState]:
        """Its status as the operator copied it last ({} before the first copy), its points and its laws.

        Raises BadSweep where the store or the sweep cannot be read.
        """
        sweep = open_sweep(self._uri)
        # A name that two sweeps have in turn must not change what is watched.
        self._uri = sweep.uri
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
            laws = self._read_laws(sweep, read_fit(sweep.store, sweep.folder))
            resource = read_status(sweep.store, sweep.folder)
        except StoreError as error:
            raise BadInput(str(error)) from error
        return resource, sweep_state(sweep.ledger, progress, laws)

    def _read_laws(self, sweep: StoredSweep, fit: FitSummary | None) -> tuple[str, ...]:
        if fit is None or not fit.laws_sha256:
            return ()
        if fit.laws_sha256 != self._laws_sha256:
            try:
                laws = read_stored_laws(sweep)
            except NotFound:
                return ()
            rows = content.laws_table(laws).rows
            self._laws = tuple(": ".join((name, f"{word} {text}")) for name, word, text, _ in rows)
            self._laws_sha256 = fit.laws_sha256
        return self._laws
