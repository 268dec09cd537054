"""Writes the CRDs from `isoloss_operator.api`, the reference pages and the chart's copies.

    python -m isoloss_operator.generate.crdgen [--check] [FOLDER]

`--check` writes nothing and exits 1 if a file differs from what the types say.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from isoloss.yaml_text import to_yaml
from isoloss_operator import api
from isoloss_operator.api.crd_schema import Schema, structural_schema
from isoloss_operator.cluster import rbac
from isoloss_operator.generate.apidoc import api_page
from isoloss_operator.generate.reasondoc import reasons_page

HEADER = "# Written by `python -m isoloss_operator.generate.crdgen` from isoloss_operator.api; do not edit.\n"
ROOT_FIELDS: Schema = {
    "apiVersion": {"description": f"{api.GROUP}/{api.VERSION}.", "type": "string"},
    "kind": {"description": "Kind of the resource.", "type": "string"},
    "metadata": {"type": "object"},  # the API server describes it
}
NAME_RULE = {
    "rule": "self.metadata.name.size() <= 63",
    "message": "metadata.name must be at most 63 characters: it becomes a label of the Jobs",
}
NO_PASS_YET: Schema = {"observedGeneration": -1}
"""kstatus, Flux and Argo CD take a resource without a status for a finished one. Only the status as a
whole has a default: what the operator has not said, the API server must not fill in."""
LEASE_NAME = '{{ include "isoloss.fullname" . }}'
CHART_CONDITION = '{{- if (include "isoloss.group" (list . "crds") | fromYaml).install }}'
CHART_METADATA = """\
  labels:
    {{- include "isoloss.labels" . | nindent 4 }}
  {{- $kept := ternary (dict "helm.sh/resource-policy" "keep") dict (.Values.crds.keep | default false) }}
  {{- with merge (dict) (.Values.crds.annotations | default dict) $kept }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the files; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="repository root")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 on a difference"
    )
    options = parser.parse_args(arguments)
    files = {options.folder / path: text for path, text in generated_files().items()}
    if options.check:
        return _check(files)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def _check(files: dict[Path, str]) -> int:
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(
            f"{path} is out of step: run python -m isoloss_operator.generate.crdgen",
            file=sys.stderr,
        )
    return 1 if stale else 0


def generated_files() -> dict[str, str]:
    """Text by path in the repository."""
    files, crds = {}, definitions()
    for crd in crds:
        name, text = crd["spec"]["names"]["plural"], to_yaml(crd)
        files[f"crds/{api.GROUP}_{name}.yaml"] = HEADER + text
        files[f"helm/isoloss/templates/crds/{name}.yaml"] = _chart_template(text)
    files["helm/isoloss/templates/_rules.tpl"] = _chart_rules()
    files["docs/reference/api.md"] = api_page(crds)
    files["docs/reference/reasons.md"] = reasons_page()
    return files


def definitions() -> tuple[Schema, Schema]:
    """The two CustomResourceDefinitions."""
    sweep = _definition(
        names=_names(api.SWEEP_KIND, api.SWEEP_PLURAL, ["ssweep"]),
        spec=api.ScalingSweepSpec,
        status=api.ScalingSweepStatus,
        columns=SWEEP_COLUMNS,
    )
    prediction = _definition(
        names=_names(api.PREDICTION_KIND, api.PREDICTION_PLURAL, ["hpred"]),
        spec=api.HyperparamPredictionSpec,
        status=api.HyperparamPredictionStatus,
        columns=PREDICTION_COLUMNS,
    )
    return sweep, prediction


def _chart_template(crd: str) -> str:
    text = crd.replace("\nmetadata:\n", "\nmetadata:\n" + CHART_METADATA, 1)
    return f"{CHART_CONDITION}\n{HEADER}{text}{{{{- end }}}}\n"


def _chart_rules() -> str:
    """Named templates with the rules of the operator's roles."""
    parts = {
        "isoloss.rules": rbac.RULES,
        "isoloss.kueueRules": rbac.KUEUE_RULES,
        "isoloss.leaseRules": rbac.lease_rules(LEASE_NAME),
    }
    source = HEADER.replace("isoloss_operator.api", "isoloss_operator.cluster.rbac")
    text = f"{{{{/*\n{source}*/}}}}\n"
    for name, rules in parts.items():
        text += f'{{{{- define "{name}" -}}}}\n{to_yaml(list(rules))}{{{{- end }}}}\n'
    return text


def _definition(
    *, names: Schema, spec: type[api.ApiType], status: type[api.ApiType], columns: list[Schema]
) -> Schema:
    version = {
        "name": api.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _root(spec, status)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{api.GROUP}"},
        "spec": {"group": api.GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _root(spec: type[api.ApiType], status: type[api.ApiType]) -> Schema:
    spec_schema = structural_schema(spec)
    return {
        "description": spec_schema["description"],
        "type": "object",
        "x-kubernetes-validations": [NAME_RULE],
        "required": ["spec"],
        "properties": {
            **ROOT_FIELDS,
            "spec": spec_schema,
            "status": {**structural_schema(status, defaults=False), "default": NO_PASS_YET},
        },
    }


def _names(kind: str, plural: str, short_names: list[str]) -> Schema:
    return {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": short_names,
        "categories": ["isoloss"],
    }


def _column(
    name: str, path: str, description: str, *, type_: str = "string", wide: bool = False
) -> Schema:
    column = {"name": name, "type": type_, "jsonPath": path, "description": description}
    return column | ({"priority": 1} if wide else {})


def _condition(name: str, condition: str, field: str, description: str) -> Schema:
    path = f'.status.conditions[?(@.type=="{condition}")].{field}'
    return _column(name, path, description)


AGE = _column("Age", ".metadata.creationTimestamp", "Time since creation.", type_="date")
SWEEP_COLUMNS = [
    _column("Points", ".status.progress", "Completed points of all points."),
    _column("Failed", ".status.points.failed", "Points that failed for good.", type_="integer"),
    _condition("Fit", "FitReady", "status", "Whether the laws are fitted."),
    _condition("Ready", "Ready", "status", "Whether all points are done and the laws are fitted."),
    _condition("Reason", "Ready", "reason", "Reason of the Ready condition."),
    _column("Active", ".status.points.active", "Points with a Job.", type_="integer", wide=True),
    _column("Hours", ".status.acceleratorHours", "Accelerator hours spent.", wide=True),
    _column("FLOPs", ".status.spentFlops", "Compute spent.", wide=True),
    _column("ETA", ".status.estimatedCompletion", "Estimated time of completion.", wide=True),
    AGE,
]
PREDICTION_COLUMNS = [
    _column("LR", ".status.learningRate.value", "Predicted learning rate."),
    _column("Batch", ".status.batchSize.value", "Predicted batch size in sequences."),
    _condition("Stale", "Stale", "status", "Whether the answer is older than the sweep's laws."),
    _condition("Validated", "Validated", "status", "Whether the answer is known to hold."),
    _condition("Ready", "Ready", "status", "Whether there is an answer."),
    _condition("Reason", "Ready", "reason", "Reason of the Ready condition."),
    _column("LR-Low", ".status.learningRate.low", "Lower end of the 80% interval.", wide=True),
    _column("LR-High", ".status.learningRate.high", "Upper end of the 80% interval.", wide=True),
    _column("Batch-Low", ".status.batchSize.low", "Lower end of the 80% interval.", wide=True),
    _column("Batch-High", ".status.batchSize.high", "Upper end of the 80% interval.", wide=True),
    _column(
        "Extrapolation",
        ".status.extrapolation.computeFactor",
        "Total compute over the largest compute of the sweep.",
        wide=True,
    ),
    _column("Sweep", ".spec.sweepRef.name", "Sweep whose laws answer.", wide=True),
    AGE,
]

if __name__ == "__main__":
    sys.exit(main())
