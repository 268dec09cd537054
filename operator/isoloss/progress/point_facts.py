"""All that a store has of one point of a sweep. What cannot be read is named and does not hide the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from isoloss.errors import BadInput
from isoloss.progress.operator_files import FitSummary, read_fit
from isoloss.stored_sweeps import StoredSweep, stored_laws, trajectory
from isoloss_contract import layout
from isoloss_contract.ledger import DONE, Ledger, PointRecord
from isoloss_contract.records import PointConfig, PointProgress, PointResult, TrajectoryRow
from isoloss_contract.store import NotFound, StoreError

if TYPE_CHECKING:  # the laws bring numpy along, which a point without laws does not need
    from isoloss.laws import Laws

FEWEST_KEY_DIGITS = 6
Value = TypeVar("Value")


@dataclass(frozen=True)
class PointFacts:
    """What is known of a point. None if nothing is stored, or if it cannot be read."""

    ledger: Ledger
    record: PointRecord
    uri: str
    """Folder of the point."""
    config: PointConfig | None = None
    progress: PointProgress | None = None
    result: PointResult | None = None
    trajectory: tuple[TrajectoryRow, ...] | None = None
    checkpoints: tuple[str, ...] = ()
    """Names of training states, oldest first."""
    files: tuple[str, ...] = ()
    """Names in the point's folder."""
    fit: FitSummary | None = None
    laws: Laws | None = None
    laws_are_unreadable: bool = False
    """Whether there may be laws, which the store does not give out or that are damaged."""
    unreadable: tuple[str, ...] = ()
    """Messages that name each file and its fault."""

    @property
    def is_former(self) -> bool:
        """Whether an edit of the spec dropped the point."""
        return self.record in self.ledger.former

    @property
    def is_training(self) -> bool:
        """Whether an attempt of this sweep has reported and, according to the ledger, has not ended."""
        return is_training(self.ledger, self.record, self.progress)


def is_training(ledger: Ledger, record: PointRecord, progress: PointProgress | None) -> bool:
    """Whether `progress` is of an attempt of this sweep whose end the ledger does not know."""
    if progress is None or progress.claimant.sweep_uid != ledger.uid:
        return False
    return progress.claimant.attempt > record.attempts.ended


def find_point(ledger: Ledger, wanted: str) -> PointRecord:
    """The point of that name, or whose key starts with `wanted`.

    Raises BadInput if there is none or more than one; it names points that are alike.
    """
    records = (*ledger.points, *ledger.former)
    named = [record for record in records if record.name == wanted]
    if not named and len(wanted) >= FEWEST_KEY_DIGITS:
        named = [record for record in records if record.key.startswith(wanted)]
    if len(named) == 1:
        return named[0]
    if named:
        keys = ", ".join(record.key[:12] for record in named[:5])
        raise BadInput(f"{wanted}: several points of {ledger.sweep}: give one of the keys {keys}")
    alike = [record.name for record in records if wanted in record.name] or [
        record.name for record in records
    ]
    more = f" and {len(alike) - 5} more" if len(alike) > 5 else ""
    raise BadInput(
        f"{wanted}: no point of {ledger.sweep} has this name or key; there are "
        f"{', '.join(alike[:5])}{more}"
        if alike
        else f"{wanted}: {ledger.sweep} has no points yet"
    )


def read_point(sweep: StoredSweep, record: PointRecord) -> PointFacts:
    """What the store has of one point. Raises nothing: a store that fails is a fact, too."""
    store, key, reads = sweep.store, record.key, _Reads()
    folder, done = layout.point_folder(key), record.state in DONE
    result = reads.value(
        lambda: store.read_record(layout.point_result(key), PointResult), needed=done
    )
    fit = reads.value(lambda: read_fit(store, sweep.folder))
    digest = record.trajectory_sha256 or (result.trajectory_sha256 if result else "")
    known_problems = len(reads.problems)
    laws = reads.value(lambda: stored_laws(sweep))
    laws_are_unreadable = len(reads.problems) > known_problems
    return PointFacts(
        ledger=sweep.ledger,
        record=record,
        uri=store.location(folder),
        config=reads.value(
            lambda: store.read_record(layout.point_config(key), PointConfig), needed=done
        ),
        progress=reads.value(lambda: store.read_record(layout.point_progress(key), PointProgress)),
        result=result,
        trajectory=reads.value(lambda: tuple(trajectory(store, key, digest)), needed=done),
        checkpoints=tuple(reads.value(lambda: store.names(layout.point_checkpoints(key))) or ()),
        files=tuple(reads.value(lambda: store.names(folder)) or ()),
        fit=fit,
        laws=laws,
        laws_are_unreadable=laws_are_unreadable,
        unreadable=tuple(reads.problems),
    )


@dataclass
class _Reads:
    """Reads one thing after the other and keeps the messages of those that fail."""

    problems: list[str] = field(default_factory=list)

    def value(self, call: Callable[[], Value], *, needed: bool = False) -> Value | None:
        """What the call returns; None if nothing is there, a problem if it is needed, or it cannot be read."""
        try:
            return call()
        except NotFound as error:
            if needed:
                self.problems.append(str(error))
            return None
        except StoreError as error:
            self.problems.append(str(error))
            return None
