"""What a sweep is expected to lose at its target, and what it costs, in one unit: the compute of the run that it serves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isoloss import formatting
from isoloss.cli.outcome import PIPED_WIDTH, console, grid
from isoloss.design import (
    Knowledge,
    Outlook,
    PlannedRun,
    Setting,
    Target,
    centre_below,
    evidence,
    grid_about,
    token_slope,
)
from isoloss.usual import PUBLISHED_WASTE, USUAL_STEP
from isoloss_operator.commands.costs import Planned
from isoloss_operator.commands.design import Design
from isoloss_operator.planning.points import by_size, plan_points
from isoloss_operator.planning.search_cost import expected_loss

OUTLIER_FREE = "if its grids are about the optima"
"""What every outlook of a manifest rests on."""


@dataclass(frozen=True)
class Outlooks:
    """What the answer of a manifest is expected to lose, and what changes of it would bring."""

    target: Target
    cost: float
    """Expected FLOPs, as a share of the planned run's."""
    now: Outlook
    changes: dict[str, tuple[float, Outlook]]
    """By what would be changed: the further cost, as a share of the planned run's, and the outlook then."""


def outlooks(found: Planned, target: Target) -> Outlooks | None:
    """Of a manifest's grids, as if each was about the optimum of its size; None of sizes that continue checkpoints, and of a search that
    trains nothing."""
    sizes = None if found.trains_nothing else _sizes(found)
    if sizes is None:
        return None
    expected = found.expected_flops
    per_flop = expected / sum(size.flops for size in sizes)
    loss = 1.0 if found.search is None else expected_loss(found.search.target_factor)
    cost = expected / target.flops
    changed = {
        "one more size": [*sizes, _further(sizes)],
        "one more line": [replace(size, more_lines=1) for size in sizes],
        "twice the tokens": [replace(size, tokens=2.0 * size.tokens) for size in sizes],
        "a second seed of every run": [replace(size, seeds=2 * size.seeds) for size in sizes],
    }
    changes = {}
    for words, each in changed.items():
        flops = per_flop * sum(size.flops for size in each)
        changes[words] = (flops / target.flops - cost, _outlook(each, target).times(loss))
    return Outlooks(target, cost, _outlook(sizes, target).times(loss), changes)


@dataclass(frozen=True)
class _Size:
    """The runs of one size."""

    params: float
    tokens: float
    first_tokens: float
    offsets: tuple[tuple[float, float], ...]
    """Of each run ln LR and ln B from the middle of its grid."""
    lines: int
    more_lines: int = 0
    seeds: int = 1

    @property
    def flops(self) -> float:
        """Of all its runs."""
        return 6.0 * self.params * self.tokens * self._count * self.seeds

    @property
    def _count(self) -> int:
        return (self.lines + self.more_lines) ** 2 if self.more_lines else len(self.offsets)

    def runs(self, setting: Setting) -> list[PlannedRun]:
        """About the optimum that is expected."""
        first = min(self.first_tokens, 0.5 * self.tokens)
        if self.more_lines:
            count = self.lines + self.more_lines
            every = grid_about(setting, self.params, self.tokens, count, first_tokens=first)
            return every * self.seeds
        rate, batch = setting.at_optimum(self.params, self.tokens)
        return [
            PlannedRun(self.params, batch * math.exp(v), rate * math.exp(u), self.tokens, first)
            for u, v in self.offsets
        ] * self.seeds


def _sizes(found: Planned) -> list[_Size] | None:
    spec = found.spec
    if any(proxy.checkpoint is not None for proxy in spec.proxies):
        return None
    every = []
    for points in by_size(plan_points(spec)).values():
        proxy = points[0].proxy
        u = [math.log(point.learning_rate) for point in points]
        v = [math.log(point.batch_size) for point in points]
        middle = (max(u) + min(u)) / 2, (max(v) + min(v)) / 2
        every.append(
            _Size(
                params=float(proxy.parameters.active),
                tokens=float(proxy.tokens),
                first_tokens=float(max(spec.evaluation.first_tokens, 2 * proxy.warmup_tokens)),
                offsets=tuple((a - middle[0], b - middle[1]) for a, b in zip(u, v, strict=True)),
                lines=max(round(math.sqrt(len(set(zip(u, v, strict=True))))), 2),
            )
        )
    return every


def _further(sizes: Sequence[_Size]) -> _Size:
    """A larger size, as far from the largest as that is from the one before, trained for as many tokens per parameter."""
    ordered = sorted(sizes, key=lambda size: size.params)
    last = ordered[-1]
    factor = last.params / ordered[-2].params if len(ordered) > 1 else USUAL_STEP
    factor = max(factor, 1.5)
    return replace(
        last,
        params=factor * last.params,
        tokens=factor * last.tokens,
        first_tokens=factor * last.first_tokens,
    )


def _outlook(sizes: Sequence[_Size], target: Target) -> Outlook:
    setting, centre = Setting.usual(), centre_below(target)
    ends = [(size.params, size.tokens) for size in sizes]
    shown = [evidence(setting, size.runs(setting), size.tokens, centre) for size in sizes]
    return Knowledge.of(setting, ends, shown, centre).outlook(target)


# ---------------------------------------------------------------------------------- as it is shown


def in_words(found: Outlook) -> str:
    """The expected regret in nats and in compute."""
    return f"{formatting.number(found.nats, 2)} nats, worth {_percent(found.wasted)} more compute"


def published_in_words(target: Target) -> str:
    """What a published law, which costs nothing, is expected to lose."""
    nats = PUBLISHED_WASTE * token_slope(target.tokens)
    return f"{formatting.number(nats, 2)} nats, worth {_percent(PUBLISHED_WASTE)} more compute"


def print_outlooks(found: Outlooks) -> None:
    """What the answer is expected to lose now, and after each change."""
    terminal = console(PIPED_WIDTH)
    rate, batch = found.now.factors()
    terminal.print(
        f"\nThe answer for {formatting.count(found.target.params)} parameters and {formatting.count(found.target.tokens)} tokens is "
        f"expected to lose {in_words(found.now)}, {OUTLIER_FREE}: the learning rate is known to a factor of {rate:.2f}, the batch "
        f"size to one of {batch:.2f} (80%). The sweep is expected to cost {_percent(found.cost)} of that run. A published law "
        f"costs nothing, and is expected to lose {published_in_words(found.target)}."
    )
    table = grid("change", "further cost", "regret", "of the run", "LR", "B")
    for words, (cost, outlook) in found.changes.items():
        table.add_row(words, f"+{_percent(cost)}", *_columns(outlook))
    terminal.print(table)


def outlooks_document(found: Outlooks) -> dict[str, Any]:
    """The same, as `--json` prints it."""
    return {
        **outlook_document(found.now),
        "expected_cost_share": found.cost,
        "changes": {
            words: {**outlook_document(outlook), "further_cost_share": cost}
            for words, (cost, outlook) in found.changes.items()
        },
    }


def outlook_document(found: Outlook) -> dict[str, Any]:
    """Regret in both units, and the factors within which both hyperparameters are known at 80%."""
    rate, batch = found.factors()
    return {
        "expected_regret": found.nats,
        "expected_regret_share": found.wasted,
        "learning_rate_factor": rate,
        "batch_size_factor": batch,
    }


def print_curve(
    curve: Sequence[tuple[Design, float | None]],
    chosen: Design,
    price_per_hour: float | None,
    *,
    is_capped: bool,
) -> None:
    """Designs from cheap to dear, each with the hours until it ends; the chosen one, of those within --spend if that caps them, is
    marked."""
    terminal = console(PIPED_WIDTH)
    table = grid(
        "",
        "sizes and tokens",
        "grid",
        "cost",
        "H100 h",
        *([] if price_per_hour is None else ["price"]),
        "regret",
        "of the run",
        "LR",
        "B",
        "hours",
    )
    for design, elapsed in curve:
        table.add_row(
            "->" if design == chosen else "",
            sizes_in_words(design),
            f"{design.lines} x {design.lines}",
            _percent(design.cost),
            *(
                formatting.number(factor * design.expected_hours)
                for factor in (1.0, price_per_hour)
                if factor is not None
            ),
            *_columns(design.outlook),
            "" if elapsed is None else formatting.number(elapsed),
        )
    terminal.print(table)
    among = " of those within --spend" if is_capped else ""
    terminal.print(
        "Cost and regret are expectations, as shares of the planned run's compute. LR and B are known to these factors (80%). "
        f"The marked design has the least sum{among}, {_percent(chosen.total)}. A published law costs nothing and is expected "
        f"to lose {published_in_words(chosen.target)}. The checkpoint's past is not counted.\n"
    )


def curve_document(
    curve: Sequence[tuple[Design, float | None]], chosen: Design
) -> list[dict[str, Any]]:
    """The same, as `--json` prints it."""
    return [
        {
            "sizes": [{"params": run.size.active, "tokens": run.tokens} for run in design.runs],
            "lines": design.lines,
            "expected_cost_share": design.cost,
            "expected_flops": design.expected_flops,
            "expected_hours": design.expected_hours,
            "elapsed_hours": elapsed,
            **outlook_document(design.outlook),
            "chosen": design == chosen,
        }
        for design, elapsed in curve
    ]


def sizes_in_words(design: Design) -> str:
    """Every size with the tokens of its runs."""
    return ", ".join(
        f"{formatting.count(run.size.active)} to {formatting.count(run.tokens)}"
        for run in design.runs
    )


def _columns(outlook: Outlook) -> tuple[str, str, str, str]:
    rate, batch = outlook.factors()
    nats = formatting.number(outlook.nats, 2)
    return nats, _percent(outlook.wasted), f"{rate:.2f}", f"{batch:.2f}"


def _percent(share: float) -> str:
    """Two digits."""
    return f"{formatting.number(100.0 * share, 2)}%"
