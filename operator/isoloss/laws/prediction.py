"""What a prediction is asked and what it answers; answer/predict.py does the work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from isoloss.formatting import batch_size, flops, given, interval, learning_rate, number
from isoloss.laws.model import Interval, Refusal, Route, check_number, check_positive
from isoloss.laws.results import as_arrow, as_pandas
from isoloss.summaries import aligned, as_html, paragraphs
from isoloss.usual import FLOPS_PER_PARAM_AND_TOKEN

if TYPE_CHECKING:
    import pandas
    import pyarrow

Composition = Literal["Measured", "Paper"]
"""How the laws of runs from scratch are taken to a continued run. Paper: it wants what a run from scratch of
C_pre + C_cpt wants. Measured: the learning rate besides times (C_cpt / C_total)^0.5, as `make bench-transfer` found it."""
NO_NUMBERS = frozenset({"composition", "composition_error", "tokenizer"})
"""Fields of a query."""
MAY_BE_ZERO = frozenset({"initial_loss_standard_error"})
OF_A_CHECKPOINT = (
    *("initial_loss", "initial_loss_standard_error"),
    *("pretraining_tokens", "pretraining_learning_rate"),
)
BUDGETS = ("cpt_flops", "cpt_tokens", "total_flops")


@dataclass(frozen=True)
class PredictionQuery:
    """What is asked. Exactly one budget: cpt_flops, cpt_tokens (needs params) or total_flops.

    >>> query = isoloss.PredictionQuery(initial_loss=2.75, params=1e9, cpt_tokens=5e9)
    >>> answer = isoloss.predict(laws, query)
    """

    initial_loss: float | None = None
    """Loss of the checkpoint on the laws' validation data, nats per token; needed unless total_flops."""
    initial_loss_standard_error: float = 0.0
    cpt_flops: float | None = None
    cpt_tokens: float | None = None
    total_flops: float | None = None
    """Equivalent pre-training and continued pre-training together; no inversion takes place."""
    params: float | None = None
    """Active parameters of the target, counted as in the laws."""
    flops_per_token: float | None = None
    """Training FLOPs per token of the target, counted as in the laws; None: the laws' runs' FLOPs per parameter, 6 *
    params by default."""
    pretraining_tokens: float | None = None
    """For variant B."""
    pretraining_learning_rate: float | None = None
    """Peak learning rate of the checkpoint's pre-training, if known: continued runs of slower ones want less. Only for the best pair by
    the composition Measured."""
    composition: Composition = "Measured"
    """Unused with total_flops."""
    composition_error: tuple[float, float] | None = None
    """Standard deviations of ln LR and ln B that the intervals carry because a continued run need not want
    what a run from scratch of C_pre + C_cpt wants; None: as measured on small models. Unused with total_flops."""
    batch_size: float | None = None
    """Sequences: ask for the learning rate at this batch size, not for the best pair. Needs params."""
    batch_size_tolerance: float | None = None
    """Nats over the best batch size: ask for the range of those that are expected to cost no more."""
    round_to: float = 1
    """The batch size in sequences is rounded to a multiple of this, which is whole unless sequences are converted."""
    max_extrapolation: float | None = None
    """Factor of compute over the largest seen; None: the laws' own limit, if they have one."""
    tokenizer: str | None = None
    """Tokenizer of the checkpoint; refused if the laws' differs."""
    sequence_length: int | None = None
    """Tokens per sequence of the target run; None: the laws' own. All batch sizes of question and answer are in its sequences,
    converted at equal tokens per step; a difference causes a warning."""

    def __post_init__(self) -> None:
        """Raise TypeError for a number that is none, and ValueError for an unknown composition."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in NO_NUMBERS or value is None:
                continue
            value = check_number(f"PredictionQuery: {each.name}", value)
            if each.name != "sequence_length":
                # FLOPs as a product of whole numbers are soon beyond the 64 bits of numpy's.
                object.__setattr__(self, each.name, value)
        if self.composition_error is not None:
            object.__setattr__(self, "composition_error", _two_numbers(self.composition_error))
        if self.composition not in get_args(Composition):
            known = " or ".join(get_args(Composition))
            raise ValueError(
                f"PredictionQuery: composition must be {known}, not {self.composition!r}"
            )

    def check_numbers(self) -> None:
        """Raise ValueError, naming the field, for a number that is out of range."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in NO_NUMBERS | MAY_BE_ZERO and value is not None:
                check_positive(each.name, value)
        if self.sequence_length is not None and self.sequence_length % 1:
            raise ValueError(f"sequence_length: {self.sequence_length:g} is not a whole number")
        error = self.initial_loss_standard_error
        if not 0 <= error < math.inf:
            raise ValueError(
                f"initial_loss_standard_error: {error:g} is not a standard error: give 0 or more"
            )
        for deviation in self.composition_error or ():
            if not 0 <= deviation < math.inf:
                raise ValueError(
                    f"composition_error: {deviation:g} is not a standard deviation: give 0 or more"
                )

    def check(self) -> None:
        """Raise ValueError, naming the fields, if they contradict or need one another, or a number is out of range."""
        self.check_numbers()
        budgets = [each for each in BUDGETS if getattr(self, each) is not None]
        if len(budgets) != 1:
            raise ValueError("give exactly one of cpt_flops, cpt_tokens and total_flops")
        if self.total_flops is None and self.initial_loss is None:
            raise ValueError(f"{budgets[0]} needs initial_loss")
        for name in OF_A_CHECKPOINT:
            if self.total_flops is not None and getattr(self, name):
                raise ValueError(f"total_flops takes no {name}: it is of a run from scratch")
        if self.params is None:
            if self.cpt_tokens is not None and self.flops_per_token is None:
                raise ValueError("cpt_tokens needs params, to convert tokens to FLOPs")
            if self.batch_size is not None:
                raise ValueError("batch_size needs params: it depends on the size, too")
        if self.params is not None and self.flops_per_token is not None:
            (low, high), ratio = FLOPS_PER_PARAM_AND_TOKEN, self.flops_per_token / self.params
            if not low <= ratio <= high:
                raise ValueError(
                    f"flops_per_token: {self.flops_per_token:.4g} is {ratio:.3g} for each of params, {self.params:.4g}, but about "
                    "6 is usual: another unit, or FLOPs of a sequence or a step"
                )
        self._check_rate()
        if self.batch_size is not None and self.batch_size_tolerance is not None:
            raise ValueError(
                "batch_size_tolerance is about the best batch size: leave batch_size out"
            )

    def _check_rate(self) -> None:
        if self.pretraining_learning_rate is None:
            return
        if self.composition != "Measured":
            raise ValueError("pretraining_learning_rate needs the composition Measured")
        if self.batch_size is not None:
            raise ValueError(
                "pretraining_learning_rate is about the best pair: leave batch_size out"
            )


def _two_numbers(value: Any) -> tuple[float, float]:
    """Raises TypeError for anything else."""
    name = "PredictionQuery: composition_error"
    if not isinstance(value, Iterable) or len(found := list(value)) != 2:
        raise TypeError(f"{name} must be two numbers, of ln LR and ln B, not {value!r}")
    return check_number(name, found[0]), check_number(name, found[1])


@dataclass(frozen=True)
class Point:
    """A learning rate and a batch size at some total compute."""

    learning_rate: Interval
    batch_size: Interval
    """Sequences, not rounded."""
    total_flops: float
    target_loss: float | None = None


@dataclass(frozen=True)
class Extrapolation:
    """How far the answer is from the data."""

    compute_factor: float
    """Total compute over the most that several runs of one size were trained for; at most 1: inside."""
    loss_distance: float | None
    """Lowest loss on the frontier less the target loss, nats; positive: beyond the data."""
    params_factor: float | None
    """Target parameters over the largest size; None if not given."""


@dataclass(frozen=True)
class BatchSizeRange:
    """Batch sizes, in sequences, that are expected to cost at most so much more than the best one."""

    tolerance: float
    """Nats."""
    smallest: float
    largest: float
    is_open_below: bool = False
    """Whether smaller ones may be among them, of which nothing is known."""
    is_open_above: bool = False


@dataclass(frozen=True)
class Prediction:
    """The answer.

    >>> answer = laws.predict(initial_loss=2.75, params=1e9, cpt_tokens=5e9)
    >>> f"{answer.learning_rate.value:.1e}, {answer.batch_size.value:.0f} sequences"
    '2.0e-04, 262 sequences'
    """

    learning_rate: Interval
    batch_size: Interval
    """Sequences: `value` rounded to round_to, low and high not rounded."""
    batch_size_raw: float
    """Sequences, before rounding."""
    batch_size_tokens: Interval
    target_loss: Interval | None
    """None if the loss-compute law was refused and total_flops was given."""
    equivalent_flops: Interval | None
    """C_pre; None if total_flops was given."""
    cpt_flops: float | None
    total_flops: Interval
    extrapolation: Extrapolation
    route: Route
    variants: dict[str, Point]
    """paper, or measured if the paper's composition answers; A: the laws at C_total = C_cpt; B: at C_pre from the raw
    pre-training tokens."""
    interval_level: float
    provisional: bool
    composition: Composition | None = None
    """None if the total compute was given and nothing is composed."""
    warnings: tuple[str, ...] = ()
    expected_regret: float = 0.0
    """Nats that the errors of learning rate and batch size are expected to cost, those of the composition included and those of C_pre not."""
    expected_regret_flops: float = 0.0
    """The compute that this loss is worth at C_total."""
    best: Point | None = None
    """The best pair, not rounded, also where the batch size is given; None: not known."""
    batch_size_given: bool = False
    """Whether the batch size was given: the learning rate is the best one there."""
    batch_size_cost: Interval | None = None
    """Nats that the given batch size costs over the best one, each with its best learning rate; None: not known."""
    affordable: BatchSizeRange | None = None
    """None if no tolerance was asked for, or no batch size is known well enough."""
    sequence_length: int | None = None
    """Tokens per sequence of all its batch sizes; None: unknown."""

    def __repr__(self) -> str:
        rate = interval(self.learning_rate, learning_rate)
        batch = batch_size_text(self, self.batch_size)
        return f"<Prediction: learning rate {rate},\n batch size {batch} sequences;\n summary() shows the rest>"

    def summary(self) -> str:
        """The answer as a table, and its warnings."""
        rows = [("", _level(self)), *_rows(self)]
        return "\n".join([aligned(rows), *_warning_lines(self)])

    def to_arrow(self) -> pyarrow.Table:
        """A row for each quantity, with its interval."""
        quantities = {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "batch_size_tokens": self.batch_size_tokens,
            "equivalent_flops": self.equivalent_flops,
            "total_flops": self.total_flops,
            "target_loss": self.target_loss,
        }
        rows = [
            {"quantity": name, "value": each.value, "low": each.low, "high": each.high}
            for name, each in quantities.items()
            if each is not None
        ]
        return as_arrow(rows)

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a data frame; needs pandas."""
        return as_pandas(self.to_arrow())

    def _repr_html_(self) -> str:
        return as_html(_rows(self), ("", _level(self))) + paragraphs(_warning_lines(self))


@dataclass(frozen=True)
class Refused:
    """No answer, and every reason for it.

    >>> isinstance(laws.predict(initial_loss=1.2, params=1e9, cpt_tokens=5e9), isoloss.Refused)
    True
    """

    refusals: tuple[Refusal, ...]
    warnings: tuple[str, ...] = ()
    answered_at: float | None = None
    """A batch size, sequences, with which the same question has an answer; None: not known of any."""

    def __repr__(self) -> str:
        reasons = ", ".join(each.reason.value for each in self.refusals)
        return f"<Refused: {reasons}; summary() says what to change>"

    def summary(self) -> str:
        """Every reason, with what to change."""
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return paragraphs(self._lines())

    def _lines(self) -> list[str]:
        return [f"Refused: {each.reason.value}: {each.message}" for each in self.refusals]


def _rows(answer: Prediction) -> list[tuple[str, str]]:
    """What was asked for, with its interval, and how far it is from the data."""
    rate = interval(answer.learning_rate, learning_rate)
    beyond = number(answer.extrapolation.compute_factor, 2)
    return [
        ("learning rate", rate),
        ("batch size (sequences)", batch_size_text(answer, answer.batch_size)),
        ("total effective compute (FLOPs)", total_flops_text(answer)),
        ("expected to lose", regret_text(answer)),
        ("extrapolation", f"{beyond} x the largest compute of the sweep"),
    ]  # fmt: skip


def batch_size_text(
    answer: Prediction,
    found: Interval,
    write: Callable[[float | None], str] = batch_size,
) -> str:
    """A batch size of the answer with its interval; the one that was given has none."""
    is_given = answer.batch_size_given and found.low == found.high
    return given(write(found.value)) if is_given else interval(found, write)


def regret_text(answer: Prediction) -> str:
    """What the answer is expected to lose, as loss and as what that is worth: a share of the compute of the planned run."""
    planned = answer.cpt_flops or answer.total_flops.value
    share = 100.0 * answer.expected_regret_flops / planned
    return f"{number(answer.expected_regret, 2)} nats, worth {number(share, 2)}% more compute"


def total_flops_text(answer: Prediction) -> str:
    """C_total with its interval; it has none if it was given, in place of an initial loss."""
    found = answer.total_flops
    return interval(found, flops) if answer.equivalent_flops else given(flops(found.value))


def _warning_lines(answer: Prediction) -> list[str]:
    return [f"Warning: {warning}" for warning in answer.warnings]


def _level(answer: Prediction) -> str:
    return f"{answer.interval_level:.0%} interval"
