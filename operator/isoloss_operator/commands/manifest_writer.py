"""The manifests that `isoloss init` writes, with a comment at every value that is a guess."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from jinja2 import Environment, PackageLoader, StrictUndefined

from isoloss import formatting
from isoloss.yaml_text import read_documents
from isoloss_operator import api
from isoloss_operator.commands.costs import PlacedSize
from isoloss_operator.commands.design import FIRST_TOKENS, NODE, Design, ProxySize
from isoloss_operator.commands.options import Checkpoint, CorpusPart

GUESSED = "guessed"
"""Marks a line that its owner must look at."""
VALIDATION = "-validation"
"""How the name of the sweep around the answer ends."""


@dataclass(frozen=True)
class Written:
    """Everything that the manifests say."""

    name: str
    namespace: str | None
    checkpoint: Checkpoint
    cpt_tokens: int
    storage: str
    is_storage_guessed: bool
    secret: str | None
    tokenizer: str
    sequence_length: int
    is_sequence_length_guessed: bool
    corpus: Sequence[CorpusPart]
    design: Design
    evaluation_accelerators: int
    """That hold the checkpoint's weights."""
    accelerators: int
    """Of each Job."""
    parallelism: int
    """Jobs at a time."""
    validation_sequences: int | None = None
    """Per domain; None: the API's default."""
    budget: float | None = None
    """FLOPs; None: not known yet."""
    grids: Sequence[PlacedSize] | None = None
    """None: a search places them."""
    validated_share: float | None = None
    """Share of the planned tokens after which points around the answer show whether it holds; None: nothing shows it."""
    training_accelerators: int = 1
    """That hold the training state of the checkpoint."""
    costs: Sequence[str] = field(default=())
    """What it costs, in sentences for the head of the file."""

    @property
    def validation_tokens(self) -> int:
        """Of each run around the answer."""
        return max(round((self.validated_share or 0.0) * self.cpt_tokens), 1)


def manifests(written: Written) -> str:
    """A ScalingSweep, a HyperparamPrediction and, if its answer is to be validated, a ScalingSweep around that, as YAML."""
    other = written.checkpoint.nearest
    return _ENVIRONMENT.get_template("manifests.yaml.j2").render(
        asked=written,
        nearest=other,
        sentences=(*(other.sentences if other else ()), *written.costs),
        at_work=written.parallelism * written.accelerators,
        api=api,
        around=VALIDATION,
        first_tokens=FIRST_TOKENS,
        node=NODE,
    )


def guesses(text: str) -> int:
    """How many lines of manifests are guesses."""
    return sum(f"# {GUESSED}" in line for line in text.splitlines())


def _scalar(text: str) -> str:
    """A text that YAML reads as that text: in quotes if it would take it for something else."""
    # One letter alone is a truth value to some readers.
    is_plain = len(text) > 1 and read_documents(f"- {text}") == [[text]]
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _value(value: object) -> str:
    """A setting of a model: JSON is YAML."""
    return _scalar(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parameters(size: ProxySize) -> str:
    active, total = formatting.count(size.active), formatting.count(size.total)
    return (
        f"{active} parameters"
        if active == total
        else f"{active} active parameters, {total} in all"
    )


def _proxy_name(parameters: int) -> str:
    return f"proxy-{formatting.count(parameters).lower().replace('.', '-')}"


_ENVIRONMENT = Environment(
    loader=PackageLoader("isoloss_operator.commands"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {
    "scalar": _scalar,
    "value": _value,
    "parameters": _parameters,
    "proxy_name": _proxy_name,
    "g": lambda value, digits=6: f"{value:.{digits}g}",
    "count": formatting.count,
    "counted": formatting.counted,
    "number": formatting.number,
    "learning_rate": formatting.learning_rate,
    "flops": formatting.flops,
}
