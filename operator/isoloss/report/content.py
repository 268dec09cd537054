"""What the page says, as plain rows of strings: every number formatted once, every refusal a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isoloss.laws import (
    HyperparameterLaw,
    Laws,
    LossComputeLaw,
    Optimum,
    Plane,
    Point,
    Prediction,
    Refusal,
    Run,
)
from isoloss.published import PublishedOptimum
from isoloss.report import numbers
from isoloss.savings import SearchCost, iso_loss_savings

Cells = tuple[str, ...]
STATUS_WORDS = {"fitted": "Fitted", "provisional": "Provisional", "refused": "Refused"}


def any_law(laws: Laws) -> bool:
    """Whether one of the three laws was not refused: otherwise there is no curve to draw."""
    parts = (laws.learning_rate, laws.batch_size, laws.loss_compute)
    return any(part.status != "refused" for part in parts)


def status_word(laws: Laws) -> str:
    """Fitted, Provisional, Refused, or In part where some laws are refused and others are not."""
    if laws.refusals and laws.status != "refused":
        return "In part"
    return STATUS_WORDS[laws.status]


@dataclass(frozen=True)
class PointRow:
    """One point of the sweep as the table shows it. Losses in nats per token."""

    name: str
    params: float | None
    batch_size: float
    learning_rate: float
    tokens: float | None
    loss: float | None
    state: str
    """Succeeded, Diverged, OutOfMemory, Pending, …"""
    note: str = ""
    """Why it was left out, or anything else worth saying."""


@dataclass(frozen=True)
class Table:
    """A heading per column and rows of text; `numeric` columns are aligned to the right."""

    heads: Cells
    rows: tuple[Cells, ...]
    numeric: frozenset[int] = field(default_factory=frozenset)
    more: int = 0
    """Rows that were cut off."""


def point_rows(runs: Sequence[Run], laws: Laws) -> tuple[PointRow, ...]:
    """The table of points for whoever has nothing but runs; exclusions are the fit's own."""
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
            state="Diverged" if run.diverged else "Finished" if run.finished else "Training",
            note="; ".join(reasons.get(run.name, ())),
        )
        for run in runs
    )


def points_table(rows: Sequence[PointRow], limit: int) -> Table:
    """Points with a note first: what was left out matters more than what went well."""
    ordered = sorted(rows, key=lambda row: not row.note)
    return Table(
        ("point", "parameters", "B", "learning rate", "tokens", "last loss", "state", "note"),
        tuple(
            (
                row.name,
                numbers.count(row.params),
                numbers.whole(row.batch_size),
                numbers.learning_rate(row.learning_rate),
                numbers.count(row.tokens),
                numbers.loss(row.loss),
                row.state,
                row.note,
            )
            for row in ordered[:limit]
        ),
        frozenset({1, 2, 3, 4, 5}),
        more=max(0, len(ordered) - limit),
    )


# ---------------------------------------------------------------------------------------- laws


def laws_table(laws: Laws) -> Table:
    """The three laws of the iso-loss route and the joint surface, as equations."""
    rows = [
        _hyperparameter_row("learning rate", laws.learning_rate),
        _hyperparameter_row("batch size", laws.batch_size),
        _loss_row(laws.loss_compute),
        _surface_row(laws),
    ]
    return Table(("law", "status", "equation", "fit"), tuple(rows))


def _hyperparameter_row(name: str, law: HyperparameterLaw) -> Cells:
    if law.intercept is None or law.slope is None:
        return (name, STATUS_WORDS[law.status], _reason(law.refusal), "")
    symbol = "LR" if law.quantity == "learning_rate" else "B"
    if law.form == "PowerLawOfLoss":
        slope = numbers.with_interval(law.slope_interval) if law.slope_interval else ""
        equation = (
            f"ln {symbol} = {numbers.digits(law.intercept, 4)} {_signed(law.slope)} ln L; "
            f"exponent {slope}"
        )
    else:
        y = f"ln {symbol}" if symbol == "LR" else symbol
        equation = f"ln C = {numbers.digits(law.intercept, 5)} {_signed(law.slope)} {y}"
    fit = f"R² {numbers.digits(law.r_squared, 3)}, {law.points} optima"
    return (name, STATUS_WORDS[law.status], equation, fit)


def _loss_row(law: LossComputeLaw) -> Cells:
    if law.gamma is None or law.irreducible_loss is None:
        return ("loss over compute", STATUS_WORDS[law.status], _reason(law.refusal), "")
    if law.irreducible_loss_fixed:
        ground = f"L₀ = {numbers.loss(law.irreducible_loss)} (fixed)"
    else:
        ground = f"L₀ = {numbers.with_interval(law.irreducible_loss_interval, 'loss')}"
    equation = (
        f"L = L₀ + α C^(−γ); {ground}, ln α = {numbers.digits(law.log_alpha, 4)}, "
        f"γ = {numbers.with_interval(law.gamma_interval) if law.gamma_interval else numbers.digits(law.gamma)}"
    )
    fit = f"rmse {numbers.digits(law.rmse, 2)} nats, {law.points} optima"
    if law.rmse_without_irreducible_loss is not None and not law.irreducible_loss_fixed:
        fit += f"; {numbers.digits(law.rmse_without_irreducible_loss, 2)} with L₀ = 0"
    if not law.irreducible_loss_identified:
        fit += "; L₀ is not identified by these data"
    return ("loss over compute", STATUS_WORDS[law.status], equation, fit)


def _surface_row(laws: Laws) -> Cells:
    surface = laws.surface
    if surface.planes is None:
        return ("joint surface", STATUS_WORDS[surface.status], _reason(surface.refusal), "")
    equation = f"LR ∝ {_exponents(surface.planes.learning_rate)}; B ∝ {_exponents(surface.planes.batch_size)}"
    fit = f"residual {numbers.digits(surface.residual_rms, 2)} nats, {surface.cells} (N, D) cells"
    return ("joint surface", STATUS_WORDS[surface.status], equation, fit)


def _exponents(plane: Plane) -> str:
    of_params, of_tokens = float(plane.of_params), float(plane.of_tokens)
    return f"N^({numbers.digits(of_params, 2)}) D^({numbers.digits(of_tokens, 2)})"


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {numbers.digits(abs(value), 4)}"


def _reason(refusal: Refusal | None) -> str:
    """The reason alone: the sentence stands once, among the refusals."""
    return "no reason given" if refusal is None else refusal.reason.value


def _refusal_words(refusal: Refusal | None) -> str:
    return "no reason given" if refusal is None else f"{refusal.reason.value}: {refusal.message}"


def refusals(laws: Laws) -> tuple[tuple[str, str], ...]:
    """(reason, sentence) of everything the laws refuse, each once."""
    found = [*laws.refusals, *([laws.surface.refusal] if laws.surface.refusal else [])]
    return tuple(dict.fromkeys((item.reason.value, item.message) for item in found))


def held_out_table(laws: Laws) -> Table | None:
    """How the two estimates did on what they were not shown."""
    if not laws.selection.scores:
        return None
    return Table(
        ("route", "mean regret (nats)", "largest regret (nats)", "error of LR", "error of B"),
        tuple(
            (
                score.route + (" (default)" if score.route == laws.default_route else ""),
                numbers.digits(score.regret_mean, 2),
                numbers.digits(score.regret_max, 2),
                f"{100 * score.log_learning_rate_error:.0f} %",
                f"{100 * score.log_batch_size_error:.0f} %",
            )
            for score in laws.selection.scores
        ),
        frozenset({1, 2, 3, 4}),
    )


def optima_table(laws: Laws) -> Table:
    """The frontier of least compute and each size's vertices, with errors of the logarithms."""
    listed = [*laws.frontier, *laws.optima]
    kinds = ["frontier"] * len(laws.frontier) + ["size"] * len(laws.optima)
    rows = tuple(_optimum_row(kind, item) for kind, item in zip(kinds, listed, strict=True))
    heads = ("of", "loss", "parameters", "learning rate", "B", "tokens", "FLOPs", "if refused")
    return Table(heads, rows, frozenset({1, 2, 3, 4, 5, 6}))


def _optimum_row(kind: str, item: Optimum) -> Cells:
    errors = item.standard_errors

    def spread(name: str) -> str:
        error = errors.get(name)
        return f" ± {100 * error:.0f} %" if error is not None and item.status != "refused" else ""

    return (
        kind,
        numbers.loss(item.loss),
        numbers.count(item.params),
        numbers.learning_rate(item.learning_rate) + spread("learning_rate"),
        numbers.whole(item.batch_size) + spread("batch_size"),
        numbers.count(item.tokens),
        numbers.flops(item.flops),
        _refusal_words(item.refusal) if item.refusal else "",
    )


# ---------------------------------------------------------------------------------- prediction


def prediction_facts(answer: Prediction, initial_loss: float | None) -> tuple[Cells, ...]:
    """(what, value) pairs of the answer, in the order in which it was computed."""
    rows: list[Cells] = []
    if initial_loss is not None:
        rows.append(("initial loss (nats per token)", numbers.loss(initial_loss)))
    if answer.equivalent_flops is not None:
        rows.append(
            (
                "equivalent pre-training compute C_pre (FLOPs)",
                numbers.with_interval(answer.equivalent_flops, "flops"),
            )
        )
    if answer.cpt_flops is not None:
        rows.append(("planned compute C_cpt (FLOPs)", numbers.flops(answer.cpt_flops)))
    rows.append(
        (
            "total effective compute C_total (FLOPs)",
            numbers.with_interval(answer.total_flops, "flops"),
        )
    )
    rows.append(
        ("target loss (nats per token)", numbers.with_interval(answer.target_loss, "loss"))
    )
    rows.append(("batch size (tokens)", numbers.with_interval(answer.batch_size_tokens, "count")))
    rows.append(("not rounded (sequences)", numbers.digits(answer.batch_size_raw, 4)))
    rows.append(("from", f"{answer.route} estimate"))
    far = answer.extrapolation
    rows.append(
        (
            "distance from the data",
            f"{numbers.digits(far.compute_factor, 2)} × the largest compute",
        )
    )
    return tuple(rows)


def alternatives_table(
    answer: Prediction, opinions: Sequence[PublishedOptimum], sequence_length: int | None
) -> Table:
    """Both routes, the two ablations and the published laws beside the answer."""
    points: Mapping[str, Point] = {
        **{f"{name} estimate": point for name, point in answer.routes.items()},
        **{f"variant {name}: {_VARIANTS.get(name, '')}": p for name, p in answer.variants.items()},
    }
    rows = [
        (
            name,
            numbers.with_interval(point.learning_rate, "learning_rate"),
            numbers.with_interval(point.batch_size, "whole"),
            numbers.flops(point.total_flops),
            "",
        )
        for name, point in points.items()
    ]
    rows += [
        (
            f"published law {item.name}",
            numbers.learning_rate(item.learning_rate),
            numbers.whole(item.batch_size(sequence_length)) if sequence_length else "–",
            numbers.flops(answer.total_flops.value),
            "; ".join(warning.removeprefix(f"{item.name}: ") for warning in item.warnings),
        )
        for item in opinions
    ]
    heads = ("estimate", "learning rate", "batch size (sequences)", "at C_total (FLOPs)", "note")
    return Table(heads, tuple(rows), frozenset({1, 2, 3}))


_VARIANTS = {
    "A": "the checkpoint's past ignored",
    "B": "C_pre from raw pre-training tokens",
}


def saving_sentence(cost: SearchCost) -> str:
    """The search cost beside a direct grid on the target, also where nothing is saved."""
    costs = (
        f"The sweep costs {numbers.flops(cost.proxy_flops)} FLOPs, a direct grid on the target "
        f"{numbers.flops(cost.direct_flops)}"
    )
    if cost.saving < 0:
        return f"{costs}: here the direct grid would be cheaper."
    return f"{costs}: {numbers.percent(cost.saving)} saved."


def iso_loss_sentence(laws: Laws) -> str | None:
    """What the optimum saves against the grid's median configuration, at the lowest loss."""
    savings = iso_loss_savings(laws)
    if not savings:
        return None
    last = savings[-1]
    return (
        f"At loss {numbers.loss(last.loss)} the optimum needs {numbers.flops(last.optimal_flops)} FLOPs, the "
        f"median configuration of the grid at that size {numbers.flops(last.reference_flops)}: "
        f"{numbers.percent(last.saving)} less, or more where that configuration never reached it."
    )
