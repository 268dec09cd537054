"""What `isoloss watch` shows at one moment, of a sweep in the store or of resources in a cluster: pure."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from isoloss.progress.picture import NARROWEST, picture
from isoloss.progress.resources import (
    View,
    active_points,
    answer_lines,
    cost_so_far,
    headline,
    probe_lines,
    waited_for,
)
from isoloss.progress.sweep_state import SweepState


@dataclass(frozen=True)
class Frame:
    """One picture, and whether it is the last."""

    text: str
    """The whole picture in lines."""
    line: str
    """The same in one line."""
    is_ready: bool = False
    stalled: str = ""
    """Why nothing goes on until somebody acts."""

    @property
    def is_last(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.is_ready or bool(self.stalled)


def frame(view: View, state: SweepState | None, without: str, width: int) -> Frame:
    """A sweep, and maybe a prediction, from the store or from a cluster.

    `state` is what the store has, None where it cannot be read from here; `without` says why not.
    """
    width = max(width, NARROWEST)
    lines = [headline(view)]
    for told in waited_for(view).splitlines():
        lines += wrap(told, width, break_long_words=False, break_on_hyphens=False)
    lines.append("")
    if state is not None:
        lines.append(picture(state, width))
    else:
        lines += [cost_so_far(view)] if cost_so_far(view) else []
        lines += [
            f"training {name}: {tokens} tokens {loss}"
            for name, tokens, loss in active_points(view)
        ]
        lines += wrap(f"no maps: {without}", width) if without else []
    for table in (answer_lines(view), probe_lines(view)):
        lines += ["", *table] if table else []
    stalled = view.stalled
    return Frame(
        text="\n".join(line.rstrip() for line in lines),
        line=headline(view),
        is_ready=view.is_ready,
        stalled=f"{stalled.get('reason', '')}: {stalled.get('message', '')}" if stalled else "",
    )
