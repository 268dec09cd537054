"""The operator's permissions: what the client and the watches need, and no Secrets.

The chart's roles are generated from these rules (crdgen). The demo and the tests run the operator with the
same ones.

    python -m isoloss_operator.cluster.rbac NAMESPACE [WATCHED_NAMESPACE ...]    # prints the manifests; see --help
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from isoloss.yaml_text import to_yaml
from isoloss_operator.api import GROUP, PREDICTION_PLURAL, SWEEP_PLURAL

Rule = dict[str, list[str]]
Manifest = dict[str, Any]
RBAC_GROUP = "rbac.authorization.k8s.io"
NAME = "isoloss-operator"

KINDS = (SWEEP_PLURAL, PREDICTION_PLURAL)


def _rule(group: str, resources: Sequence[str], *verbs: str) -> Rule:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


RULES = (
    _rule(GROUP, KINDS, "get", "list", "watch"),
    _rule(GROUP, [f"{kind}/status" for kind in KINDS], "patch"),
    # Needed for blockOwnerDeletion if OwnerReferencesPermissionEnforcement is enabled.
    _rule(GROUP, [f"{kind}/finalizers" for kind in KINDS], "update"),
    _rule("batch", ["jobs"], "list", "watch", "create", "patch", "delete"),
    _rule("", ["pods"], "list"),
    # A prediction's own ConfigMap is deleted once its spec names another.
    _rule("", ["configmaps"], "get", "list", "create", "patch", "delete"),
    # Those of Jobs and pods that do not start are read, to say why.
    _rule("events.k8s.io", ["events"], "list", "create"),
)
"""In every watched namespace."""
KUEUE_RULES = (_rule("kueue.x-k8s.io", ["workloads"], "list"),)
"""Added to RULES if the operator reads Kueue's Workloads."""


def lease_rules(name: str) -> tuple[Rule, Rule]:
    """In the operator's own namespace: its Lease. RBAC cannot restrict create by name."""
    create = _rule("coordination.k8s.io", ["leases"], "create")
    use = _rule("coordination.k8s.io", ["leases"], "get", "update")
    return create, {**use, "resourceNames": [name]}


def account(namespace: str, *, watched: Sequence[str] = (), kueue: bool = False) -> list[Manifest]:
    """The service account with its roles: for all namespaces, or for the `watched` ones.

    `kueue`: it may read Kueue's Workloads, too.
    """
    rules = (*RULES, *KUEUE_RULES) if kueue else RULES
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    manifests = [_manifest("v1", "ServiceAccount", NAME, namespace)]
    manifests += _grant(subject, f"{NAME}-lease", namespace, lease_rules(NAME))
    if not watched:
        # Cluster-wide, names of several releases must differ.
        return manifests + _grant(subject, f"{namespace}:{NAME}", "", rules)
    for place in watched:
        manifests += _grant(subject, NAME, place, rules)
    return manifests


def _grant(subject: Manifest, name: str, namespace: str, rules: Sequence[Rule]) -> list[Manifest]:
    """A role and its binding, cluster-wide without a namespace."""
    scope = "" if namespace else "Cluster"
    version = f"{RBAC_GROUP}/v1"
    role = {"apiGroup": RBAC_GROUP, "kind": f"{scope}Role", "name": name}
    return [
        _manifest(version, f"{scope}Role", name, namespace) | {"rules": [*rules]},
        _manifest(version, f"{scope}RoleBinding", name, namespace)
        | {"roleRef": role, "subjects": [subject]},
    ]


def _manifest(api_version: str, kind: str, name: str, namespace: str) -> Manifest:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **place}}


def main(arguments: Sequence[str]) -> list[Manifest]:
    """The manifests that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m isoloss_operator.cluster.rbac",
        description="Print the operator's service account, roles and bindings. "
        "Those of a release of the chart: helm template --show-only templates/rbac.yaml",
    )
    parser.add_argument("namespace", help="the operator's own")
    parser.add_argument("watched", nargs="*", help="namespaces to watch; none: all")
    options = parser.parse_args(arguments)
    return account(options.namespace, watched=options.watched)


if __name__ == "__main__":
    sys.stdout.write(to_yaml(*main(sys.argv[1:])))
