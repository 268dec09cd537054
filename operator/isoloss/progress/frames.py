"""What `isoloss watch` shows at one moment, of a sweep in the store or of resources in a cluster: pure."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from isoloss import formatting
from isoloss.progress.moment import Moment
from isoloss.progress.picture import NARROWEST, picture
from isoloss.progress.resources import (
    active_points,
    answer_lines,
    cost_so_far,
    headline,
    law_lines,
    probe_lines,
    waited_for,
)


@dataclass(frozen=True)
class Frame:
    """One picture, and whether it is the last."""

    text: str
    """The whole picture in lines."""
    line: str
    """The same in one line."""
    is_ready: bool = False
    stalled: str = ""
    """Why nothing goes on without intervention."""

    @property
    def is_last(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.is_ready or bool(self.stalled)


def frame(moment: Moment, width: int, height: int | None = None) -> Frame:
    """A sweep, and maybe a prediction, in at most `height` lines if that is given."""
    view, state = moment.view, moment.state
    width = max(width, NARROWEST)
    lines = [headline(view)]
    for told in waited_for(view).splitlines():
        lines += formatting.wrapped(told, width)
    lines.append("")
    # The store's laws are those of the status, or newer.
    tables = [law_lines(view)] if state is None else []
    tables += [answer_lines(view), probe_lines(view)]
    below = [line for table in tables if table for line in ("", *table)]
    if state is not None:
        room = None if height is None else height - len(lines) - len(below)
        lines += picture(state, width, room).splitlines() if room is None or room > 0 else []
    else:
        lines += [cost_so_far(view)] if cost_so_far(view) else []
        lines += [
            f"training {name}: {tokens} tokens {loss}"
            for name, tokens, loss in active_points(view)
        ]
        lines += wrap(f"no maps: {moment.without}", width) if moment.without else []
    lines += below
    stalled = view.stalled
    return Frame(
        text="\n".join(line.rstrip() for line in lines[:height]),
        line=headline(view),
        is_ready=view.is_ready,
        stalled=f"{stalled.get('reason', '')}: {stalled.get('message', '')}" if stalled else "",
    )
