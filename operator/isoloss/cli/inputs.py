"""What the arguments RUNS and LAWS stand for: tables, sweeps in the store, files, published names."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoloss.cli.outcome import BadInput
from isoloss.laws import Laws, Run, laws_from_json
from isoloss.runs import Weights
from isoloss.stored_sweeps import is_sweep_uri, laws_document, open_sweep, sweep_runs
from isoloss.tables import is_table, read_tables

MAX_LAWS_BYTES = 64 * 2**20


@dataclass(frozen=True)
class GivenRuns:
    """Runs from all sources, what was ignored on the way, and whether some still train."""

    runs: tuple[Run, ...]
    warnings: tuple[str, ...]

    @property
    def provisional(self) -> bool:
        """Whether a run has not finished: laws from it can still change."""
        return not all(run.finished for run in self.runs)


def read_runs(sources: Sequence[str], weights: Weights) -> GivenRuns:
    """Runs of tables and of sweeps in the store. Raises BadTable, BadSweep or BadInput."""
    tables = [source for source in sources if is_table(source)]
    others = [source for source in sources if not is_table(source)]
    table = read_tables(tables)
    runs, warnings = list(table.runs), list(table.warnings)
    corpora: dict[str, str] = {}
    for source in others:
        if not is_sweep_uri(source):
            raise BadInput(
                f"{source}: neither a .csv, .csv.gz, .parquet or .pq file nor a sweep's URI in the store"
            )
        sweep = open_sweep(source)
        corpora.setdefault(sweep.ledger.data_digest, source)
        if len(corpora) > 1:
            raise BadInput(f"{' and '.join(corpora.values())} were trained on different corpora")
        found = sweep_runs(sweep, weights)
        runs += found.runs
        warnings += found.warnings
    _check_names(runs)
    if not runs:
        raise BadInput(f"{', '.join(sources)}: no runs")
    return GivenRuns(tuple(runs), tuple(warnings))


def _check_names(runs: Sequence[Run]) -> None:
    seen: set[str] = set()
    for run in runs:
        if run.name in seen:
            raise BadInput(f"run {run.name!r} comes from two of the sources")
        seen.add(run.name)


def read_laws(source: str) -> Laws:
    """Laws from a file written by `isoloss fit` or the operator, or from a sweep in the store.

    Raises BadInput, BadSweep or BadLaws.
    """
    text = laws_document(open_sweep(source)) if is_sweep_uri(source) else _file_text(source)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source}: not JSON: {error}") from error
    return _laws_of(document, source)


def _laws_of(document: Any, source: str) -> Laws:
    if isinstance(document, dict) and "inputs" in document and "laws" in document:
        if document["laws"] is None:
            raise BadInput(
                f"{source}: no laws yet: {document.get('error') or 'nothing was fitted'}"
            )
        return laws_from_json(document["laws"])
    return laws_from_json(document)


def _file_text(source: str) -> str:
    path = Path(source)
    try:
        if path.stat().st_size > MAX_LAWS_BYTES:
            raise BadInput(f"{source}: larger than {MAX_LAWS_BYTES} bytes")
        return path.read_text("utf-8")
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror or 'can not be read'}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{source}: not UTF-8 text") from error


def write_file(path: Path, content: str | bytes) -> None:
    """Write a result. Raises BadInput where the place can not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'can not be written'}") from error


def positive(option: str, value: float | None) -> None:
    """Raise BadInput for an option that is there but not a positive, finite number."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise BadInput(f"{option}: {value:g} is not a positive, finite number")
