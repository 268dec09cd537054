"""What `isoloss watch` shows at one moment, of a sweep in the store or of resources in a cluster: pure."""

from __future__ import annotations

from collections.abc import Sequence

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


def frame(moment: Moment, width: int, height: int | None = None) -> str:
    """A sweep, and maybe a prediction, in lines of `width` characters, at most `height` of them if that is given."""
    view, state = moment.view, moment.state
    width = max(width, NARROWEST)
    lines = _folded([headline(view), *waited_for(view).splitlines(), ""], width)
    # The store's laws are those of the status, or newer.
    tables = [law_lines(view)] if state is None else []
    tables += [answer_lines(view), probe_lines(view)]
    below = _folded([line for table in tables if table for line in ("", *table)], width)
    if state is not None:
        room = None if height is None else height - len(lines) - len(below)
        lines += picture(state, width, room).splitlines() if room is None or room > 0 else []
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
