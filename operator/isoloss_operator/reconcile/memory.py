"""What passes over a resource remember of one another, and writes whose failure the next pass must know of."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from isoloss_contract.ledger import Ledger, LostLedger
from isoloss_contract.reading import Read
from isoloss_contract.records import PointProgress
from isoloss_contract.store import StoreError, WriteConflict, time_limit
from isoloss_operator.cluster.client import Refused, ResourceKey
from isoloss_operator.cluster.jobs import CreateRefused, NotCreated
from isoloss_operator.decide.attempts import pod_seconds
from isoloss_operator.decide.jobs import deletions
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import Event, JobDeletion

SOON_SECONDS = 1.0
STORE_SECONDS = 60.0
"""For all that a pass reads from the store, and for all that it writes there."""
MAX_UNSENT = 32
UNANSWERED_PASSES: Final = 5
"""In a row, before the conditions speak of it: seven seconds. One missed answer is nothing to tell."""
CONFLICTS: Final = 5
"""So many writes in a row that another's came before are no coincidence."""


LONGEST_LOOK: Final = timedelta(minutes=30)
"""Between two looks at a running attempt, which come every minute: more has not passed for it."""


@dataclass(frozen=True)
class Mark:
    """The progress of a Job as it was last seen to change."""

    tokens: int | None
    """None: nothing reported yet."""
    since: datetime
    """Later by all the time in which the store did not say whether it changed, or no pod was at work."""
    looked: datetime = field(compare=False)
    """When the store was last asked, whether or not it answered."""

    def unchanged(self, now: datetime, longest: timedelta) -> Mark:
        """The same after a look that saw no change. Of a clock that jumped, as on machines that were suspended, no more
        counts than `longest`, and nothing of one that was set back."""
        passed = now - self.looked
        counted = min(max(passed, timedelta()), longest)
        return replace(self, since=self.since + passed - counted, looked=now)

    def held(self, now: datetime) -> Mark:
        """The same while the store says nothing, as the trainer may advance or not be able to report, or no pod is at
        work."""
        return replace(self, since=self.since + (now - self.looked), looked=now)


@dataclass
class Memory:
    """What one pass leaves for the next. Losing it costs a pass, never a result.

    One worker at a time has a resource's key, so nothing here needs a lock.
    """

    uid: str
    create_error: str = ""
    """Why a Job was refused, until one is created or the spec changes."""
    refusal_may_pass: bool = False
    """Whether that refusal may end by itself."""
    generation: int = 0
    """Generation of the spec that `create_error` is about."""
    store_write_error: str = ""
    """Why the store did not take what the last pass wrote."""
    conflicts: int = 0
    """How often in a row the ledger was not the one that had been read."""
    write_error: str = ""
    """Which write other than a Job's creation the API server refused in the last pass."""
    publish_error: str = ""
    """Why the API server refused a prediction's ConfigMap in the last pass."""
    publish_error_may_pass: bool = False
    """Whether that refusal may end by itself."""
    laws_looked_for: bool = False
    """laws.json of an earlier process was read, or is not there."""
    report_missing: bool = False
    """It was read, its report was never drawn, and no fit was started since."""
    page_at: float = field(default_factory=time.monotonic)
    """When its page was asked for last; at first, when the resource was first seen."""
    page_shows: str = ""
    """Request.inputs of that page."""
    page_uri: str = ""
    """Where the page of an answer was looked for, of which `page_shows` tells."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Since when each training Job has reported no progress."""
    failed_read_at: float = field(default_factory=time.monotonic)
    """When the results of points that have failed were last looked for; the first pass is in a hurry."""
    written_at: float = -math.inf
    """When the status was last written."""
    lost_ledger: LostLedger | None = None
    """One that was lost, until a new one is stored."""
    stopped: tuple[ObservedJob, ...] = ()
    """Jobs that were stopped without the ledger, which does not have them yet."""
    uncounted: Read[Ledger] | None = None
    """The ledger before a write whose outcome is not known: attempts that ended since are not counted yet."""
    unsent: tuple[Event, ...] = ()
    """Events of what the ledger has recorded, which no later decision tells of: the next status takes them along."""
    unanswered: int = 0
    """Passes in a row that failed for want of an answer of the API server."""

    def owe(self, events: Iterable[Event]) -> None:
        """Send these events with the next status; the oldest are dropped if none can be written for long."""
        self.unsent = tuple(dict.fromkeys((*self.unsent, *events)))[-MAX_UNSENT:]


class Memories:
    """The memory of each resource; a namesake with another uid starts with none."""

    def __init__(self) -> None:
        self._memories: dict[ResourceKey, Memory] = {}

    def of(self, key: ResourceKey, uid: str) -> Memory:
        """The memory of the resource with that uid."""
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = Memory(uid)
        return memory

    def forget_other(self, key: ResourceKey, uid: str) -> Memory | None:
        """The memory of a namesake with another uid, which is gone; None: there was none."""
        memory = self._memories.get(key)
        return self.forget(key) if memory is not None and memory.uid != uid else None

    def forget(self, key: ResourceKey) -> Memory | None:
        """Drop and return the memory of a resource that is gone."""
        return self._memories.pop(key, None)


# --------------------------------------------------- since when an attempt has reported nothing new
# Tokens are compared, not times: a hung trainer's reporter thread keeps writing, and the clock of its node may be wrong. The
# price: after a restart the operator counts from zero.


def progress_marks(
    jobs: Iterable[ObservedJob],
    progress: Mapping[str, PointProgress],
    before: Mapping[str, Mark],
    now: datetime,
    unknown: Collection[str] = (),
    stall_seconds: int | None = None,
) -> dict[str, Mark]:
    """Marks keyed by Job uid, for train Jobs whose container is running or has run; `progress` is keyed by point key.

    `unknown`: keys of points of which the store did not say how far they are. An attempt is ended after `stall_seconds`
    without progress, never for one look alone.
    """
    marks = {}
    longest = LONGEST_LOOK
    if stall_seconds is not None:
        longest = min(longest, timedelta(seconds=stall_seconds / 2))
    for job in jobs:
        if job.kind != "train" or job.is_finished:
            continue
        known = before.get(job.uid)
        waits = job.working_since is None or not job.is_at_work
        if known and (waits or job.key in unknown):
            # Of a pod that takes another's place, the clock goes on: evicted again and again, none would ever stall.
            marks[job.uid] = known.held(now)
        if waits or job.uid in marks:
            continue
        report = progress.get(job.key)
        is_own = report is not None and report.claimant.attempt == job.attempt
        tokens = report.tokens if report is not None and is_own else None
        is_same = known is not None and known.tokens == tokens
        marks[job.uid] = (
            known.unchanged(now, longest) if known and is_same else Mark(tokens, now, now)
        )
    return marks


# ----------------------------------------------------------------------------- what a suspension stops
# Suspension acts before anything is read: Jobs are stopped first, and recorded once the ledger can be.
#
# A store that is away, a revoked right or a sweep that is gone must not keep pods at work that a user wants to
# stop. Their attempts are not charged. What they cost is known of the Jobs as they were when they were stopped, which are
# remembered until a pass has written them to the ledger. An operator that is restarted after they are gone
# has forgotten them, and the accelerator time of such an attempt counts only once its point's result reports it.


Stop = tuple[tuple[JobDeletion, ...], tuple[ObservedJob, ...]]
"""Jobs to delete, and all Jobs that were stopped and may not be recorded yet."""


def stop(jobs: Sequence[ObservedJob], stopped: Sequence[ObservedJob], now: datetime) -> Stop:
    """Stop `jobs` of which no ledger hears now; `stopped` are those of which that is known already.

    One that has ended without Kubernetes knowing is among them: deleted, it could not tell the ledger of its end any
    more.
    """
    known = {job.uid for job in stopped}
    deleted = (job for job in jobs if job.must_be_deleted or not job.is_finished)
    new = (job for job in deleted if job.uid not in known)
    # With what they have cost by now, however much later that is recorded.
    as_of_now = (
        replace(job, worked_seconds=pod_seconds(job, now), working_since=None, gone_seconds=0.0)
        for job in new
    )
    return deletions(jobs), (*stopped, *as_of_now)


def unrecorded(stopped: Iterable[ObservedJob], ledger: Ledger | None) -> tuple[ObservedJob, ...]:
    """Those whose attempt has not ended in the ledger."""
    if ledger is None:
        return tuple(stopped)
    return tuple(job for job in stopped if job.attempt > _ended(ledger, job))


def _ended(ledger: Ledger, job: ObservedJob) -> int:
    """Number of the last attempt at the task of a Job that ended."""
    match job.kind:
        case "prepare":
            return ledger.preparation.ended
        case "evaluate":
            return ledger.evaluation.ended if ledger.evaluate_key == job.key else 0
        case "train":
            record = ledger.by_key.get(job.key)
            return record.attempts.ended if record else 0


# --------------------------------------------------------------------------------------------- writes


def carry_out(memory: Memory, generation: int, writes: Callable[[], None]) -> bool:
    """Do the writes of a plan; False if one failed in a way that the next pass must know of.

    Raises ClusterError if the API server did not answer, or could not create a Job for the first few times: the queue then
    tries again.
    """
    memory.write_error = memory.publish_error = ""
    if memory.generation != generation:
        memory.create_error = ""  # of a spec that nobody asks for any more
    try:
        with time_limit(STORE_SECONDS):
            writes()
    except CreateRefused as error:  # a Job comes after what is written to the store
        memory.create_error, memory.generation = str(error), generation
        memory.refusal_may_pass = error.may_pass
        memory.store_write_error = ""
        return False
    except NotCreated as error:
        # Once it has been told for what it is, all else is to be shown meanwhile.
        if memory.unanswered < UNANSWERED_PASSES and not memory.create_error:
            raise
        memory.create_error, memory.generation = str(error), generation
        memory.refusal_may_pass, memory.store_write_error = True, ""
        return False
    except WriteConflict as error:
        # The store answers, and another has written the ledger: the next pass reads it.
        memory.conflicts += 1
        is_told = memory.conflicts >= CONFLICTS
        memory.store_write_error = _without_end(error) if is_told else ""
        return False
    except StoreError as error:
        memory.store_write_error = str(error)
        return False
    memory.store_write_error, memory.conflicts = "", 0
    return not (memory.write_error or memory.publish_error)


def _without_end(error: WriteConflict) -> str:
    return (
        f"{error}, {CONFLICTS} times in a row: stop other operators that serve this sweep. If there are none, a proxy or "
        "gateway changes the ETag of objects"
    )


def tolerated(memory: Memory, write: Callable[[], None]) -> None:
    """Do a write without which the others make sense; a refusal is remembered for the conditions."""
    try:
        write()
    except Refused as error:
        memory.write_error = memory.write_error or str(error)


def had_trouble(memory: Memory) -> bool:
    """Whether the last pass was refused something: the conditions say so already."""
    return bool(
        memory.create_error
        or memory.store_write_error
        or memory.write_error
        or memory.publish_error
    )


def after_trouble(memory: Memory) -> float:
    """Seconds until the next look at a resource that was in trouble before this pass.

    Once nothing is refused any more the conditions, which were decided before, should soon say so.
    """
    return math.inf if had_trouble(memory) else SOON_SECONDS


def create_error(memory: Memory, generation: int) -> str:
    """Why the last Job of this generation was refused; empty if none was."""
    return memory.create_error if memory.generation == generation else ""
