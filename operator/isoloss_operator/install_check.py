"""What `helm test` runs: may the operator do its work, does its storage answer, is a sweep accepted?

    python -m isoloss_operator.install_check operator          # with the operator's account and environment
    python -m isoloss_operator.install_check sweep NAMESPACE   # with an account that may create sweeps there

Changes nothing: rights are asked for, storage is listed, the sweep is a dry run.
"""

import os.path
import sys
from collections.abc import Iterator, Sequence

from kubernetes.client import (
    ApiClient,
    ApiException,
    AuthorizationV1Api,
    CustomObjectsApi,
    V1ResourceAttributes,
    V1SelfSubjectAccessReview,
    V1SelfSubjectAccessReviewSpec,
)
from kubernetes.config import ConfigException

from isoloss_contract.store import Store, StoreError
from isoloss_operator.api import GROUP, SWEEP_KIND, SWEEP_PLURAL, VERSION
from isoloss_operator.cluster.client import load_configuration
from isoloss_operator.cluster.rbac import KUEUE_RULES, RULES, Rule, lease_rules
from isoloss_operator.cluster.transport import TRANSPORT_ERRORS
from isoloss_operator.settings import BadSettings, Settings, read_settings

CONNECTIONS = 2
LISTED = "sweeps"
"""The folder of a store that is listed: every store may have it."""
FILE = "file://"


def missing_rights(client: ApiClient, settings: Settings) -> Iterator[str]:
    """Each right of rbac.py that the account lacks, in words."""
    rules = (*RULES, *KUEUE_RULES) if settings.kueue else RULES
    for namespace in settings.namespaces or ("",):
        for rule in rules:
            yield from _refused(client, namespace, rule)
    for rule in lease_rules(settings.lease_name):
        yield from _refused(client, settings.lease_namespace, rule)


def _refused(client: ApiClient, namespace: str, rule: Rule) -> Iterator[str]:
    (group,) = rule["apiGroups"]
    for name in rule["resources"]:
        resource, _, subresource = name.partition("/")
        for verb in rule["verbs"]:
            asked = V1ResourceAttributes(
                namespace=namespace,
                verb=verb,
                group=group,
                resource=resource,
                subresource=subresource,
                name="".join(rule.get("resourceNames", [])),
            )
            review = V1SelfSubjectAccessReview(
                spec=V1SelfSubjectAccessReviewSpec(resource_attributes=asked)
            )
            answer = AuthorizationV1Api(client).create_self_subject_access_review(review)
            if answer.status is None or not answer.status.allowed:
                place = f"in namespace {namespace}" if namespace else "in all namespaces"
                yield f"the operator may not {verb} {name} {place}"


def silent_storage(settings: Settings) -> Iterator[str]:
    """Each allowed prefix that cannot be listed, and why."""
    prefixes = [p for each in settings.allowed_storage.values() for p in each]
    for prefix in dict.fromkeys(prefixes):
        try:
            Store(prefix).names(LISTED)
        except StoreError as error:
            yield f"storage {prefix}: {error}"
        else:
            # Listed, it is as empty as one of which nothing is mounted.
            if prefix.startswith(FILE) and not os.path.isdir(prefix.removeprefix(FILE)):
                yield f"storage {prefix}: there is no such folder"


TINY = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 1024,
}
"""A model that the API server has nothing to object to."""


def refused_sweep(client: ApiClient, namespace: str) -> Iterator[str]:
    """Why the API server does not take a sweep."""
    sweep = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": SWEEP_KIND,
        "metadata": {"name": "helm-test"},
        "spec": {
            "storage": {"uri": "s3://helm-test/sweep"},
            "data": {
                "tokenizer": "s3://helm-test/tokenizer",
                "sequenceLength": 1024,
                "domains": [{"name": "text", "uri": "s3://helm-test/*.jsonl", "weight": 1}],
            },
            "proxies": [{"name": "tiny", "model": {"config": TINY}, "tokens": 1_000_000}],
            "grid": {"batchSizes": [8, 16], "learningRates": ["1e-3", "2e-3"]},
            "design": "Unchecked",
            "evaluation": {"firstTokens": 100_000},
        },
    }
    try:
        CustomObjectsApi(client).create_namespaced_custom_object(
            GROUP,
            VERSION,
            namespace,
            SWEEP_PLURAL,
            sweep,
            dry_run="All",
            field_validation="Strict",
        )
    except ApiException as error:
        yield f"a sweep in namespace {namespace} is refused: {error.status} {error.body}"


def _answered(problems: Iterator[str]) -> Iterator[str]:
    """The same, and what keeps the API server from being asked for more."""
    try:
        yield from problems
    except TRANSPORT_ERRORS as error:
        yield f"the API server cannot be asked: {error}"


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong; 0 if nothing is, 1 otherwise, 2 for a wrong command line or setting."""
    try:
        client = ApiClient(load_configuration(CONNECTIONS))
        match arguments:
            case ["operator"]:
                settings = read_settings()
                problems = [
                    *_answered(missing_rights(client, settings)),
                    *silent_storage(settings),
                ]
            case ["sweep", namespace]:
                problems = [*_answered(refused_sweep(client, namespace))]
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (BadSettings, ConfigException) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(problems) or "nothing is wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
