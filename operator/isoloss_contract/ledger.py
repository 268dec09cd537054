"""The durable record of the tasks of a sweep or a prediction: what is wanted of them, what is done, what failed, what it cost.

A point is finished because the ledger says so, never because a Job exists. Every update is a pure
function that does nothing when repeated, so that an operator killed between writing the ledger and
anything else finds the same world again. How a ledger is laid out in the store: ledger_files.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Field, TypeAdapter, field_validator, model_validator

from isoloss_contract.reading import parse_timestamp
from isoloss_contract.records import (
    DataManifest,
    Digest,
    Finite,
    Name,
    PositiveFinite,
    Record,
    Tokens,
)

MAX_FAILURES_KEPT = 2
"""Failed attempts of a point whose messages are kept, newest last; the counts are never cut."""
MAX_FAILURE_MESSAGE = 120
MAX_VERSIONS = 32
MAX_ADDITIONS = 10_000
MAX_PLACEMENTS = 100
MAX_CONTINUED = 20
"""Sizes of a sweep."""

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=64)]


# Attempts and points are dataclasses, not models: mypy checks each name and type in
# dataclasses.replace, and nothing checks those in a model's model_copy(update=...).
class _Strict:
    """What is parsed into a dataclass has its fields, with their very types, and no others."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


class PointState(StrEnum):
    """What the ledger knows for certain. Whether a Job runs is seen in the cluster, not here."""

    PENDING = "Pending"
    SUCCEEDED = "Succeeded"
    DIVERGED = "Diverged"
    OUT_OF_MEMORY = "OutOfMemory"
    """Failed for good: no micro-batch fits the memory that the pod template gives."""
    FAILED = "Failed"
    """Failed for good: more failures than failurePolicy.retriesPerPoint allows."""


DONE = frozenset({PointState.SUCCEEDED, PointState.DIVERGED})
"""States with a result that the fit uses."""
FAILED_FOR_GOOD = frozenset({PointState.OUT_OF_MEMORY, PointState.FAILED})


class IntentAction(StrEnum):
    """What is wanted of a point."""

    RUN = "Run"
    """Train it for the wanted tokens."""
    PAUSE = "Pause"
    """Stop it with a checkpoint; it may run again."""


BUDGET_SPENT: Final = "BudgetExhausted"
"""Intent.reason of a point that is stopped or not started because the budget is spent."""
NOT_CHOSEN: Final = "NotChosenYet"
"""Intent.reason of a point that a search has not asked for."""


@dataclass(frozen=True)
class Intent(_Strict):
    """A decision about a point that outlives the pass, and the process, that made it."""

    action: IntentAction = IntentAction.RUN
    tokens: Tokens = 0
    """Train until this many tokens; 0: as many as its proxy asks for."""
    reason: Word = ""
    """CamelCase, such as BudgetExhausted; empty: the spec alone asks for it."""

    @model_validator(mode="before")
    @classmethod
    def _of_version_6(cls, given: Any) -> Any:
        """Without the bound that it had; a point that was pruned is to run until where it was stopped."""
        if not isinstance(given, dict):
            return given
        was_pruned = {"action": "Run" if given.get("tokens") else "Pause"}
        known = {name: value for name, value in given.items() if name != "bound"}
        return known | (was_pruned if given.get("action") == "Prune" else {})


@dataclass(frozen=True)
class AddedPoint(_Strict):
    """A point that the operator added to those of the spec, beyond a grid."""

    proxy: Name
    batch_size: Annotated[int, Field(ge=1)]
    learning_rate: PositiveFinite
    reason: Word
    """CamelCase: why it was added."""


@dataclass(frozen=True)
class Placement(_Strict):
    """The centre of the first points of a size without a grid. Once it is in a ledger it moves no more."""

    proxy: Name
    learning_rate: PositiveFinite
    batch_size: Annotated[int, Field(ge=1)]
    """Sequences."""
    source: Annotated[str, Field(max_length=300)]
    """Whose laws placed it, such as published:step-law."""
    model: Digest
    """Digest of its configuration: identifies a size that was renamed, or removed and added
    again."""


@dataclass(frozen=True)
class KnownCheckpoint(_Strict):
    """A checkpoint from which points start, as it was when they were planned."""

    uri: Annotated[str, Field(max_length=1024)]
    """Without a trailing slash."""
    stamp: Annotated[str, Field(max_length=64)]
    """Of its files; empty if they cannot be listed."""
    config: dict[str, Any]
    """Its config.json, without what says nothing about the model."""


@dataclass(frozen=True)
class Neighbourhood(_Strict):
    """Where the points of a size lie around the answer of a prediction."""

    proxy: Name
    prediction: Annotated[str, Field(max_length=253)]
    places: Annotated[
        tuple[tuple[PositiveFinite, Annotated[int, Field(ge=1)]], ...], Field(min_length=1)
    ]
    """Learning rate and sequences per batch, those of the answer first."""


@dataclass(frozen=True)
class Spend(_Strict):
    """What attempts cost."""

    flops: Amount = 0.0
    """6 * active parameters * tokens."""
    accelerator_seconds: Amount = 0.0
    """From the start of each trainer container to its end, times the devices that it holds."""

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.flops + other.flops, self.accelerator_seconds + other.accelerator_seconds
        )


@dataclass(frozen=True)
class LostLedger(_Strict):
    """A ledger that another took the place of, with all that it knew of spend, failures and decisions."""

    at: Annotated[str, Field(max_length=40)]
    """RFC 3339, UTC: when the new one was begun."""
    problem: Annotated[str, Field(max_length=600)]
    """Why it could not be used any more."""
    kept_as: Annotated[str, Field(max_length=1024)] = ""
    """Its path in the store since; empty: nothing was there."""


class FailureRecord(Record):
    """One attempt that failed."""

    attempt: int = Field(ge=1)
    job_uid: str = Field(max_length=64)
    failure: str = Field(max_length=64)
    """The operator's FailureClass."""
    message: str = Field(max_length=MAX_FAILURE_MESSAGE)


@dataclass(frozen=True)
class Attempts(_Strict):
    """What became of the Jobs of one task so far."""

    ended: Count = 0
    """Number of the last attempt that ended; the next has one more."""
    last_failure: Word = ""
    """Why the last attempt ended without a result; empty after a result."""
    last_code: Word = ""
    """The trainer's own code for it, such as TextFieldMissing, if it gave one."""
    last_message: Annotated[str, Field(max_length=1000)] = ""
    """Its whole message, kept for preparations and evaluations alone: those of the points are in `failures`."""
    last_ended_at: Annotated[str, Field(max_length=40)] = ""
    """RFC 3339, UTC: when the operator saw it."""
    interruptions: Count = 0
    """Attempts that ended through no fault of the task; never charged."""
    idle_interruptions: Count = 0
    """How many of the newest attempts in a row were interrupted before they did much work."""
    vanished: Count = 0
    """Attempts whose pod was gone before its exit code could be read."""
    template: Word = ""
    """Digest of the pod template that charges and halvings belong to: under another one they start at zero."""
    charged: dict[str, int] = field(default_factory=dict)
    """Charged failures by class, under `template` alone."""
    micro_batch_halvings: Annotated[int, Field(ge=0, le=20)] = 0
    """How often the host killed an attempt for its memory, under `template` alone."""
    failures: Annotated[tuple[FailureRecord, ...], Field(max_length=MAX_FAILURES_KEPT)] = ()
    """The last charged failures, newest last."""

    def halvings(self, template: str) -> int:
        """Halvings of the micro-batch that the next attempt under this pod template starts with."""
        return self.micro_batch_halvings if self.template == template else 0

    @property
    def ended_at(self) -> datetime | None:
        """When the last attempt ended; None: none has, or that cannot be read."""
        return parse_timestamp(self.last_ended_at)


@dataclass(frozen=True)
class PointRecord(_Strict):
    """One planned point and what is known of it."""

    key: Digest
    name: Annotated[str, Field(max_length=128)]
    proxy: Name
    batch_size: Annotated[int, Field(ge=1)]
    learning_rate: PositiveFinite
    wanted_tokens: Tokens
    state: PointState = PointState.PENDING
    trained_for: Tokens = 0
    """Wanted tokens of the result, or those wanted now if its steps have them: less than `wanted_tokens` means that the
    run is to be continued."""
    tokens: Tokens = 0
    """Tokens at the result's last evaluation."""
    loss: Finite | None = None
    """Last evaluation of the raw weights, nats per token, if it is known."""
    averaged_loss: Finite | None = None
    reached_tokens: Tokens = 0
    """Tokens that the newest attempt reached, as far as is known: where the next one most likely begins."""
    spent: Spend = Spend()
    """What this sweep's own attempts cost that ended."""
    trajectory_sha256: Word = ""
    adopted: bool = False
    """Found in the store; not trained by this sweep."""
    versions: Count | None = None
    """Index in Ledger.versions of what trained the result, if that is recorded."""
    taken_back: Count = 0
    """How often a fit found the trajectory of a result unreadable. It is part of what a fit depends on:
    the repeated run writes the same bytes, and an old complaint must not hit them again."""
    attempts: Attempts = Attempts()
    intent: Intent = Intent()
    flops_per_token: Amount = 0.0
    """6 * active parameters: what an attempt cost can be told when the point is no longer planned."""

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the record: 32 bytes."""
        return hashlib.sha256(POINT.dump_json(self, exclude_defaults=True)).digest()

    @property
    def has_history(self) -> bool:
        """Whether an attempt of this sweep ended: more than its plan is known of it."""
        return self.attempts.ended > 0

    @property
    def is_fitted(self) -> bool:
        """Whether a fit uses the point: it has a result, though more may be wanted of it by now."""
        return self.trained_for > 0

    @property
    def is_finished(self) -> bool:
        """Whether nothing follows its trajectory: it diverged, or came to the tokens of its size."""
        is_long = self.trained_for >= self.wanted_tokens
        return self.state is PointState.DIVERGED or is_long


POINT = TypeAdapter(PointRecord)


class ConfigurationError(Record):
    """A task refused its own configuration: nothing starts until the spec, or what else shapes its pods, changes."""

    generation: int = Field(ge=0)
    where: str = Field(max_length=128)
    """Point, "prepare" or "evaluate"."""
    field: str = Field(max_length=400)
    """Field of the spec, if one is to blame."""
    code: str = Field(max_length=64)
    message: str = Field(max_length=1024)


class LedgerHeader(Record):
    """What a ledger has in addition to its points' records."""

    sweep: str = Field(max_length=253)
    namespace: str = Field(max_length=63)
    uid: str = Field(max_length=64)
    data_digest: str = Field(default="", max_length=64)
    """Digest of the tokenised corpus; empty before it is prepared."""
    prepare_key: str = Field(default="", max_length=64)
    """The preparation that `preparation` speaks of."""
    template: str = Field(default="", max_length=64)
    """Digest of what shapes pods besides the spec of their owner, when failures were last counted anew; empty: not known."""
    preparation: Attempts = Attempts()
    evaluate_key: str = Field(default="", max_length=64)
    """The evaluation that `evaluation` speaks of: a prediction's."""
    evaluation: Attempts = Attempts()
    configuration_error: ConfigurationError | None = None
    lost: LostLedger | None = None
    """The ledger before this one, if there was one: what was spent before is not known."""
    additions: tuple[AddedPoint, ...] = Field(default=(), max_length=MAX_ADDITIONS)
    """Points that are planned in addition to the spec's."""
    placements: tuple[Placement, ...] = Field(default=(), max_length=MAX_PLACEMENTS)
    """Placements of sizes that have no grid in the spec."""
    former_placements: tuple[Placement, ...] = Field(default=(), max_length=MAX_PLACEMENTS)
    """Placements of sizes that an edit of the spec removed or gave a grid: they return to their places."""
    checkpoints: tuple[KnownCheckpoint, ...] = Field(default=(), max_length=MAX_CONTINUED)
    """Those that sizes continue."""
    neighbourhoods: tuple[Neighbourhood, ...] = Field(default=(), max_length=MAX_CONTINUED)
    """Places of sizes whose points lie around an answer."""
    corpus: DataManifest | None = None
    """The manifest of the corpus behind `points`, without the files of its training tokens: all that names points."""
    versions: tuple[dict[str, str], ...] = Field(default=(), max_length=MAX_VERSIONS)
    """Distinct sets of versions that trained results, such as {"torch": "2.9.0"}: ten thousand points
    share a few."""

    @field_validator("additions", mode="before")
    @classmethod
    def _of_version_6(cls, given: Any) -> Any:
        """Without the repeats of points with other seeds: their results stay in the store, and what they cost in `former`."""
        if not isinstance(given, list):
            return given
        return tuple(each for each in given if not isinstance(each, dict) or "seed" not in each)


class Ledger(LedgerHeader):
    """All that a sweep knows of its points."""

    points: tuple[PointRecord, ...] = ()
    """Planned points in planned order."""
    former: tuple[PointRecord, ...] = ()
    """Points that an edit of the spec dropped after they had cost something. They keep their attempts'
    numbers and their cost, and return to `points` as they were if they are planned again."""

    def replace(self, **changes: Any) -> Ledger:
        """A copy with these fields changed and validated: a name that is no field's is refused."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **changes})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Ledger:
        """As pydantic's, without what was worked out from the fields before they changed."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields:
            del copied.__dict__[name]
        return copied

    @cached_property
    def by_key(self) -> dict[str, PointRecord]:
        """Records by point key, of points that were dropped too."""
        return {record.key: record for record in (*self.former, *self.points)}

    @property
    def spent(self) -> Spend:
        """Spend of all attempts of this sweep that ended, those of dropped points included."""
        records = (*self.points, *self.former)
        return Spend(
            sum(record.spent.flops for record in records),
            sum(record.spent.accelerator_seconds for record in records),
        )

    @property
    def digest(self) -> str:
        """SHA-256 over the ledger's own fields and the digests of its records, in hexadecimal.

        Fields at their defaults are left out, so that another optional one changes no digest. It does not depend on
        how the ledger is laid out in the store, and costs little if few records have changed.
        """
        own = self.model_dump_json(exclude={"points", "former"}, exclude_defaults=True)
        found = hashlib.sha256(own.encode())
        for records in (self.points, self.former):
            found.update(len(records).to_bytes(8))
            for record in records:
                found.update(record.digest)
        return found.hexdigest()
