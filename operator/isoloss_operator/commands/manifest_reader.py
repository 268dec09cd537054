"""The file that `isoloss plan` reads: a sweep, possibly with predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from isoloss.errors import BadInput
from isoloss.yaml_text import read_documents
from isoloss_contract.store import Store, StoreError
from isoloss_operator.api import (
    API_VERSION,
    PREDICTION_KIND,
    SWEEP_KIND,
    HyperparamPredictionSpec,
    ScalingSweepSpec,
)
from isoloss_operator.planning.specs import (
    checkpoint_uris,
    parse_prediction_spec,
    parse_sweep_spec,
)

MAX_MANIFEST_BYTES = 4 * 2**20


Validations = dict[str, ScalingSweepSpec]


def read_manifest(
    path: Path,
) -> tuple[ScalingSweepSpec, dict[str, HyperparamPredictionSpec], Validations]:
    """The specs of the one ScalingSweep in a YAML file that fits laws, of its predictions and of the sweeps around
    their answers, these by name. A sweep around answers may also be alone.

    No model is read from a checkpoint yet: only the file is read. Raises BadInput or InvalidSpec.
    """
    objects = [item for item in _documents(path) if isinstance(item, dict)]
    objects = [item for item in objects if item.get("apiVersion") == API_VERSION]
    predictions = {}
    for item in objects:
        if item.get("kind") == PREDICTION_KIND:
            metadata = item.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if not isinstance(item.get("spec"), dict):
                raise BadInput(f"{path}: spec of {PREDICTION_KIND} {name}: missing")
            predictions[str(name)] = parse_prediction_spec(item["spec"])
    fitted, validations = [], {}
    for item in objects:
        if item.get("kind") != SWEEP_KIND:
            continue
        metadata = item.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(item.get("spec"), dict):
            raise BadInput(f"{path}: spec of {SWEEP_KIND} {name}: missing")
        spec = parse_sweep_spec(item["spec"])
        if spec.fitted_proxies:
            fitted.append(spec)
        else:
            validations[str(name)] = spec
    if not fitted and len(validations) == 1:
        fitted = [validations.popitem()[1]]
    if len(fitted) != 1:
        raise BadInput(
            f"{path}: holds {len(fitted)} objects of kind {SWEEP_KIND} ({API_VERSION}) that fit laws, not one"
        )
    return fitted[0], predictions, validations


def _documents(path: Path) -> list[Any]:
    """Raises BadInput."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BadInput(f"{path}: larger than {MAX_MANIFEST_BYTES} bytes")
        return read_documents(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or 'cannot be read'}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not YAML: {error}") from error


def read_checkpoints(*specs: ScalingSweepSpec) -> dict[str, dict[str, Any] | StoreError]:
    """The config.json of the checkpoints that sizes continue, by URI."""
    uris = {uri for spec in specs for uri in checkpoint_uris(spec).values()}
    return {uri: _model_config(uri) for uri in sorted(uris)}


def _model_config(checkpoint: str) -> dict[str, Any] | StoreError:
    try:
        return Store(checkpoint, follow_links=True).read_json_object("config.json")
    except StoreError as error:
        return error
