"""Where the processes of several pods meet: rank 0 waits at an address that it writes to the point's folder.

The store is all that the pods of a Job are sure to share. It needs no Service, no DNS record and no further permission
in the cluster, and it is there in whichever cluster Kueue runs them. What is written is gone once all have met, so that
a pod that is replaced later finds no old address.
"""

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta

from pydantic import Field
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError

from isoloss_contract import layout
from isoloss_contract.records import POD_ADDRESS_VARIABLE, Claimant, Record
from isoloss_contract.store import BadRecord, NotFound, StoreUnavailable
from isoloss_trainer.attempt import HEARTBEAT_SECONDS, Attempt
from isoloss_trainer.termination import BadConfiguration

POLL_SECONDS = 1.0
CONNECT_SECONDS = 10.0
"""For one try to reach rank 0."""
PATIENCE = timedelta(minutes=10)
"""For what the others leave in the shared store once all have met: a device may take long to start."""
SAY_SECONDS = 60.0
"""Between two lines of the log."""
ALL_ARE_HERE = "all-are-here"


class Meeting(Record):
    """The content of rendezvous.json."""

    claimant: Claimant
    address: str
    port: int = Field(ge=1, le=65535)
    processes: int = Field(ge=2)


def meet(attempt: Attempt) -> TCPStore:
    """Wait until every process of the attempt is here, however long its pod takes to start; returns what they share.

    Raises Interrupted once a stop is requested or another attempt has taken over, and BadConfiguration if the pods have
    different numbers of processes.
    """
    shared = _host(attempt) if attempt.world.is_first else _join(attempt)
    shared.set_timeout(PATIENCE)
    return shared


def _host(attempt: Attempt) -> TCPStore:
    size, path = attempt.world.size, layout.point_rendezvous(attempt.task.point.key)
    address = os.environ.get(POD_ADDRESS_VARIABLE) or socket.gethostbyname(socket.gethostname())
    shared = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    meeting = Meeting(
        claimant=attempt.task.claimant, address=address, port=shared.port, processes=size
    )
    try:
        attempt.store.write_record(path, meeting)
        attempt.log.event("meet", processes=size, address=f"{address}:{shared.port}")
        _wait_for_all(attempt, shared)
    finally:
        with attempt.log.survived("rendezvous-kept"):
            if _read(attempt) == meeting:  # not if a later attempt has another there
                attempt.store.remove(path)
    return shared


def _wait_for_all(attempt: Attempt, shared: TCPStore) -> None:
    beaten = logged = time.monotonic()
    others = range(1, attempt.world.size)
    while missing := [rank for rank in others if not shared.check([_arrival(rank)])]:
        _pause(attempt)
        if time.monotonic() - beaten >= HEARTBEAT_SECONDS:
            with suppress(StoreUnavailable):
                attempt.fence.beat()
            beaten = time.monotonic()
        if time.monotonic() - logged >= SAY_SECONDS:
            attempt.log.event("waiting-for-pods", missing_ranks=missing)
            logged = time.monotonic()
    shared.set(ALL_ARE_HERE, "")


def _join(attempt: Attempt) -> TCPStore:
    while True:
        meeting = _read(attempt)
        # Rank 0 may have ended since it wrote the address, or may not have written it yet.
        with suppress(DistError):
            if meeting is not None and (shared := _arrived(attempt, meeting)) is not None:
                return shared
        _pause(attempt)


def _arrived(attempt: Attempt, meeting: Meeting) -> TCPStore | None:
    """What all share, once all are there; None if they have met without this process, which replaces one of them."""
    patience = timedelta(seconds=CONNECT_SECONDS)
    shared = TCPStore(
        meeting.address, meeting.port, is_master=False, timeout=patience, wait_for_workers=False
    )
    if shared.check([ALL_ARE_HERE]):
        return None
    shared.set(_arrival(attempt.world.rank), "")
    while not shared.check([ALL_ARE_HERE]):
        _pause(attempt)
    return shared


def _read(attempt: Attempt) -> Meeting | None:
    path = layout.point_rendezvous(attempt.task.point.key)
    try:
        meeting = attempt.store.read_record(path, Meeting)
    except (NotFound, BadRecord, StoreUnavailable):
        return None
    if meeting.claimant != attempt.task.claimant:
        return None
    if meeting.processes != attempt.world.size:
        raise BadConfiguration(
            "NodesDiffer",
            f"the first pod counts {meeting.processes} processes in all, this one {attempt.world.size}: every pod "
            "needs the same number of accelerators",
            "nodes",
        )
    return meeting


def _arrival(rank: int) -> str:
    return f"arrived/{rank}"


def _pause(attempt: Attempt) -> None:
    attempt.interruption.check()
    time.sleep(POLL_SECONDS)
