"""The file that `isoloss plan` reads: a sweep, possibly with predictions."""

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from isoloss.errors import BadInput, why_unreadable
from isoloss.usual import LARGEST_USUAL_RATE
from isoloss.yaml_text import read_documents
from isoloss_contract.store import Store, StoreError
from isoloss_operator import api
from isoloss_operator.cluster.client import DNS_NAME
from isoloss_operator.cluster.manifests import security_problem
from isoloss_operator.cluster.template_fields import BadPodTemplate
from isoloss_operator.planning.models import completed
from isoloss_operator.planning.specs import (
    InvalidSpec,
    known_models,
    parse_prediction_spec,
    parse_sweep_spec,
)
from isoloss_operator.settings import Settings

MAX_MANIFEST_BYTES = 4 * 2**20
RECIPE = (
    "model_type",
    "vocab_size",
    "tie_word_embeddings",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
)
KINDS = (api.SWEEP_KIND, api.PREDICTION_KIND)
FIELDS = "apiVersion kind metadata spec status"
METADATA = "name generateName generation namespace labels annotations finalizers ownerReferences"
"""Those that people write: whatever a cluster wrote may stay."""
LONGEST_NAME = 63
"""Characters of a name: it becomes a label of the Jobs (generate/crdgen.py)."""


Validations = dict[str, api.ScalingSweepSpec]


def read_manifest(
    path: Path,
) -> tuple[
    api.ScalingSweepSpec, dict[str, api.HyperparamPredictionSpec], Validations, tuple[str, ...]
]:
    """The specs of the one ScalingSweep in a YAML file that fits laws, of its predictions and of the sweeps around
    their answers, these by name, and warnings. A sweep around answers may also be alone.

    No model is read from a checkpoint yet: only the file is read. Raises BadInput or InvalidSpec.
    """
    documents = [item for item in _documents(path) if isinstance(item, dict)]
    objects = [item for item in documents if item.get("apiVersion") == api.API_VERSION]
    for item in objects:
        _check_fields(path, item)
        _check_names(path, item)
    predictions = _specs(path, objects, api.PREDICTION_KIND, parse_prediction_spec)
    sweeps = _specs(path, objects, api.SWEEP_KIND, parse_sweep_spec)
    fitted = [spec for _, spec in sweeps if spec.fitted_proxies]
    validations = {name: spec for name, spec in sweeps if not spec.fitted_proxies}
    if not fitted and len(validations) == 1:
        fitted = [validations.popitem()[1]]
    if not sweeps:
        kinds = {
            f"{each.get('kind')} ({each.get('apiVersion')})"
            for each in documents
            if "kind" in each
        }
        found = f", only {', '.join(sorted(kinds))}" if kinds else ""
        raise BadInput(
            f"{path}: has no {api.SWEEP_KIND} ({api.API_VERSION}){found}: give the file of the sweep"
        )
    if len(fitted) != 1:
        raise BadInput(
            f"{path}: has {len(fitted)} sweeps that fit laws, and one is planned: put each into a file of its own"
        )
    names = {name for name, _ in sweeps}
    warnings = tuple(
        f"{path}: {api.PREDICTION_KIND} {name}: spec.sweepRef.name: {spec.sweep_ref.name} is not in this file"
        for name, spec in predictions
        if spec.sweep_ref.name not in names
    )
    return fitted[0], dict(predictions), validations, warnings


Spec = TypeVar("Spec")


def _specs(
    path: Path, objects: list[dict[str, Any]], kind: str, parse: Callable[[dict[str, Any]], Spec]
) -> list[tuple[str, Spec]]:
    """The specs of this kind with the names of their objects. Raises BadInput."""
    found = []
    for item in objects:
        if item.get("kind") != kind:
            continue
        name = str(_name_of(item))
        if not isinstance(item.get("spec"), dict):
            raise BadInput(f"{path}: {kind} {name}: spec: is required")
        try:
            found.append((name, parse(item["spec"])))
        except InvalidSpec as error:
            raise BadInput(f"{path}: {kind} {name}: {error}") from error
    return found


def _name_of(item: dict[str, Any]) -> Any:
    """As it was written; None: it has none."""
    metadata = item.get("metadata")
    return metadata.get("name") if isinstance(metadata, dict) else None


def _check_fields(path: Path, item: dict[str, Any]) -> None:
    """Raise BadInput for a kind that is none of ours, and for a field of every object that is none: the API server drops it."""
    kind, metadata = str(item.get("kind")), item.get("metadata")
    if kind not in KINDS:
        raise BadInput(f"{path}: kind: {kind!r:.80} must be {' or '.join(KINDS)}")
    within = metadata if isinstance(metadata, dict) else {}
    for where, fields, known in (("", item, FIELDS), ("metadata.", within, METADATA)):
        for field in fields:
            close = difflib.get_close_matches(field, known.split(), n=1, cutoff=0.7)
            if close and close[0] != field:
                raise BadInput(
                    f"{path}: {where}{field} of {kind}: is not a field: did you mean {close[0]}?"
                )
            if not close and not where:
                raise BadInput(
                    f"{path}: {field} of {kind}: is not a field there: indent it below spec, or remove it"
                )


def _check_names(path: Path, item: dict[str, Any]) -> None:
    """Raise BadInput for a name or a namespace that the API server would refuse, and for a missing name."""
    metadata = item.get("metadata")
    named = ("name", "generateName")
    if not isinstance(metadata, dict) or not any(metadata.get(field) for field in named):
        raise BadInput(f"{path}: metadata.name of {item.get('kind')}: is required: give it a name")
    for field in ("name", "namespace"):
        name = metadata.get(field) if isinstance(metadata, dict) else None
        if name is None:
            continue
        where = f"{path}: metadata.{field} of {item.get('kind')}"
        if not isinstance(name, str):
            raise BadInput(f"{where}: {name!r} is not text: put it into quotes")
        is_label = field == "namespace"
        if not DNS_NAME.fullmatch(name) or (is_label and "." in name):
            signs = "digits and -" if is_label else "digits, - and ."
            raise BadInput(
                f"{where}: {name!r:.80} must be lower-case letters, {signs}, with a letter or digit at both ends"
            )
        if len(name) > LONGEST_NAME:
            raise BadInput(
                f"{where}: {name!r:.80} has {len(name)} characters, {LONGEST_NAME} are possible"
            )


def pod_warnings(spec: api.ScalingSweepSpec) -> tuple[str, ...]:
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


def recipe_warnings(spec: api.ScalingSweepSpec) -> tuple[str, ...]:
    """Learning rates that look like another unit. Settings that do not follow from a model's size and that the sizes of a sweep do not share, where they are known."""
    models = {name: completed(config) for name, config in known_models(spec).items()}
    grids = (spec.grid, *(proxy.grid for proxy in spec.proxies))
    rates = [float(rate) for grid in grids if grid for rate in grid.learning_rates or ()]
    found = []
    if 2 * sum(rate > LARGEST_USUAL_RATE for rate in rates) > len(rates):
        found.append(
            f"Most learning rates are above {LARGEST_USUAL_RATE:g}, up to {max(rates):g}: AdamW is used at 1e-5 to 1e-2. The rate itself "
            "is expected, as in 2e-4."
        )
    for key in RECIPE:
        values = {
            name: json.dumps(each[key]) if each.get(key) is not None else "the default"
            for name, each in models.items()
        }
        if len(set(values.values())) > 1:
            named = ", ".join(f"{value} in {name}" for name, value in values.items())
            found.append(
                f"The sizes differ in {key}: {named}. The laws take them for one family, of which size alone changes."
            )
    return tuple(found)


def _documents(path: Path) -> list[Any]:
    """Raises BadInput."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BadInput(f"{path}: larger than {MAX_MANIFEST_BYTES} bytes")
        return read_documents(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {why_unreadable(path, error)}") from error
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, error.problem or ""
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        hint = ": indent with spaces" if "'\\t'" in problem else ""
        if isinstance(error, yaml.parser.ParserError):
            hint = ": check brackets and indentation above it"
        raise BadInput(f"{path}: not YAML: {where}{problem}{hint}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text: save it as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{path}: not YAML: {error}") from error


def read_checkpoints(*specs: api.ScalingSweepSpec) -> dict[str, dict[str, Any] | StoreError]:
    """The config.json of the checkpoints that sizes continue, by URI."""
    uris = {uri for spec in specs for uri in spec.checkpoint_uris.values()}
    found: dict[str, dict[str, Any] | StoreError] = {}
    for uri in sorted(uris):
        try:
            found[uri] = Store(uri, follow_links=True).read_json_object("config.json")
        except StoreError as error:
            found[uri] = error
    return found
