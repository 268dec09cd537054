"""The options that describe a prediction, shared by predict and report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from isoloss.cli.inputs import positive
from isoloss.errors import BadInput
from isoloss.laws import Laws, Prediction, PredictionQuery, Refused
from isoloss.laws import predict as predict_from
from isoloss.laws_files import read_laws
from isoloss.published import is_published

InitialLoss = Annotated[
    float | None,
    typer.Option(help="The checkpoint's loss on the validation data of the laws, nats per token."),
]
InitialLossError = Annotated[float, typer.Option(help="Standard error of the initial loss.")]
CptFlops = Annotated[float | None, typer.Option(help="Planned compute in FLOPs.")]
CptTokens = Annotated[
    str | None, typer.Option(metavar="COUNT", help="Planned tokens, such as 55B; needs --params.")
]
TotalFlops = Annotated[
    float | None,
    typer.Option(
        help="Total effective compute in FLOPs, in place of an initial loss and a budget."
    ),
]
Params = Annotated[
    str | None,
    typer.Option(
        metavar="COUNT",
        help="Active parameters of the target in matrix products, output head included, such as 8B.",
    ),
]
FlopsPerToken = Annotated[
    float | None,
    typer.Option(
        help="Training FLOPs per token of the target, for laws that count attention; needs --params."
    ),
]
PretrainingTokens = Annotated[
    str | None,
    typer.Option(
        metavar="COUNT",
        help="Tokens the checkpoint was trained on, for variant B; needs --params.",
    ),
]


class Composing(StrEnum):
    """How laws of runs from scratch are taken to a continued run."""

    MEASURED = "Measured"
    PAPER = "Paper"


Composition = Annotated[
    Composing,
    typer.Option(
        case_sensitive=False,
        help="Paper: a continued run wants what a run from scratch of C_pre + C_cpt wants. Measured: the learning rate "
        "is also multiplied by the square root of s = C_cpt / (C_pre + C_cpt) and the batch size by 2 - s, as continued runs of small "
        "checkpoints wanted.",
    ),
]
CompositionError = Annotated[
    tuple[float, float] | None,
    typer.Option(
        metavar="LR B",
        help="Standard deviations of ln LR and ln B that the intervals carry because a continued run need not "
        "want what a run from scratch wants. As measured on small models by default; 0 0 leaves it out.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1_000_000,
        help="Sequences: print the best learning rate at this batch size, in place of the best pair; needs --params.",
    ),
]
BatchSizeTolerance = Annotated[
    float | None,
    typer.Option(
        help="Nats: print the smallest and largest batch size that are expected to cost at most this much."
    ),
]
RoundTo = Annotated[
    int, typer.Option(min=1, max=1_000_000, help="Round the batch size to a multiple of this.")
]
SequenceLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens per sequence of the target run.")
]


@dataclass(frozen=True)
class Asked:
    """The options of a question, as given."""

    initial_loss: float | None = None
    initial_loss_standard_error: float = 0.0
    cpt_flops: float | None = None
    cpt_tokens: float | None = None
    total_flops: float | None = None
    params: float | None = None
    flops_per_token: float | None = None
    pretraining_tokens: float | None = None
    composition: Composing = Composing.MEASURED
    composition_error: tuple[float, float] | None = None
    batch_size: int | None = None
    batch_size_tolerance: float | None = None
    round_to: int = 1
    sequence_length: int | None = None

    def __post_init__(self) -> None:
        """Raise BadInput for impossible numbers."""
        for option in (
            *("initial_loss", "cpt_flops", "cpt_tokens", "total_flops", "params"),
            *("pretraining_tokens", "flops_per_token", "batch_size", "batch_size_tolerance"),
        ):
            positive(f"--{option.replace('_', '-')}", getattr(self, option))
        error = self.initial_loss_standard_error
        if not 0 <= error < float("inf"):
            raise BadInput(f"--initial-loss-standard-error: {error:g} is not a standard error")
        for deviation in self.composition_error or ():
            if not 0 <= deviation < float("inf"):
                raise BadInput(f"--composition-error: {deviation:g} is not a standard deviation")

    @property
    def budgets(self) -> list[str]:
        """Names of the given budget options."""
        names = ("cpt_flops", "cpt_tokens", "total_flops")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def is_empty(self) -> bool:
        """Whether no option of a question was given."""
        return self == Asked()

    def query(self) -> PredictionQuery:
        """The query for the engine. Raises BadInput for options that contradict or need one another."""
        if len(self.budgets) != 1:
            raise BadInput("give exactly one of --cpt-flops, --cpt-tokens and --total-flops")
        if self.total_flops is not None and self.initial_loss is not None:
            raise BadInput("--total-flops takes no --initial-loss: the total is already given")
        if self.total_flops is None and self.initial_loss is None:
            raise BadInput(f"--{self.budgets[0].replace('_', '-')} needs --initial-loss")
        if self.cpt_tokens is not None and self.params is None:
            raise BadInput("--cpt-tokens needs --params, to convert tokens to FLOPs")
        if self.pretraining_tokens is not None and self.params is None:
            raise BadInput("--pretraining-tokens needs --params, to convert tokens to FLOPs")
        if self.flops_per_token is not None and self.params is None:
            raise BadInput(
                "--flops-per-token needs --params, to know the part that is not attention"
            )
        if self.batch_size is not None and self.params is None:
            raise BadInput("--batch-size needs --params: it depends on the size, too")
        if self.batch_size is not None and self.batch_size_tolerance is not None:
            raise BadInput(
                "--batch-size-tolerance is about the best batch size: leave --batch-size out"
            )
        if self.batch_size is not None and self.round_to != 1:
            raise BadInput("--round-to is about the best batch size: leave --batch-size out")
        return PredictionQuery(**{**vars(self), "composition": self.composition.value})


def own_laws(source: str, command: str) -> Laws:
    """Laws of a file or of a sweep in the store. Raises BadInput naming it, and for a published law."""
    if is_published(source):
        raise BadInput(
            f"{source}: isoloss {command} needs laws of your own, fitted to runs; isoloss predict takes published ones, too"
        )
    return read_laws(source)


def answer_of(laws: Laws, query: PredictionQuery) -> Prediction | Refused:
    """The laws' answer. Raises BadInput for a question that they do not take."""
    try:
        return predict_from(laws, query)
    except ValueError as error:  # the engine's own check of the question
        raise BadInput(str(error)) from error
