"""Since when an attempt has reported nothing new.

Tokens are compared, not times: a hung trainer's reporter thread keeps writing, and the clock of its node may be wrong. The
price: after a restart the operator counts from zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from isoloss_contract.records import PointProgress
from isoloss_operator.decide.observation import ObservedJob

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
