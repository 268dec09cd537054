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
        flops_per_token=_flops_per_token(budget, status, laws) if params is not None else None,
        max_extrapolation=float(spec.get("maxExtrapolation") or MAX_EXTRAPOLATION),
    )


def _flops_per_token(budget: Json, status: Json, laws: Laws) -> float | None:
    """Of the target with its attention, as the status counted a budget in tokens; None: it follows from the parameters, or
    is not known."""
    tokens, flops = budget.get("tokens"), status.get("plannedFlops")
    if laws.flops_convention != "WithAttention" or not tokens or not flops:
        return None
    return float(flops) / float(tokens)


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
    """A warning if the status has another answer than these laws give now, or has none."""
    if answer is None:
        return ()
    status = prediction.get("status") or {}
    stated = {
        "learning rate": ((status.get("learningRate") or {}), answer.learning_rate, 0.0),
        "batch size": ((status.get("batchSize") or {}), answer.batch_size, WHOLE),
    }
    for words, (told, found, whole) in stated.items():
        for end in ("value", "low", "high"):
            number = told.get(end)
            if not number:
                continue
            said, now = float(number), float(getattr(found, end))
            if abs(now - said) <= max(ALIKE * said, whole):
                continue
            bound = {"value": "", "low": "at least ", "high": "at most "}[end]
            return (
                f"the prediction's status says a {words} of {bound}{number}, which came from other laws: "
                "the page shows what these say",
            )
    return _unanswered(status)


def _unanswered(status: Json) -> tuple[str, ...]:
    """A warning if the status says that there is no answer."""
    ready = [c for c in status.get("conditions") or () if c.get("type") == "Ready"]
    if status.get("learningRate") or not ready or ready[0].get("status") != "False":
        return ()
    return (
        f"the prediction's status has no answer ({ready[0].get('reason')}): the page shows what these laws say",
    )
