"""The options that describe a prediction, shared by predict, report and validate."""

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from isoloss.cli.inputs import optional_count
from isoloss.errors import BadInput
from isoloss.laws import Laws, PredictionQuery
from isoloss.laws_files import read_laws
from isoloss.published import is_published


class Composing(StrEnum):
    """How laws of runs from scratch are taken to a continued run."""

    MEASURED = "Measured"
    PAPER = "Paper"


def _option(name: str, kind: Any, description: str, default: Any = None, **more: Any) -> Parameter:
    annotation = Annotated[kind, typer.Option(help=description, **more)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


COUNT, MOST = "COUNT", 1_000_000
OPTIONS = (
    _option(
        "initial_loss",
        float | None,
        "The checkpoint's loss on the validation data of the laws, nats per token, as `isoloss measure` prints it.",
    ),
    _option("initial_loss_standard_error", float, "Standard error of the initial loss.", 0.0),
    _option("cpt_flops", float | None, "Planned compute in FLOPs."),
    _option(
        "cpt_tokens", str | None, "Planned tokens, such as 55B; needs --params.", metavar=COUNT
    ),
    _option(
        "total_flops",
        float | None,
        "Compute of a run from scratch in FLOPs, in place of an initial loss and a budget.",
    ),
    _option(
        "params",
        str | None,
        "Active parameters of the target in matrix products, output head included, such as 8B.",
        metavar=COUNT,
    ),
    _option(
        "flops_per_token",
        float | None,
        "Training FLOPs per token of the target, for laws that count attention; needs --params.",
    ),
    _option(
        "pretraining_tokens",
        str | None,
        "Tokens the checkpoint was trained on, for variant B; needs --params.",
        metavar=COUNT,
    ),
    _option(
        "pretraining_learning_rate",
        float | None,
        "Peak learning rate that the checkpoint was pre-trained at, of a quarter to 1.3 times the laws'.",
    ),
    _option(
        "composition",
        Composing,
        "Paper: the settings of a run from scratch of C_pre + C_cpt. Measured: the learning rate "
        "is also multiplied by the square root of s = C_cpt / (C_pre + C_cpt) and the batch size by 2 - s, as continued runs of small "
        "checkpoints wanted.",
        Composing.MEASURED,
        case_sensitive=False,
        metavar="|".join(Composing),
    ),
    _option(
        "composition_error",
        tuple[float, float] | None,
        "Standard deviations of ln LR and ln B that continued runs add to the intervals of runs from scratch. "
        "As measured on small models by default; 0 0 leaves it out.",
        metavar="LR B",
    ),
    _option(
        "batch_size",
        int | None,
        "Sequences: print the best learning rate at this batch size, in place of the best pair; needs --params.",
        min=1,
        max=MOST,
    ),
    _option(
        "batch_size_tolerance",
        float | None,
        "Nats: print the smallest and largest batch size that are expected to cost at most this much.",
    ),
    _option("round_to", int, "Round the batch size to a multiple of this.", 1, min=1, max=MOST),
    _option("sequence_length", int | None, "Tokens per sequence of the target run.", min=1),
)
"""Of a question, named as the fields of PredictionQuery."""
NOTHING_ASKED = PredictionQuery()
FEWEST_TOKENS = 0.01
"""Per parameter; a checkpoint of fewer was not trained, so the number has another unit."""
COUNTS = ("cpt_tokens", "params", "pretraining_tokens")
FIELD = re.compile(rf"\b({'|'.join(each.name for each in OPTIONS)})\b")


def asks(*, without: Collection[str] = ()) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Gives a command the options of a question, but for some, in place of its parameter `asked`, which is the PredictionQuery.

    Its numbers are checked, and nothing else of it: see `checked`.
    """
    added = [each for each in OPTIONS if each.name not in without]

    def with_options(body: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(body)
        def run(**given: Any) -> int:
            question = {each.name: given.pop(each.name) for each in added}
            return body(**given, asked=_asked(question))

        own = signature(body, eval_str=True)
        parameters = [
            each.replace(kind=Parameter.KEYWORD_ONLY) for each in own.parameters.values()
        ]
        place = list(own.parameters).index("asked")
        parameters[place : place + 1] = added
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return with_options


def _asked(question: dict[str, Any]) -> PredictionQuery:
    """Raises BadInput, naming the option, for an impossible number."""
    counts = {
        name: optional_count(f"--{name.replace('_', '-')}", question[name])
        for name in COUNTS
        if name in question
    }
    asked = PredictionQuery(**{**question, **counts, "composition": question["composition"].value})
    with _naming_options():
        asked.check_numbers()
    return asked


def checked(asked: PredictionQuery) -> PredictionQuery:
    """The question. Raises BadInput for options that contradict or need one another, or of which one would do nothing."""
    with _naming_options():
        asked.check()
        if asked.total_flops is not None:
            for each in ("composition", "composition_error"):
                if getattr(asked, each) != getattr(NOTHING_ASKED, each):
                    raise ValueError(f"total_flops takes no {each}: it is of a run from scratch")
        if asked.params is None and asked.pretraining_tokens is not None:
            raise ValueError("pretraining_tokens needs params, to convert tokens to FLOPs")
        if (asked.pretraining_tokens or math.inf) < FEWEST_TOKENS * (asked.params or 0):
            raise ValueError(
                f"pretraining_tokens: {asked.pretraining_tokens:.10g} tokens do not train {asked.params:.4g} parameters: "
                "check its unit, as in 1e12 or 1T"
            )
        if asked.params is None and asked.flops_per_token is not None:
            raise ValueError(
                "flops_per_token needs params, to know the part that is not attention"
            )
        if asked.batch_size is not None and asked.round_to != 1:
            raise ValueError("round_to is about the best batch size: leave batch_size out")
    return asked


def in_words(asked: PredictionQuery) -> str:
    """The question as its options, without those that have their defaults."""
    given = with_defaults(asked, [each.name for each in OPTIONS])
    return " ".join(
        f"--{name.replace('_', '-')} {_written(value)}"
        for name, (value, default) in given.items()
        if value != default
    )


def with_defaults(asked: PredictionQuery, names: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """These fields of a question, each with its default."""
    return {name: (getattr(asked, name), getattr(NOTHING_ASKED, name)) for name in names}


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_written, value))
    return value if isinstance(value, str) else f"{value:.10g}"


@contextmanager
def _naming_options() -> Iterator[None]:
    """Turns a ValueError about fields of a question into BadInput about options."""
    try:
        yield
    except ValueError as error:
        options = FIELD.sub(lambda found: f"--{found[0].replace('_', '-')}", str(error))
        raise BadInput(options) from error


def own_laws(source: str, command: str) -> Laws:
    """Laws of a file or of a sweep in the store. Raises BadInput naming it, and for a published law."""
    if is_published(source):
        raise BadInput(
            f"{source}: isoloss {command} needs laws of your own, fitted to runs; isoloss predict takes published ones, too"
        )
    return read_laws(source)
