"""How often a status is written and a resource looked at without cause. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from isoloss_operator.settings import Settings

PROGRESS: Final = frozenset(
    {"active", "estimatedCompletion", "spentFlops", "acceleratorHours", "ledger"}
)
"""Fields of a status that change without a transition: all the time while something trains."""


def status_pause(
    before: Mapping[str, Any],
    document: Mapping[str, Any],
    since_written: float,
    settings: Settings,
) -> float:
    """Seconds until the status may be written, `since_written` seconds after it was written last.

    A turned condition is due at once; counts, laws and failures after a moment; mere progress seldom.
    """
    changed = {name for name in {*before, *document} if before.get(name) != document.get(name)}
    if "conditions" in changed:
        return 0.0
    is_progress = changed <= PROGRESS
    seldom, soon = settings.progress_interval_seconds, settings.status_interval_seconds
    return max(0.0, (seldom if is_progress else soon) - since_written)


def next_look(requeue_after: float, settings: Settings) -> float:
    """Seconds until the next pass without an event; `requeue_after` is what the decision asks for."""
    if requeue_after == math.inf:
        return settings.idle_seconds
    return min(requeue_after, settings.resync_seconds)
