"""Since when a training attempt has reported no progress, by the operator's own clock.

Tokens are compared, not times: a hung trainer's reporter thread keeps writing, and the clock of its
node may be wrong. The price: after a restart the operator counts from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from isoloss_contract.records import PointProgress
from isoloss_operator.decide.observation import ObservedJob


@dataclass(frozen=True)
class Mark:
    """The progress of a Job as it was last seen to change."""

    tokens: int | None
    """Trained, in cooldowns as well; None: nothing reported yet."""
    since: datetime


def progress_marks(
    jobs: Iterable[ObservedJob],
    progress: Mapping[str, PointProgress],
    before: Mapping[str, Mark],
    now: datetime,
) -> dict[str, Mark]:
    """Marks keyed by Job uid, for train Jobs whose container is running; `progress` is keyed by point key."""
    marks = {}
    for job in jobs:
        waits = job.working_since is None or not job.is_at_work
        if job.kind != "train" or job.is_finished or waits:
            continue
        report = progress.get(job.key)
        is_own = report is not None and report.claimant.attempt == job.attempt
        tokens = report.trained_tokens if report is not None and is_own else None
        known = before.get(job.uid)
        marks[job.uid] = known if known and known.tokens == tokens else Mark(tokens, now)
    return marks
