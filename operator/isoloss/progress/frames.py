"""What `isoloss watch` shows at one moment, of a sweep in the store or of resources in a cluster: pure."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from isoloss.progress.picture import NARROWEST, headline, picture
from isoloss.progress.resources import (
    View,
    active_points,
    answer_lines,
    cost_so_far,
    law_lines,
    probe_lines,
    waited_for,
)
from isoloss.progress.resources import headline as resource_headline
from isoloss.progress.sweep_state import SweepState


@dataclass(frozen=True)
class Frame:
    """One picture, and whether it is the last."""

    text: str
    """The whole picture in lines."""
    line: str
    """The same in one line."""
    is_ready: bool = False
    is_refused: bool = False
    """It is ready, and there are no laws."""
    stalled: str = ""
    """Why nothing goes on until somebody acts."""

    @property
    def is_last(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.is_ready or bool(self.stalled)


def frame_of_sweep(state: SweepState, width: int, height: int | None = None) -> Frame:
    """A sweep in the store; see picture.picture for `height`."""
    return Frame(
        text=picture(state, width, height),
        line=f"{headline(state)}; {state.waits_for}",
        is_ready=state.is_ready,
        is_refused=state.is_ready and state.laws_status == "refused",
        stalled=state.stalled,
    )


def frame_of_resources(
    view: View, state: SweepState | None, without: str, width: int, height: int | None = None
) -> Frame:
    """A sweep, and maybe a prediction, in a cluster, in at most `height` lines where that is given.

    `state` is what the store has, None if it cannot be read from here; `without` says why not.
    """
    width = max(width, NARROWEST)
    lines = [resource_headline(view)]
    for told in waited_for(view).splitlines():
        lines += wrap(told, width, break_long_words=False, break_on_hyphens=False)
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
        lines += wrap(f"no maps: {without}", width) if without else []
    lines += below
    stalled = view.stalled
    return Frame(
        text="\n".join(line.rstrip() for line in lines[:height]),
        line=resource_headline(view),
        is_ready=view.is_ready,
        stalled=f"{stalled.get('reason', '')}: {stalled.get('message', '')}" if stalled else "",
    )
