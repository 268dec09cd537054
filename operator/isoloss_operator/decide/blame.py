"""Which spec field the trainer's words are about: it knows its task, people know their manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic.alias_generators import to_camel

from isoloss_operator.decide.conditions import shortened
from isoloss_operator.decide.outcomes import Verdict

_PLAIN: Final[Mapping[str, str]] = {
    "tokenizer": "spec.data.tokenizer",
    "sequence_length": "spec.data.sequenceLength",
    "validation_documents_per_thousand": "spec.data.validation.documentsPerThousand",
    "validation": "spec.data.validation",
    "data": "spec.data",
    "checkpoint": "spec.checkpoint",
    "optimizer": "spec.optimizer",
    "evaluation": "spec.evaluation",
}


def spec_field(
    field: str, *, domains: Sequence[str] = (), proxy: int | None = None, model: str = "config"
) -> str:
    """The field of the manifest behind a field of the task, as `domains.math.text_field`.

    `domains` are the names in the spec's order, `proxy` the index of the size at fault and `model` how
    its model is given: only a `config` has the keys that the trainer speaks of. A field that has no
    counterpart is passed on as it is.
    """
    head, _, rest = field.partition(".")
    if head in ("domains", "mixture"):
        name, _, leaf = rest.partition(".")
        if name in domains:
            return _joined(f"spec.data.domains[{domains.index(name)}]", leaf)
    if head == "model" and proxy is not None:
        given = f"spec.proxies[{proxy}].model"
        if not rest:
            return given
        return f"{given}.config.{rest}" if model == "config" else f"{given}.{model}"
    return _joined(_PLAIN[head], rest) if head in _PLAIN else field


def _joined(parent: str, leaf: str) -> str:
    return f"{parent}.{to_camel(leaf)}" if leaf else parent


def in_words(verdict: Verdict, field: str, limit: int) -> str:
    """The last words, led by the field where one is to blame."""
    message = f"{field}: {verdict.message}" if field else verdict.message
    return shortened(message, limit)
