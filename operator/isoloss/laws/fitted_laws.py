"""The whole result of a fit, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from isoloss.laws import formulas, results
from isoloss.laws.arrays import Count
from isoloss.laws.model import (
    FitOptions,
    Refusal,
    StartedFrom,
    Status,
)
from isoloss.laws.results import as_arrow, as_pandas
from isoloss.laws.run_noise import RunNoise
from isoloss.summaries import aligned, as_html, paragraphs

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from isoloss.laws.prediction import Prediction, Refused

FitTable = Literal["optima", "laws", "excluded"]
"""optima: what the laws are fitted to, of the frontier and of each size. laws: a row for each law.
excluded: the runs that were left out, and why."""
LAW_HEADS = ("law", "status", "formula", "fit")
STATUS_WORDS = {"fitted": "Fitted", "provisional": "Provisional", "refused": "Refused"}


@dataclass(frozen=True, repr=False)
class Laws:
    """The whole result of a fit. A notebook shows it as a table, which `summary` has as text.

    >>> laws = isoloss.read_laws("laws.json")
    >>> answer = laws.predict(initial_loss=2.75, params=1e9, cpt_tokens=5e9)
    """

    status: Status
    learning_rate: results.HyperparameterLaw
    batch_size: results.HyperparameterLaw
    loss_compute: results.LossComputeLaw
    surface: results.SurfaceLaw
    rate_at_batch: results.RateAtBatchLaw
    """Answers if the batch size is given."""
    optima: tuple[results.Optimum, ...]
    """Per level and size."""
    frontier: tuple[results.Optimum, ...]
    """Across sizes, by least compute, per level: what the laws are fitted to."""
    contours: tuple[results.Contour, ...]
    excluded: tuple[results.Exclusion, ...]
    warnings: tuple[str, ...]
    data: results.DataRange
    draws: results.Draws
    sequence_length: Count | None
    options: FitOptions
    tokenizer: str | None = None
    loss_kind: str | None = None
    optimizer: str | None = None
    started_from: StartedFrom | None = None
    """What the runs began with. Of laws of runs that continue checkpoints compute is that of the continuation, and a
    prediction composes nothing."""
    run_noise: RunNoise | None = None
    """Between seeds; None: nothing was trained with two."""

    def predict(self, **question: Any) -> Prediction | Refused:
        """Learning rate and batch size for a checkpoint and a budget, or why there is no answer.

        The keywords are the fields of `PredictionQuery`:
        `laws.predict(initial_loss=2.75, cpt_tokens=5e9, params=1e9)`. Raises TypeError for another keyword or what is no
        number, and ValueError if they contradict or need one another.
        """
        # By name, because answers are made from laws: an import would go in a circle.
        answers = import_module("isoloss.laws")
        answer: Prediction | Refused = answers.predict(self, answers.PredictionQuery(**question))
        return answer

    def summary(self) -> str:
        """The laws as a table, and why what is refused is."""
        return "\n".join([aligned([LAW_HEADS, *law_rows(self)]), *_refusal_lines(self)])

    def to_arrow(self, table: FitTable = "optima") -> pyarrow.Table:
        """The optima, the laws or the excluded runs. Losses in nats per token, batch sizes in sequences, compute in FLOPs.

        Raises ValueError for another table.
        """
        if table == "optima":
            return as_arrow(_optima(self))
        if table == "laws":
            heads = ("law", "status", "formula", "quality")
            return as_arrow([dict(zip(heads, row, strict=True)) for row in law_rows(self)], heads)
        if table == "excluded":
            rows = [{"run": each.run, "reason": each.reason} for each in self.excluded]
            return as_arrow(rows, ("run", "reason"))
        raise ValueError(f"table must be one of {', '.join(get_args(FitTable))}, not {table!r}")

    def to_pandas(self, table: FitTable = "optima") -> pandas.DataFrame:
        """The same as a data frame; needs pandas."""
        return as_pandas(self.to_arrow(table))

    def __repr__(self) -> str:
        return f"<Laws: {self.status}, of {len(self.data.sizes)} sizes; summary() shows them>"

    def _repr_html_(self) -> str:
        return as_html(law_rows(self), LAW_HEADS) + paragraphs(_refusal_lines(self))

    @property
    def only_batch_size(self) -> float | None:
        """Sequences of the single batch size that was trained, if the best learning rate at it is known; None otherwise.

        Such laws answer for a checkpoint, although those of the best pair are refused.
        """
        sizes = self.data.batch_sizes
        is_known = self.rate_at_batch.curve is not None and self.loss_compute.curve is not None
        return sizes[0] if len(sizes) == 1 and is_known else None

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Refusals of the laws, without repetitions: of the joint surface, which answers, and of the three iso-loss laws."""
        parts = (self.surface, self.learning_rate, self.batch_size, self.loss_compute)
        found = [part.refusal for part in parts if part.refusal is not None]
        return tuple(r for i, r in enumerate(found) if r not in found[:i])


def law_rows(laws: Laws) -> list[tuple[str, str, str, str]]:
    """The three laws and the joint surface under `LAW_HEADS`; of a refused one the reason."""
    rate, batch, curve, surface = (
        laws.learning_rate,
        laws.batch_size,
        laws.loss_compute,
        laws.surface,
    )
    shown = (
        ("learning rate", rate, formulas.hyperparameter_formula(rate), formulas.hyperparameter_quality(rate)),
        ("batch size", batch, formulas.hyperparameter_formula(batch), formulas.hyperparameter_quality(batch)),
        ("loss over compute", curve, formulas.loss_compute_formula(curve), formulas.loss_compute_quality(curve)),
        ("joint surface", surface, formulas.surface_formula(surface), formulas.surface_quality(surface)),
    )  # fmt: skip
    rows = []
    for name, law, formula, quality in shown:
        reason = "no reason given" if law.refusal is None else law.refusal.reason.value
        found = (formula, quality) if formula else (reason, "")
        rows.append((name, STATUS_WORDS[law.status], *found))
    return rows


def refused_parts(laws: Laws) -> tuple[tuple[str, str], ...]:
    """(reason, message) of everything that was refused, each once."""
    return tuple(dict.fromkeys((item.reason.value, item.message) for item in laws.refusals))


def _refusal_lines(laws: Laws) -> list[str]:
    return [f"Refused: {reason}: {message}" for reason, message in refused_parts(laws)]


def _optima(laws: Laws) -> list[Mapping[str, Any]]:
    listed = [("frontier", each) for each in laws.frontier] + [
        ("size", each) for each in laws.optima
    ]
    return [
        {
            "of": kind,
            "loss": each.loss,
            "params": each.params,
            "status": each.status,
            "learning_rate": each.learning_rate,
            "log_learning_rate_error": each.standard_errors.get("learning_rate"),
            "batch_size": each.batch_size,
            "log_batch_size_error": each.standard_errors.get("batch_size"),
            "tokens": each.tokens,
            "flops": each.flops,
            "refusal": each.refusal.reason.value if each.refusal is not None else None,
        }
        for kind, each in listed
    ]
