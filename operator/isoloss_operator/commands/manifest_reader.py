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
from isoloss_operator.cluster.manifests import security_problem
from isoloss_operator.cluster.resource_keys import DNS_NAME
from isoloss_operator.cluster.template_fields import BadPodTemplate
from isoloss_operator.planning.specs import (
    checkpoint_uris,
    parse_prediction_spec,
    parse_sweep_spec,
)
from isoloss_operator.settings import Settings

MAX_MANIFEST_BYTES = 4 * 2**20
LONGEST_NAME = 63
"""Characters of a name: it becomes a label of the Jobs (generate/crdgen.py)."""


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
    for item in objects:
        _check_name(path, item)
    predictions = {}
    for item in objects:
        if item.get("kind") == PREDICTION_KIND:
            name = _name_of(item)
            if not isinstance(item.get("spec"), dict):
                raise BadInput(f"{path}: spec of {PREDICTION_KIND} {name}: missing")
            predictions[str(name)] = parse_prediction_spec(item["spec"])
    fitted, validations = [], {}
    for item in objects:
        if item.get("kind") != SWEEP_KIND:
            continue
        name = _name_of(item)
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


def _name_of(item: dict[str, Any]) -> Any:
    """As it was written; None: it has none."""
    metadata = item.get("metadata")
    return metadata.get("name") if isinstance(metadata, dict) else None


def _check_name(path: Path, item: dict[str, Any]) -> None:
    """Raise BadInput for a name that the API server would refuse."""
    name = _name_of(item)
    if name is None:
        return
    where = f"{path}: metadata.name of {item.get('kind')}"
    if not isinstance(name, str):
        raise BadInput(f"{where}: {name!r} is no text: put it into quotes")
    if not DNS_NAME.fullmatch(name):
        raise BadInput(
            f"{where}: {name!r:.80} is no name to Kubernetes: lower-case letters, digits, - and . alone, with a letter or digit at "
            "both ends"
        )
    if len(name) > LONGEST_NAME:
        raise BadInput(
            f"{where}: {name!r:.80} has {len(name)} characters, {LONGEST_NAME} are possible"
        )


def pod_warnings(spec: ScalingSweepSpec) -> tuple[str, ...]:
    """What Pod Security 'restricted' refuses of the sweep's pods, which the operator follows unless its chart says otherwise.

    Raises BadInput for templates of which no pod can be made.
    """
    templates: dict[str, tuple[dict[str, Any] | None, ...]] = {
        "spec.data": (spec.data.pod_template,)
    }
    templates |= {
        f"size {proxy.name}": (spec.pod_template, proxy.pod_template) for proxy in spec.proxies
    }
    settings = Settings(trainer_image="trainer")
    found: dict[str, str] = {}
    for where, changes in templates.items():
        try:
            problem = security_problem([each for each in changes if each], settings)
        except BadPodTemplate as error:
            raise BadInput(f"{where}: {error}") from error
        if problem:
            found.setdefault(problem, where)
    return tuple(f"{where}: {problem}" for problem, where in found.items())


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
