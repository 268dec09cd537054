"""The content of the page as rows of text: every number formatted once, every refusal in words."""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isoloss import formatting
from isoloss import laws as engine
from isoloss.savings import SearchCost
from isoloss.summaries import why_not

Cells = tuple[str, ...]
PAGE_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The Content-Security-Policy of a page: no script runs, nothing is fetched."""


def any_law(laws: engine.Laws) -> bool:
    """Whether any of the three laws was fitted; otherwise there is no curve to draw."""
    parts = (laws.learning_rate, laws.batch_size, laws.loss_compute)
    return any(part.status != "refused" for part in parts)


def status_word(laws: engine.Laws) -> str:
    """Fitted, Provisional, Refused, or Partly refused if only some of the laws are, or a given batch size is answered."""
    answers = laws.status != "refused" or laws.rate_at_batch.curve is not None
    if laws.refusals and answers:
        return "Partly refused"
    return engine.STATUS_WORDS[laws.status]


def laws_in_words(laws: engine.Laws) -> str:
    """What the laws are of."""
    sizes = [f"{formatting.count(size)}" for size in laws.data.sizes]
    of_sizes = f", {' to '.join(dict.fromkeys((sizes[0], sizes[-1])))} parameters" if sizes else ""
    return f"Scaling laws of {formatting.counted(laws.data.runs, 'run')}{of_sizes}"


@dataclass(frozen=True)
class PointRow:
    """One point of the sweep as shown in the table. Losses in nats per token."""

    name: str
    params: float | None
    batch_size: float
    learning_rate: float
    tokens: float | None
    loss: float | None
    state: str
    """Succeeded, Diverged, OutOfMemory, Pending, …"""
    note: str = ""
    """Why it was left out, or any other remark."""


@dataclass(frozen=True)
class Table:
    """A heading per column and rows of text; `numeric` columns are aligned to the right.

    An absent number is shown as a dash there, because an empty cell looks like an error.
    """

    heads: Cells
    rows: tuple[Cells, ...]
    numeric: frozenset[int] = field(default_factory=frozenset)
    more: int = 0
    """Number of rows left out."""

    def __post_init__(self) -> None:
        shown = tuple(
            tuple(
                cell or (formatting.ABSENT if column in self.numeric else "")
                for column, cell in enumerate(row)
            )
            for row in self.rows
        )
        object.__setattr__(self, "rows", shown)


def point_rows(runs: Sequence[engine.Run], laws: engine.Laws) -> tuple[PointRow, ...]:
    """The table of points from runs alone; the notes are the exclusions of the fit."""
    reasons: dict[str, list[str]] = {}
    for exclusion in laws.excluded:
        reasons.setdefault(exclusion.run, []).append(exclusion.reason)
    return tuple(
        PointRow(
            name=run.name,
            params=run.params,
            batch_size=run.batch_size,
            learning_rate=run.learning_rate,
            tokens=float(run.tokens[-1]) if run.tokens.size else None,
            loss=float(run.losses[-1]) if run.losses.size else None,
            state=_state(run),
            note="; ".join(reasons.get(run.name, ())),
        )
        for run in runs
    )


def _state(run: engine.Run) -> str:
    if run.diverged:
        return "Diverged"
    return "Finished" if run.finished else (run.stopped or "training").capitalize()


def points_table(rows: Sequence[PointRow], limit: int) -> Table:
    """The points, those with a note first: what was left out matters most."""
    ordered = sorted(rows, key=lambda row: not row.note)
    return Table(
        ("point", "parameters", "B", "learning rate", "tokens", "last loss", "state", "note"),
        tuple(
            (
                row.name,
                formatting.count(row.params),
                formatting.batch_size(row.batch_size),
                formatting.learning_rate(row.learning_rate),
                formatting.count(row.tokens),
                formatting.loss(row.loss),
                row.state,
                row.note,
            )
            for row in ordered[:limit]
        ),
        frozenset({1, 2, 3, 4, 5}),
        more=max(0, len(ordered) - limit),
    )


# ---------------------------------------------------------------------------------------- laws


def fit_facts(laws: engine.Laws, runs: Sequence[engine.Run], version: str) -> dict[str, str]:
    """What it takes to repeat the fit (the program's version, all options, the data), and the noise."""
    options = laws.options
    fixed = options.irreducible_loss
    return {
        "fitted with": f"isoloss {version}",
        "options": (
            f"{options.form}, irreducible loss "
            f"{'fitted' if fixed is None else f'fixed at {formatting.loss(fixed)}'}, "
            f"{options.bootstrap_samples} bootstrap draws, seed {options.seed}"
        ),
        **({"data": f"sha256:{data_digest(runs)}"} if runs else {}),
        "noise": _noise(laws),
    }


def _noise(laws: engine.Laws) -> str:
    """Between seeds if that was measured, and what is off the surface."""
    measured, residual = laws.run_noise, laws.surface.residual_rms
    seeds = "" if measured is None else engine.noise_in_words(measured)
    if residual is None:
        return seeds or "not known: the joint surface was refused"
    surface = (
        f"{formatting.number(residual, 2)} nats per evaluation (residuals of the joint surface)"
    )
    return f"{seeds}; {surface}" if seeds else surface


def data_digest(runs: Sequence[engine.Run]) -> str:
    """The first 16 hexadecimal digits of a SHA-256 over the runs' numbers, in any order and by any names."""
    each = []
    for run in runs:
        head = (run.params, run.batch_size, run.sequence_length, run.learning_rate, run.diverged)
        numbers = [*map(float, head), *run.tokens.tolist(), *run.losses.tolist()]
        each.append(hashlib.sha256(struct.pack(f"<{len(numbers)}d", *numbers)).digest())
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()[:16]


def laws_table(laws: engine.Laws, *, is_over: bool = True) -> Table:
    """The three laws of the iso-loss route and the joint surface, as formulas.

    While a sweep runs, a refused law is not yet there.
    """
    refused, sizes = engine.STATUS_WORDS["refused"], len(laws.data.sizes)
    return Table(
        engine.LAW_HEADS,
        tuple(
            row
            if is_over or row[1] != refused
            else (row[0], "Not yet", why_not(row[2], sizes), "")
            for row in engine.law_rows(laws)
        ),
    )


def surface_sentence(laws: engine.Laws) -> str:
    """How far the optima of single sizes, which were found without the joint surface, are from it; empty: not known."""
    trends = laws.surface.optimum
    found = [
        (optimum.params, optimum.tokens, optimum.learning_rate, optimum.batch_size)
        for optimum in laws.optima
        if optimum.params and optimum.tokens and optimum.learning_rate and optimum.batch_size
    ]
    if trends is None or not found:
        return ""
    params, tokens, rates, batches = np.log(np.array(found, dtype=float)).T
    of_rates, of_batches = trends.at(params, tokens)
    off_rate, off_batch = (
        float(np.expm1(np.median(np.abs(own - at))))
        for own, at in ((rates, of_rates), (batches, of_batches))
    )
    return (
        f"A check of the joint surface: half of the {len(found)} optima found for single sizes are within "
        f"{formatting.percent(off_rate)} of its learning rate and {formatting.percent(off_batch)} of its batch size."
    )


def optima_table(laws: engine.Laws) -> Table:
    """The optima of the frontier of least compute and of each size, with errors of the logarithms."""
    listed = [*laws.frontier, *laws.optima]
    kinds = ["frontier"] * len(laws.frontier) + ["size"] * len(laws.optima)
    rows = tuple(
        _optimum_row(kind, item, laws.data.sizes) for kind, item in zip(kinds, listed, strict=True)
    )
    heads = ("optimum of", "loss", "parameters", "learning rate", "B", "tokens", "FLOPs", "note")
    return Table(heads, rows, frozenset({1, 2, 3, 4, 5, 6}))


def optimum_in_words(optimum: engine.Optimum) -> str:
    """An optimum as the tooltip of its mark."""
    size = f", {formatting.count(optimum.params)} parameters" if optimum.params else ""
    cost = [
        f"{write(value)} {unit}"
        for value, write, unit in (
            (optimum.tokens, formatting.count, "tokens"),
            (optimum.flops, formatting.flops, "FLOPs"),
        )
        if value is not None
    ]
    return (
        f"optimum at loss {formatting.loss(optimum.loss)}{size}\n"
        f"learning rate {formatting.learning_rate(optimum.learning_rate)}, "
        f"batch size {formatting.batch_size(optimum.batch_size)}\n{', '.join(cost)}"
    )


def _optimum_row(kind: str, item: engine.Optimum, trained: Sequence[float]) -> Cells:
    errors = item.standard_errors
    # The frontier passes between the trained sizes, where the compute-optimal size is.
    is_between = item.params is not None and not any(
        math.isclose(item.params, size, rel_tol=0.01) for size in trained
    )

    def spread(name: str) -> str:
        error = errors.get(name)
        return f" ± {error:.0%}" if error is not None and item.status != "refused" else ""

    return (
        kind,
        formatting.loss(item.loss),
        formatting.count(item.params) + (" (not trained)" if is_between else ""),
        formatting.learning_rate(item.learning_rate) + spread("learning_rate"),
        formatting.batch_size(item.batch_size) + spread("batch_size"),
        formatting.count(item.tokens),
        formatting.flops(item.flops),
        f"{item.refusal.reason.value}: {item.refusal.message}" if item.refusal else "",
    )


# ---------------------------------------------------------------------------------------- cost


def saving_sentence(cost: SearchCost, of: str = "sweep") -> str:
    """The cost of the sweep, or of what is named, and of a direct grid on the target, whichever is cheaper."""
    share = cost.share_of_run
    of_run = (
        "" if share is None else f", {formatting.number(100.0 * share, 2)}% of the planned run"
    )
    costs = (
        f"The {of} costs {formatting.flops(cost.proxy_flops)} FLOPs{of_run}; a direct grid on the target "
        f"{formatting.flops(cost.direct_flops)}"
    )
    if cost.saving < 0:
        return f"{costs}: the direct grid would be cheaper."
    return f"{costs}: {formatting.percent(cost.saving)} saved."
