"""The results as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from benchmarks.transfer.design import (
    KNOWN_BUDGETS,
    KNOWN_SIZES,
    KNOWN_TEXTS,
    LONGER,
    Checkpoint,
)
from benchmarks.transfer.measuring import Measured
from benchmarks.transfer.rules import RULES, Case, log_optimum
from benchmarks.transfer.scores import (
    Score,
    by_budget,
    by_checkpoint,
    by_size,
    by_text,
    calibrated,
    cases,
    composition_error,
    control,
    engine_query,
    faded,
    fit,
    is_new,
    registered,
    score_at_batches,
    score_controls,
    score_engine,
    score_rule,
    shifted,
    weighted,
)
from benchmarks.transfer.scores import (
    case as case_of,
)
from isoloss.laws import Array, Composition, Laws, Refused, Route, predict

GROUPS = {"checkpoint": by_checkpoint, "text": by_text, "size": by_size, "budget": by_budget}
"""What the rules that learn are judged on, having been learned from the others."""
ROUTES: tuple[Route, ...] = ("surface",)
COMPOSITIONS: tuple[Composition, ...] = ("Paper", "Measured")
SCORED = ("answered", "LR off by", "B off by", "regret, mean", "worst", "inside LR, B")
"""Heads of what `_cells` says of scores, after their name."""


def tables(measured: Measured) -> Iterator[str]:
    """All lines, in Markdown."""
    laws = fit(measured)
    found = cases(measured)
    yield from _sweep(laws, measured)
    yield from _every_case(laws, measured, found)
    for route in ROUTES:
        yield from _rules(laws, measured, found, route)
    yield from _by_share(laws, found)
    yield from _registered(laws, found)
    yield from _longer(laws, found)
    yield from _siblings(laws, measured, found)
    yield from _equivalents(laws, found)
    yield from _averaging(measured, found)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(*cells: str) -> Iterator[str]:
    yield ""
    yield _row(*cells)
    yield _row(*("---" for _ in cells))


def _sweep(laws: Laws, measured: Measured) -> Iterator[str]:
    count = sum(len(runs) for runs in measured.scratch.values())
    continued = sum(len(item.runs) for item in measured.continued)
    yield f"{count} runs from scratch, {continued} continued runs of {len(measured.continued)} checkpoints."
    for name, runs in measured.scratch.items():
        params = next(iter(runs.values())).params
        yield f"{name}: {params:,.0f} active parameters, {measured.design.scratch_tokens:,} tokens."
    for refusal in laws.refusals:
        yield f"Refused: {refusal.reason.value}: {refusal.message}"


def _every_case(laws: Laws, measured: Measured, found: Sequence[Case]) -> Iterator[str]:
    yield from _head(
        *("size", "text", "before", "budget", "L_init", "loss reached"),
        *("measured LR, B", "paper LR, B", "regret", "control LR, B", "its regret"),
    )
    for case in found:
        yield _case_row(laws, measured, case)
    total = len(measured.continued) * len(measured.design.budgets)
    yield ""
    yield f"{total - len(found)} of {total} cases are left out: no optimum inside the grid."


def _case_row(laws: Laws, measured: Measured, case: Case) -> str:
    point = case.checkpoint
    head = (
        *(point.size.name, _text(point), f"{point.tokens / 1e3:.0f}k"),
        *(f"{case.tokens / 1e3:.0f}k", f"{case.initial_loss:.2f}", f"{case.reached:.3f}"),
    )
    answer = predict(laws, engine_query(case))
    truth = _pair(case.measured.vertex)
    if isinstance(answer, Refused):
        return _row(*head, truth, answer.refusals[0].reason.value, "", "", "")
    assert answer.best is not None
    chosen = log_optimum(answer.best)
    judge = control(measured, case, answer.total_flops.value)
    beside = ("", "") if judge is None else (_pair(judge.vertex), f"{judge.regret(*chosen):.4f}")
    return _row(*head, truth, _pair(chosen), f"{case.measured.regret(*chosen):.4f}", *beside)


def _text(checkpoint: Checkpoint) -> str:
    return checkpoint.text if checkpoint.ending == "averaged" else f"{checkpoint.text}, decayed"


def _pair(log_optimum: Sequence[float] | Array) -> str:
    rate, batch = np.exp(log_optimum[0]), np.exp(log_optimum[1])
    return f"{rate * 1e3:.2f}e-3, {batch:.1f}"


def _rules(laws: Laws, measured: Measured, found: Sequence[Case], route: Route) -> Iterator[str]:
    controls = score_controls(laws, measured, found, route)
    engine = score_engine(laws, found, route)
    yield ""
    yield f"Route: {route}."
    yield from _head("rule", *SCORED)
    yield _score_row("control: from scratch", controls, len(found))
    yield _score_row("paper, as the engine answers", engine, len(found))
    measured_too = score_engine(laws, found, route, "Measured")
    yield _score_row("measured, as the engine answers", measured_too, len(found))
    for name, rule in RULES.items():
        yield _score_row(name, score_rule(laws, found, rule, route), len(found))
    for name, learned in (("shifted", shifted), ("weighted", weighted), ("faded", faded)):
        for words, group in GROUPS.items():
            scores = learned(laws, found, route, group)
            yield _score_row(f"{name}, {words} left out", scores, len(found))
    if engine:
        rate, batch = composition_error(engine, controls)
        yield ""
        yield f"Error of the composition: {rate:.3f} of ln LR, {batch:.3f} of ln B."


SHARES = ((0.0, 0.45), (0.45, 0.75), (0.75, 0.95), (0.95, 1.01))
"""Of the total compute that is still to come."""


def _by_share(laws: Laws, found: Sequence[Case]) -> Iterator[str]:
    """Both compositions by the share of compute to come, for the best pair and at batch sizes that are given."""
    asked: dict[str, Callable[[Composition], Sequence[Score]]] = {
        "best pair": lambda c: score_engine(laws, found, "surface", c),
        "given batch size": lambda c: score_at_batches(laws, found, c),
    }
    yield from _head("asked for", "share to come", "composition", *SCORED)
    for what, score in asked.items():
        for composition in COMPOSITIONS:
            scores = score(composition)
            for low, high in SHARES:
                some = [s for s in scores if low <= s.case.cpt_flops / s.total_flops < high]
                yield _row(
                    what, f"{low:g} to {min(high, 1.0):g}", *_cells(composition, some, len(some))
                )


GROUPS_OF_NEW: dict[str, Callable[[Case], bool]] = {
    "all": lambda _: True,
    "third size": lambda case: case.checkpoint.size.name not in KNOWN_SIZES,
    "new text": lambda case: case.checkpoint.text not in KNOWN_TEXTS,
    "third budget": lambda case: case.tokens not in KNOWN_BUDGETS,
    "decayed": lambda case: case.checkpoint.ending == "decayed",
}
"""A case may be in several. Bars for all: rms of ln B 0.30 and ln LR 0.25, mean regret 0.006 and a third of the paper's."""


def _registered(laws: Laws, found: Sequence[Case]) -> Iterator[str]:
    """The rule that was written down before these cases were trained, on them alone."""
    new = [case for case in found if is_new(case)]
    yield ""
    yield f"Cases that the registered rule was not found on: {len(new)}. Route: surface."
    yield from _head("cases", "rule", *SCORED[:-1])
    for words, belongs in GROUPS_OF_NEW.items():
        inside = [case for case in new if belongs(case)]
        rows = {"paper": score_rule(laws, inside, RULES["paper"], "surface")}
        for name, scores in {**rows, **registered(laws, inside)}.items():
            yield _row(words, *_cells(name, scores, len(inside))[:-1])


def _longer(laws: Laws, found: Sequence[Case]) -> Iterator[str]:
    """The second rule, which is the composition Measured, on the checkpoints that it was not found on."""
    inside = [case for case in found if case.checkpoint.tokens == LONGER]
    yield ""
    yield f"Cases of the longest past: {len(inside)}. Route: surface."
    yield from _head("composition", *SCORED)
    for composition in COMPOSITIONS:
        scores = score_engine(laws, inside, "surface", composition)
        yield _score_row(composition, scores, len(inside))


def _siblings(laws: Laws, measured: Measured, found: Sequence[Case]) -> Iterator[str]:
    """The default answers of each size, corrected by each smaller size."""
    answers = score_engine(laws, found, "surface", "Measured")
    yield ""
    yield "Answers corrected by what the same checkpoint of a smaller size wanted. Route: surface."
    yield from _head("sibling", "target", "rule", *SCORED[:-1])
    for sibling, target in combinations(measured.design.sizes, 2):
        for name, scores in calibrated(answers, sibling.name, target.name).items():
            yield _row(sibling.name, target.name, *_cells(name, scores, len(scores))[:-1])


def _score_row(name: str, scores: Sequence[Score], count: int) -> str:
    return _row(*_cells(name, scores, count))


def _cells(name: str, scores: Sequence[Score], count: int) -> tuple[str, ...]:
    if not scores:
        return (name, f"0 of {count}", *("",) * 5)
    errors = np.array([s.log_errors for s in scores])
    regrets = [s.regret for s in scores]
    held = np.mean([s.held for s in scores], axis=0)
    return (
        name,
        f"{len(scores)} of {count}",
        *(_off(errors[:, k]) for k in range(2)),
        f"{np.mean(regrets):.4f}",
        f"{np.max(regrets):.4f}",
        f"{held[0]:.0%}, {held[1]:.0%}",
    )


def _off(errors: np.ndarray) -> str:
    """Factor on the geometric mean, and root mean square of the logarithm."""
    return f"x {np.exp(np.mean(errors)):.2f} (rms {np.sqrt(np.mean(errors**2)):.2f})"


def _equivalents(laws: Laws, found: Sequence[Case]) -> Iterator[str]:
    yield ""
    yield "C_pre as a share of the compute really spent on pre-training:"
    yield from _head(
        "size", "text", "before", "from L_init", "after a third", "from the loss reached"
    )
    for case in found:
        if case.tokens != max(c.tokens for c in found):
            continue
        spent = case.flops_per_token * case.checkpoint.tokens
        shares = []
        for name in ("paper", "adapted, third", "loss reached"):
            flops = RULES[name](laws, case)
            shares.append("" if flops is None else f"{(flops - case.cpt_flops) / spent:.2f}")
        point = case.checkpoint
        yield _row(point.size.name, _text(point), f"{point.tokens / 1e3:.0f}k", *shares)


def _averaging(measured: Measured, found: Sequence[Case]) -> Iterator[str]:
    """What continued runs of the same checkpoint want without the average over its last weights."""
    budgets = measured.design.budgets
    raw = [c for item in measured.raw for t in budgets if (c := case_of(measured, item, t))]
    if not raw:
        return
    averaged = {(c.checkpoint, c.tokens): c for c in found}
    yield ""
    yield "The same checkpoints, averaged and raw:"
    yield from _head(
        "size", "text", "before", "budget", "L_init", "measured LR, B", "raw L_init", "raw LR, B"
    )
    for item in raw:
        point = item.checkpoint
        beside = averaged.get((replace(point, ending="averaged"), item.tokens))
        if beside is not None:
            yield _row(
                *(point.size.name, point.text, f"{point.tokens / 1e3:.0f}k"),
                f"{item.tokens / 1e3:.0f}k",
                *(f"{beside.initial_loss:.2f}", _pair(beside.measured.vertex)),
                f"{item.initial_loss:.2f}",
                _pair(item.measured.vertex) if item.measured.inside else "not inside",
            )
