"""How long Jobs take, so many at a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def elapsed(durations: Iterable[float], parallelism: int) -> float:
    """Time until the last of these Jobs ends, in the unit of `durations`; 0 of none.

    The cheapest start first, as a sweep starts them (decide/tasks/task_pass.py). What starting a Job takes is left out.
    """
    ends = [0.0] * parallelism
    for duration in sorted(durations):
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
