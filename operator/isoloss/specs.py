"""From what the API server stored to types the core can trust, with every complaint naming its field.

The CRD's schema and CEL rules refuse most mistakes at `kubectl apply`; the same rules hold here for the
command line and for objects written before a rule existed. Nothing here raises anything but InvalidSpec.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from isoloss.architectures import UnsupportedModel, parameter_counts, preset_config, unknown_keys
from isoloss.contract import DomainSource, OptimizerConfig, PrepareConfig
from isoloss.resources import (
    MAX_POINTS,
    Grid,
    HyperparamPredictionSpec,
    Model,
    Optimizer,
    Proxy,
    ScalingSweepSpec,
)
from isoloss.runs import WARMUP_MULTIPLE

MAX_ERRORS = 10
"""More complaints than this at once help nobody."""

Spec = TypeVar("Spec", bound=BaseModel)


@dataclass(frozen=True)
class SpecError:
    """One thing wrong with a spec: the field as the user wrote it, and what to do."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidSpec(ValueError):
    """A spec that can not be worked on; `errors` holds every complaint."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(errors)
        super().__init__(in_words(self.errors))


def in_words(errors: Sequence[SpecError]) -> str:
    """The complaints as one message."""
    shown = "; ".join(str(error) for error in errors[:MAX_ERRORS])
    more = len(errors) - MAX_ERRORS
    return f"{shown}; and {more} more" if more > 0 else shown


def parse_sweep_spec(raw: Mapping[str, Any]) -> ScalingSweepSpec:
    """The spec of a ScalingSweep, checked as far as that is possible without its corpus.

    Raises InvalidSpec.
    """
    spec = _parse(raw, ScalingSweepSpec)
    errors = [*_grid_errors(spec), *_proxy_errors(spec), *_setting_errors(spec)]
    if errors:
        raise InvalidSpec(errors)
    return spec


def parse_prediction_spec(raw: Mapping[str, Any]) -> HyperparamPredictionSpec:
    """The spec of a HyperparamPrediction. Raises InvalidSpec."""
    spec = _parse(raw, HyperparamPredictionSpec)
    errors = []
    if (spec.checkpoint is None) == (spec.initial_loss is None):
        errors.append(SpecError("spec", "set exactly one of checkpoint and initialLoss"))
    if (spec.budget.flops is None) == (spec.budget.tokens is None):
        errors.append(SpecError("spec.budget", "set exactly one of flops and tokens"))
    if spec.budget.tokens and spec.initial_loss and not spec.target_parameters:
        errors.append(
            SpecError(
                "spec.targetParameters", "budget.tokens with initialLoss needs targetParameters"
            )
        )
    decimals = {
        "spec.initialLoss": spec.initial_loss,
        "spec.budget.flops": spec.budget.flops,
        "spec.maxExtrapolation": spec.max_extrapolation,
    }
    errors.extend(_decimal_errors(decimals))
    if errors:
        raise InvalidSpec(errors)
    return spec


def prepare_config(spec: ScalingSweepSpec) -> PrepareConfig:
    """What determines the tokenised corpus of a sweep."""
    data = spec.data
    return PrepareConfig(
        tokenizer=data.tokenizer,
        sequence_length=data.sequence_length,
        domains=tuple(
            DomainSource(name=d.name, uri=d.uri, text_field=d.text_field) for d in data.domains
        ),
        validation_documents_per_thousand=data.validation.documents_per_thousand,
    )


def optimizer_config(optimizer: Optimizer) -> OptimizerConfig:
    """The optimizer as the trainer wants it. Raises InvalidSpec where a value is out of range."""
    try:
        return OptimizerConfig(
            beta1=float(optimizer.beta1),
            beta2=float(optimizer.beta2),
            epsilon=float(optimizer.epsilon),
            weight_decay=float(optimizer.weight_decay),
            gradient_clip=float(optimizer.gradient_clip),
            warmup_tokens=optimizer.warmup_tokens,
            schedule=optimizer.schedule,
        )
    except ValidationError as error:
        raise InvalidSpec(
            SpecError(f"spec.optimizer.{_camel(str(detail['loc'][0]))}", _lower(detail["msg"]))
            for detail in error.errors(include_url=False)
        ) from error


def model_config(model: Model, tokenizer_vocabulary: int | None = None) -> dict[str, Any]:
    """The transformers configuration of a proxy. Raises UnsupportedModel."""
    if model.preset is not None:
        return preset_config(model.preset, tokenizer_vocabulary)
    return dict(model.config or {})


def proxy_grid(spec: ScalingSweepSpec, proxy: Proxy) -> Grid:
    """The grid of one proxy: its own or the sweep's."""
    return proxy.grid or spec.grid


def point_count(spec: ScalingSweepSpec) -> int:
    """Points of all proxies together."""
    grids = [proxy_grid(spec, proxy) for proxy in spec.proxies]
    return sum(len(grid.batch_sizes) * len(grid.learning_rates) for grid in grids)


# ------------------------------------------------------------------------------------- parsing


def _parse(raw: Mapping[str, Any], model: type[Spec]) -> Spec:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InvalidSpec(_spec_error(detail) for detail in details) from error


def _spec_error(detail: ErrorDetails) -> SpecError:
    field = "spec"
    for part in detail["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}"
    given = detail["input"]
    if (
        detail["type"] == "string_type"
        and isinstance(given, int | float)
        and not isinstance(given, bool)
    ):
        return SpecError(field, f'is a number and must be a string: quote it, as in "{given!r}"')
    if detail["type"] == "missing":
        return SpecError(field, "is required")
    if detail["type"] == "string_pattern_mismatch":
        return SpecError(field, f"{given!r} does not have the form {detail['ctx']['pattern']}")
    return SpecError(field, _lower(detail["msg"]))


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


# --------------------------------------------------------------------------------------- rules


def _grid_errors(spec: ScalingSweepSpec) -> list[SpecError]:
    grids = [("spec.grid", spec.grid)]
    grids += [(f"spec.proxies[{i}].grid", p.grid) for i, p in enumerate(spec.proxies) if p.grid]
    errors = []
    for field, grid in grids:
        rates = [float(rate) for rate in grid.learning_rates]
        fields = {f"{field}.learningRates[{i}]": r for i, r in enumerate(grid.learning_rates)}
        errors.extend(_decimal_errors(fields))
        if not all(a < b for a, b in pairwise(rates)):
            errors.append(SpecError(f"{field}.learningRates", "must be ascending, each once"))
        if not all(a < b for a, b in pairwise(grid.batch_sizes)):
            errors.append(SpecError(f"{field}.batchSizes", "must be ascending, each once"))
    if (count := point_count(spec)) > MAX_POINTS:
        message = f"makes {count} points, more than {MAX_POINTS}: thin the grid out"
        errors.append(SpecError("spec.grid", message))
    return errors


def _proxy_errors(spec: ScalingSweepSpec) -> list[SpecError]:
    errors = []
    names = [proxy.name for proxy in spec.proxies]
    for index, proxy in enumerate(spec.proxies):
        field = f"spec.proxies[{index}]"
        if proxy.name in names[:index]:
            errors.append(SpecError(f"{field}.name", f"{proxy.name!r} is taken: names are unique"))
        if model_errors := _model_errors(proxy.model, f"{field}.model"):
            errors.extend(model_errors)
            continue
        errors.extend(_length_errors(spec, proxy, field))
    return errors


def _model_errors(model: Model, field: str) -> list[SpecError]:
    if (model.preset is None) == (model.config is None):
        return [SpecError(field, "set exactly one of preset and config")]
    part = f"{field}.config" if model.config is not None else field
    try:
        config = model_config(model)
        unknown = [SpecError(f"{part}.{key}", text) for key, text in unknown_keys(config).items()]
        parameter_counts(config)
    except UnsupportedModel as error:
        return [SpecError(f"{part}.{error.field}", error.message)]
    positions = config.get("max_position_embeddings")
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 1:
        unknown.append(
            SpecError(f"{part}.max_position_embeddings", "must be set, a positive integer")
        )
    return unknown


def _length_errors(spec: ScalingSweepSpec, proxy: Proxy, field: str) -> list[SpecError]:
    errors = []
    length, positions = (
        spec.data.sequence_length,
        model_config(proxy.model)["max_position_embeddings"],
    )
    if length > positions:
        errors.append(
            SpecError(
                "spec.data.sequenceLength",
                f"{length} is more than the {positions} positions of proxy {proxy.name}",
            )
        )
    step = max(proxy_grid(spec, proxy).batch_sizes) * length
    if proxy.tokens < step:
        errors.append(
            SpecError(f"{field}.tokens", f"{proxy.tokens} is less than one step of {step} tokens")
        )
    if proxy.tokens <= WARMUP_MULTIPLE * spec.optimizer.warmup_tokens:
        errors.append(
            SpecError(
                f"{field}.tokens",
                f"must be more than twice optimizer.warmupTokens ({spec.optimizer.warmup_tokens}): "
                "evaluations before that do not count",
            )
        )
    if proxy.tokens <= spec.evaluation.first_tokens:
        errors.append(
            SpecError(
                f"{field}.tokens",
                f"must be more than evaluation.firstTokens ({spec.evaluation.first_tokens}): "
                "the run would never be evaluated",
            )
        )
    return errors


def _setting_errors(spec: ScalingSweepSpec) -> list[SpecError]:
    errors = []
    domains = [domain.name for domain in spec.data.domains]
    errors += [
        SpecError(f"spec.data.domains[{i}].name", f"{name!r} is taken: names are unique")
        for i, name in enumerate(domains)
        if name in domains[:i]
    ]
    try:
        optimizer_config(spec.optimizer)
    except InvalidSpec as error:
        errors.extend(error.errors)
    fit_loss = spec.fit.irreducible_loss
    decimals = {
        "spec.budget.flops": spec.budget.flops if spec.budget else None,
        "spec.fit.irreducibleLoss": None if fit_loss == "free" else fit_loss,
    }
    return errors + _decimal_errors(decimals)


def _decimal_errors(decimals: Mapping[str, str | None]) -> list[SpecError]:
    """Complaints about decimals that a float can not hold as a positive number."""
    return [
        SpecError(field, f"{text!r} must be a positive number that a float can hold")
        for field, text in decimals.items()
        if text is not None and not (math.isfinite(float(text)) and float(text) > 0)
    ]
