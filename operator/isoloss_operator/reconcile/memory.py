"""What passes over a resource remember of one another, and writes whose failure the next pass must know of."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from isoloss_contract.ledger import Ledger, LostLedger
from isoloss_contract.reading import Read
from isoloss_contract.store import StoreError, WriteConflict, time_limit
from isoloss_operator.cluster.client import Refused, ResourceKey
from isoloss_operator.cluster.jobs import CreateRefused
from isoloss_operator.decide.observation import ObservedJob
from isoloss_operator.decide.plans import Event
from isoloss_operator.decide.progress import Mark

SOON_SECONDS = 1.0
STORE_SECONDS = 60.0
"""For all that a pass reads from the store, and for all that it writes there."""
MAX_UNSENT = 32


@dataclass(frozen=True)
class Folder:
    """Where the store keeps what the operator writes of one resource."""

    store_uri: str
    path: str


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


def carry_out(memory: Memory, generation: int, writes: Callable[[], None]) -> bool:
    """Do the writes of a plan; False if one failed in a way that the next pass must know of.

    Raises ClusterError if the API server did not answer: the queue then tries again.
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
    except WriteConflict:
        memory.store_write_error = ""  # the store answers
        return False  # another has written the ledger: the next pass reads it
    except StoreError as error:
        memory.store_write_error = str(error)
        return False
    memory.store_write_error = ""
    return not (memory.write_error or memory.publish_error)


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
