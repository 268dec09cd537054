"""A sweep as a picture of plain text: bars, maps of losses, laws and cost. Pure: state in, lines out.

Every stage has a character of its own, so that the picture tells the same in black and white.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isoloss import formatting
from isoloss.progress.sweep_state import PointView, SizeView, SweepState
from isoloss.stages import Stage

NARROWEST = 40
LABEL = 8
CELL = 12
"""Width of a cell with loss and share of the tokens; a narrower one has the loss alone."""
NARROW_CELL = 8
"""A learning rate of three digits, and a space before it."""
SHORTEST_BAR = 10
BESIDE_THE_BAR = len("  [] 100%  best 00.0000")


def picture(state: SweepState, width: int, height: int | None = None) -> str:
    """The picture in lines of at most `width` characters, and in at most `height` lines if that is given.

    What does not fit is left out in this order: maps of the sizes where nothing trains, from the smallest on,
    the other maps, laws, bars from the smallest size on, the cost.
    """
    width = max(width, NARROWEST)
    ledger = state.ledger
    head = formatting.wrapped(f"{ledger.namespace}/{ledger.sweep}: {headline(state)}", width)
    longest = max((len(size.name) for size in state.sizes), default=0)
    name_width = min(longest, width - BESIDE_THE_BAR - SHORTEST_BAR)
    bars = [bar_line(size, name_width, width) for size in state.sizes]
    maps = [loss_map(size, width) for size in state.sizes]
    legend = formatting.wrapped(_legend(state), width) if maps else []
    laws = [each for line in state.laws for each in formatting.wrapped(line, width)]
    cost = formatting.wrapped(cost_line(state), width)
    end = formatting.wrapped(state.under_way, width) if state.under_way else []
    if height is not None:
        room = height - len(head) - len(end)
        bars = _last_bars(bars, room - len(cost) - 2)
        room -= len(cost) + 2 + len(bars)
        laws = laws if len(laws) + 1 <= room else []
        room -= len(laws) + 1 if laws else 0
        maps, legend = _fitting_maps(state.sizes, maps, legend, room)
    blocks = [head, bars, *maps, legend, laws, [*cost, *end]]
    lines = [line.rstrip() for block in blocks if block for line in ("", *block)][1:]
    if height is None or len(lines) <= height:
        return "\n".join(lines)
    return "\n".join([*head, *end][: max(height, 1)])


def _last_bars(bars: list[str], room: int) -> list[str]:
    """As many as fit, those of the largest sizes, and how many are not shown."""
    if len(bars) <= room:
        return bars
    if room < 2:
        return []
    return [f"{len(bars) - room + 1} smaller sizes are not shown here", *bars[1 - room :]]


def _fitting_maps(
    sizes: Sequence[SizeView], maps: list[list[str]], legend: list[str], room: int
) -> tuple[list[list[str]], list[str]]:
    """The maps that fit, those where something trains first, then those with losses, and what follows them."""
    if sum(len(each) + 1 for each in maps) + len(legend) + 1 <= room:
        return maps, legend
    notice = ["--once prints all maps, and what the marks mean"]
    room -= 2
    kept: set[int] = set()
    order = sorted(
        range(len(maps)),
        key=lambda i: (sizes[i].trains, sizes[i].best is not None, i),
    )
    for index in reversed(order):
        if len(maps[index]) + 1 <= room:
            kept.add(index)
            room -= len(maps[index]) + 1
    return [maps[index] for index in sorted(kept)], notice if room >= 0 else []


def headline(state: SweepState) -> str:
    """The number of points by stage, in one line."""
    stages = state.stages
    told = [f"{stages[stage]} {stage.word}" for stage in Stage if stages[stage]]
    return (
        f"{formatting.counted(len(state.points), 'point')}: {', '.join(told)}"
        if told
        else "no points yet"
    )


def cost_line(state: SweepState) -> str:
    """FLOPs so far against the whole grid."""
    spent, planned = state.spent_flops, state.planned_flops
    if not planned:
        return f"cost so far {formatting.flops(spent)} FLOPs"
    text = (
        f"cost so far {formatting.flops(spent)} FLOPs, {spent / planned:.0%} of the whole grid's "
        f"{formatting.flops(planned)}"
    )
    repeats = sum(each.seed is not None for each in state.ledger.additions)
    if added := len(state.ledger.additions) - repeats:
        text += f"; points added beyond it: {added}"
    return f"{text}; repeats with other seeds: {repeats}" if repeats else text


def bar_line(size: SizeView, name_width: int, width: int) -> str:
    """`#` is trained, `-` wanted by now, `.` the rest of the tokens to the ends of all points."""
    best = size.best
    loss = f"best {formatting.loss(best.loss)}" if best is not None else ""
    room = max(width - name_width - BESIDE_THE_BAR, SHORTEST_BAR)
    trained = round(size.trained * room)
    wanted = max(round(size.wanted * room), trained)
    bar = "#" * trained + "-" * (wanted - trained) + "." * (room - wanted)
    return (
        f"{_shortened(size.name, name_width):<{name_width}}  [{bar}] {size.trained:>4.0%}  {loss}"
    )


def loss_map(size: SizeView, width: int) -> list[str]:
    """Losses over batch size (down) and learning rate (across): what came furthest in each cell."""
    rates = sorted({point.record.learning_rate for point in size.points})
    batches = sorted({point.record.batch_size for point in size.points}, reverse=True)
    table = _texts(size, rates, batches, narrow=False)
    cell = _cell_width(table, CELL)
    if LABEL + cell * len(rates) > width:
        table = _texts(size, rates, batches, narrow=True)
        cell = _cell_width(table, NARROW_CELL)
    fitting = max((width - LABEL) // cell, 1)
    title = ": B over LR"
    lines = [_shortened(size.name, width - len(title)) + title]
    for label, texts in zip(("", *batches), table, strict=True):
        lines.append(f"{label:<{LABEL}}" + "".join(f"{text:>{cell}}" for text in texts[:fitting]))
    if fitting < len(rates):
        more = len(rates) - fitting
        do = "does" if more == 1 else "do"
        lines.append(f"{formatting.counted(more, 'more learning rate')} {do} not fit here")
    return lines


def _texts(
    size: SizeView, rates: Sequence[float], batches: Sequence[int], *, narrow: bool
) -> list[list[str]]:
    """The learning rates, and a row of cells for each batch size."""
    cells = _by_cell(size)
    return [
        [formatting.learning_rate(rate) for rate in rates],
        *([_cell(cells.get((b, rate)), size, narrow=narrow) for rate in rates] for b in batches),
    ]


def _cell_width(table: Sequence[Sequence[str]], least: int) -> int:
    """Of all columns: texts never touch."""
    return max(least, *(len(text) + 1 for texts in table for text in texts))


def _by_cell(size: SizeView) -> dict[tuple[int, float], PointView]:
    """The point shown in each cell: of several seeds the one that came furthest, and of those the lowest loss."""
    found: dict[tuple[int, float], PointView] = {}
    for point in sorted(size.points, key=lambda each: (each.tokens, -(each.loss or 0.0))):
        found[point.record.batch_size, point.record.learning_rate] = point
    return found


def _cell(point: PointView | None, size: SizeView, *, narrow: bool) -> str:
    if point is None:
        return ""
    loss = ""
    # A loss that diverged is no number to compare, and may have any number of digits.
    if point.loss is not None and point.stage is not Stage.DIVERGED:
        loss = f"{'*' if point is size.best else ''}{_loss(point.loss, 2 if narrow else 3)}"
    if narrow:
        return f"{loss}{point.stage.mark}"
    return f"{loss}{_share(point):>4}{point.stage.mark}"


def _loss(loss: float, places: int) -> str:
    """Of untrained weights it may be any number."""
    return f"{loss:.{places}f}" if loss < 100 else formatting.number(loss)


def _share(point: PointView) -> str:
    return f"{point.share:.0%}" if point.tokens and point.share < 0.995 else ""


def _legend(state: SweepState) -> str:
    marks = ", ".join(f"{s.mark} {s.word}" for s in Stage if state.stages[s])
    return (
        f"loss in nats per token, share of the tokens unless all; {marks}; "
        "* lowest of those that came furthest"
    )


def _shortened(name: str, width: int) -> str:
    """Without its middle: names of one sweep differ at an end."""
    if len(name) <= width:
        return name
    kept = width - len("..")
    return f"{name[: kept - kept // 2]}..{name[len(name) - kept // 2 :]}"


def document(state: SweepState) -> dict[str, Any]:
    """Points and cost for programs. Losses in nats per token."""
    return {
        "spent_flops": state.spent_flops,
        "grid_flops": state.planned_flops or None,
        "points": [
            {
                "name": point.record.name,
                "key": point.record.key,
                "size": point.record.proxy,
                "batch_size": point.record.batch_size,
                "learning_rate": point.record.learning_rate,
                "stage": point.stage.word,
                "tokens": point.tokens,
                "target_tokens": point.target,
                "wanted_tokens": point.record.wanted_tokens,
                "loss": point.loss,
            }
            for point in state.points
        ],
    }
