"""A HyperparamPrediction in a file: the question it asks, without a number typed by hand."""

from __future__ import annotations

import json
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
    except ValueError:
        found = _yaml_documents(path, text)
    return [each for each in found if isinstance(each, dict)]


def _yaml_documents(path: Path, text: str) -> list[Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise BadInput(
            f"--prediction {path}: is no JSON, and YAML needs PyYAML: "
            "pip install pyyaml, or save the resource with -o json"
        ) from error
    try:
        return list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"--prediction {path}: {error}") from error


def asked_by(prediction: Json, laws: Laws, name: str) -> Asked:
    """The question of a prediction, of its spec and of what its status measured.

    The answer is in sequences of the target's length, as the status's. Raises BadInput, which begins with `name` and names the field.
    """
    try:
        return _asked(prediction.get("spec") or {}, prediction.get("status") or {}, laws)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{name}: spec or status cannot be read: {error!r}") from error


def _asked(spec: Json, status: Json, laws: Laws) -> Asked:
    loss, error = _initial_loss(spec, status)
    params = _params(spec, status, laws)
    budget = spec.get("budget") or {}
    # The status counts the FLOPs of the planned tokens with the checkpoint's own parameters.
    flops = budget.get("flops") or status.get("plannedFlops")
    tokens = budget.get("tokens")
    if not flops and not tokens:
        raise BadInput("spec.budget: give flops or tokens")
    if not flops and params is None:
        raise BadInput(
            "spec.budget.tokens: the parameters that turn tokens into FLOPs are not known yet: "
            "wait for status.plannedFlops, or set spec.targetParameters"
        )
    given, tolerance = spec.get("batchSize"), spec.get("batchSizeTolerance")
    past, multiple = spec.get("pretrainingTokens"), int(spec.get("batchSizeMultipleOf", 1))
    length = spec.get("targetSequenceLength")
    return Asked(
        initial_loss=loss,
        initial_loss_standard_error=error,
        cpt_flops=float(flops) if flops else None,
        cpt_tokens=float(tokens) if tokens and not flops else None,
        params=params,
        pretraining_tokens=float(past) if past and params is not None else None,
        composition=Composing(spec.get("composition", Composing.MEASURED)),
        batch_size=float(given) if given else None,
        batch_size_tolerance=float(tolerance) if tolerance else None,
        round_to=multiple,
        sequence_length=int(length) if length else None,
    )


def _initial_loss(spec: Json, status: Json) -> tuple[float, float]:
    if spec.get("initialLoss"):
        return float(spec["initialLoss"]), 0.0
    found = status.get("initialLoss") or {}
    if not found.get("value"):
        raise BadInput(
            "status.initialLoss: the checkpoint's loss is not measured yet: "
            "wait for the condition Evaluated, or set spec.initialLoss"
        )
    value = float(found["value"])
    width = float(found.get("high") or value) - float(found.get("low") or value)
    return value, max(width, 0.0) / (2 * NormalDist().inv_cdf((1 + INTERVAL) / 2))


def _params(spec: Json, status: Json, laws: Laws) -> float | None:
    """Active parameters of the target; None if neither spec nor status knows them."""
    if spec.get("targetParameters"):
        return float(spec["targetParameters"])
    factor = (status.get("extrapolation") or {}).get("parametersFactor")
    return float(factor) * max(laws.data.sizes) if factor and laws.data.sizes else None


def changed_since(prediction: Json, answer: Prediction | None) -> tuple[str, ...]:
    """A warning if the status has another answer than these laws give now."""
    stated = ((prediction.get("status") or {}).get("learningRate") or {}).get("value")
    if not stated or answer is None:
        return ()
    if abs(answer.learning_rate.value / float(stated) - 1) <= ALIKE:
        return ()
    return (
        f"the prediction's status says a learning rate of {stated}, which came from other laws: "
        "the page shows what these say",
    )
