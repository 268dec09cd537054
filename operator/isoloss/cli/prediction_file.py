"""A HyperparamPrediction in a file: the question it asks, without a number typed by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

from isoloss.cli.querying import Asked, Composing
from isoloss.errors import BadInput
from isoloss.laws import Laws, Prediction

Json = Mapping[str, Any]
KIND = "HyperparamPrediction"
INTERVAL = 0.8
"""What the intervals of a status hold."""
ALIKE = 0.01
"""Relative difference from which an answer is another one than the status has."""
WHOLE = 0.6
"""Sequences by which a batch size may differ, as the status has whole ones."""
MAX_EXTRAPOLATION = 1000.0
"""spec.maxExtrapolation where it is left out."""


def read_prediction(path: Path) -> Json:
    """The one HyperparamPrediction in a manifest or in what kubectl prints, JSON or YAML.

    Raises BadInput, naming the file.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--prediction {path}: {error}") from error
    found = [each for each in _documents(path, text) if each.get("kind") == KIND]
    if len(found) != 1:
        raise BadInput(
            f"--prediction {path}: holds {len(found)} objects of kind {KIND}, one is needed: "
            "kubectl get hpred NAME -o json prints one"
        )
    return found[0]


def _documents(path: Path, text: str) -> list[Json]:
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        found = _yaml_documents(path, text)
    return [each for each in found if isinstance(each, dict)]


def _yaml_documents(path: Path, text: str) -> list[Any]:
    try:
        import yaml

        from isoloss.yaml_text import read_documents
    except ModuleNotFoundError as error:
        raise BadInput(
            f"--prediction {path}: is no JSON, and YAML needs PyYAML: "
            "pip install pyyaml, or save the resource with -o json"
        ) from error
    try:
        return read_documents(text)
    except RecursionError as error:
        raise BadInput(
            f"--prediction {path}: neither JSON nor YAML: its brackets are nested too deeply"
        ) from error
    except (yaml.YAMLError, ValueError) as error:  # the latter for numbers of thousands of digits
        raise BadInput(f"--prediction {path}: neither JSON nor YAML: {error}") from error


def asked_by(prediction: Json, laws: Laws, name: str) -> Asked:
    """The question of a prediction, of its spec and of what its status measured.

    The answer is in sequences of the target's length, as the status's. Raises BadInput, which begins with `name` and names the field.
    """
    try:
        return _asked(prediction, laws)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def _asked(prediction: Json, laws: Laws) -> Asked:
    loss, error = _initial_loss(prediction)
    params = _params(prediction, laws)
    # The status counts the FLOPs of the planned tokens with the checkpoint's own parameters.
    flops = _number(prediction, "spec.budget.flops") or _number(prediction, "status.plannedFlops")
    tokens = _number(prediction, "spec.budget.tokens")
    if not flops and not tokens:
        raise BadInput("spec.budget: give flops or tokens")
    if not flops and params is None:
        raise BadInput(
            "spec.budget.tokens: the parameters that turn tokens into FLOPs are not known yet: "
            "wait for status.plannedFlops, or set spec.targetParameters"
        )
    past = _number(prediction, "spec.pretrainingTokens")
    batch_size, multiple = (
        _whole(prediction, f"spec.{field}") for field in ("batchSize", "batchSizeMultipleOf")
    )
    return Asked(
        initial_loss=loss,
        initial_loss_standard_error=error,
        cpt_flops=flops,
        cpt_tokens=None if flops else tokens,
        params=params,
        pretraining_tokens=past if params is not None else None,
        composition=_composition(prediction),
        batch_size=batch_size,
        batch_size_tolerance=_number(prediction, "spec.batchSizeTolerance"),
        round_to=multiple if multiple and batch_size is None else 1,
        sequence_length=_whole(prediction, "spec.targetSequenceLength"),
        flops_per_token=_flops_per_token(prediction, laws) if params is not None else None,
        max_extrapolation=_number(prediction, "spec.maxExtrapolation") or MAX_EXTRAPOLATION,
    )


def _composition(prediction: Json) -> Composing:
    said = _field(prediction, "spec.composition")
    try:
        return Composing.MEASURED if said is None else Composing(said)
    except ValueError as error:
        known = " or ".join(Composing)
        raise BadInput(f"spec.composition: {said!r} cannot be read: write {known}") from error


def _flops_per_token(prediction: Json, laws: Laws) -> float | None:
    """Of the target with its attention, as the status counted a budget in tokens; None: it follows from the parameters, or
    is not known."""
    tokens = _number(prediction, "spec.budget.tokens")
    flops = _number(prediction, "status.plannedFlops")
    if laws.flops_convention != "WithAttention" or not tokens or not flops:
        return None
    return flops / tokens


def _initial_loss(prediction: Json) -> tuple[float, float]:
    stated = _number(prediction, "spec.initialLoss")
    if stated is not None:
        return stated, 0.0
    value, low, high = (
        _number(prediction, f"status.initialLoss.{end}") for end in ("value", "low", "high")
    )
    if value is None:
        raise BadInput(
            "status.initialLoss: the checkpoint's loss is not measured yet: "
            "wait for the condition Evaluated, or set spec.initialLoss"
        )
    width = (high or value) - (low or value)
    return value, max(width, 0.0) / (2 * NormalDist().inv_cdf((1 + INTERVAL) / 2))


def _params(prediction: Json, laws: Laws) -> float | None:
    """Active parameters of the target; None if neither spec nor status knows them."""
    stated = _number(prediction, "spec.targetParameters")
    if stated is not None:
        return stated
    factor = _number(prediction, "status.extrapolation.parametersFactor")
    return factor * max(laws.data.sizes) if factor and laws.data.sizes else None


def _whole(prediction: Json, path: str) -> int | None:
    """A whole number; None if the field is left out. Raises BadInput, naming the field."""
    value = _number(prediction, path)
    if value is not None and not value.is_integer():
        raise BadInput(f"{path}: {value:g} is not a whole number")
    return None if value is None else int(value)


def _number(prediction: Json, path: str) -> float | None:
    """A positive number; None if the field is left out. Raises BadInput, naming the field."""
    found = _field(prediction, path)
    if found is None or found == "":
        return None
    try:
        value = float("") if isinstance(found, bool) else float(found)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{path}: {str(found)[:40]!r} cannot be read as a number") from None
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"{path}: {value:g} is not a positive, finite number")
    return value


def _field(prediction: Json, path: str) -> Any:
    """What is at a path such as spec.budget.flops; None if nothing is. Raises BadInput for a value that has no fields."""
    found: Any = prediction
    names = path.split(".")
    for depth, name in enumerate(names):
        if found is None or found == "":
            return None
        if not isinstance(found, Mapping):
            raise BadInput(f"{'.'.join(names[:depth])}: {str(found)[:40]!r} has no field {name}")
        found = found.get(name)
    return found


def changed_since(prediction: Json, answer: Prediction | None) -> tuple[str, ...]:
    """A warning if the status has another answer than these laws give now, or has none. Raises BadInput, naming the field."""
    if answer is None:
        return ()
    stated = {
        "learning rate": ("status.learningRate", answer.learning_rate, 0.0),
        "batch size": ("status.batchSize", answer.batch_size, WHOLE),
    }
    for words, (path, found, whole) in stated.items():
        for end in ("value", "low", "high"):
            said, now = _number(prediction, f"{path}.{end}"), float(getattr(found, end))
            if said is None or abs(now - said) <= max(ALIKE * said, whole):
                continue
            bound = {"value": "", "low": "at least ", "high": "at most "}[end]
            return (
                f"the prediction's status says a {words} of {bound}{_field(prediction, f'{path}.{end}')}, which came "
                "from other laws: the page shows what these say",
            )
    return _unanswered(prediction.get("status") or {})


def _unanswered(status: Json) -> tuple[str, ...]:
    """A warning if the status says that there is no answer."""
    conditions = [c for c in status.get("conditions") or () if isinstance(c, Mapping)]
    ready = [c for c in conditions if c.get("type") == "Ready"]
    if status.get("learningRate") or not ready or ready[0].get("status") != "False":
        return ()
    return (
        f"the prediction's status has no answer ({ready[0].get('reason')}): the page shows what these laws say",
    )
