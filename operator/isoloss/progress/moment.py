"""A sweep, and maybe a prediction, at one moment: the status that the operator wrote, and the points behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isoloss import formatting
from isoloss.progress import picture
from isoloss.progress.resources import (
    View,
    active_points,
    answer_lines,
    cost_so_far,
    headline,
    law_lines,
    probe_lines,
    waited_for,
)
from isoloss.progress.sweep_state import SweepState


@dataclass(frozen=True)
class Moment:
    """What the store or a cluster shows now."""

    view: View
    state: SweepState | None
    """The points; None if the store cannot be read from here."""
    without: str = ""
    """Why not."""

    @property
    def is_over(self) -> bool:
        """Whether the sweep is: nothing trains, and its laws are final."""
        return self.view.is_true(self.view.sweep, "Ready")

    @property
    def waits_for(self) -> str:
        """What Ready says, and what trains."""
        told = [waited_for(self.view), self.state.under_way if self.state is not None else ""]
        return "\n".join(part for part in told if part)

    def document(self) -> dict[str, Any]:
        """For programs: both statuses, the laws as they are shown, and points and cost if the store can be read
        from here."""
        stalled = self.view.stalled
        return {
            "ready": self.view.is_ready,
            "stalled": stalled.get("message"),
            "stalled_reason": stalled.get("reason"),
            "laws": list(law_lines(self.view) if self.state is None else self.state.laws),
            "without": self.without or None,
            "sweep": self.view.sweep.get("status"),
            "prediction": (self.view.prediction or {}).get("status"),
            **(picture.document(self.state) if self.state is not None else {}),
        }


def frame(moment: Moment, width: int, height: int | None = None) -> str:
    """A sweep, and maybe a prediction, in lines of at most `width` characters, and at most `height` of them if that is given."""
    view, state = moment.view, moment.state
    width = max(width, picture.NARROWEST)
    lines = _folded([headline(view), *waited_for(view).splitlines(), ""], width)
    # The store's laws are those of the status, or newer.
    tables = [law_lines(view)] if state is None else []
    tables += [answer_lines(view), probe_lines(view)]
    below = _folded([line for table in tables if table for line in ("", *table)], width)
    if state is not None:
        room = None if height is None else height - len(lines) - len(below)
        lines += (
            picture.picture(state, width, room).splitlines() if room is None or room > 0 else []
        )
    else:
        told = [cost_so_far(view)] if cost_so_far(view) else []
        told += [
            f"training {name}: {tokens} tokens {loss}"
            for name, tokens, loss in active_points(view)
        ]
        told += [f"no maps: {moment.without}"] if moment.without else []
        lines += _folded(told, width)
    lines += below
    return "\n".join(line.rstrip() for line in lines[:height])


def _folded(lines: Sequence[str], width: int) -> list[str]:
    """Each between words: a terminal would cut what is wider off, in the middle of a number."""
    return [part for line in lines for part in formatting.wrapped(line, width)]
