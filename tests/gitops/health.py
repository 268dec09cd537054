"""What Argo CD, Flux and kstatus make of an object: their own rules, around the scripts that are shipped."""

from functools import cache
from pathlib import Path
from typing import Any

import cel
from lupa.lua51 import LuaRuntime, lua_type

from isoloss.yaml_text import read_documents

GITOPS = Path(__file__).parents[2] / "gitops"
Json = dict[str, Any]


@cache
def argocd_scripts() -> dict[str, str]:
    """The health scripts by kind, as argocd-cm carries them."""
    (config_map,) = read_documents((GITOPS / "argocd" / "argocd-cm.yaml").read_text())
    prefix = "resource.customizations.health.isoloss.dev_"
    return {
        key.removeprefix(prefix): script
        for key, script in config_map["data"].items()
        if key.startswith(prefix)
    }


def argocd_health(body: Json) -> tuple[str, str]:
    """Status and message. Argo CD runs Lua 5.1 with no library but the base, and those of tables and of time."""
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    scope = lua.globals()
    for library in ("os", "io", "package", "require", "debug", "string", "math", "coroutine"):
        scope[library] = None
    scope.obj = lua.table_from(body, recursive=True)
    answer = lua.execute(argocd_scripts()[body["kind"]])
    assert lua_type(answer) == "table"
    return answer.status, answer.message


@cache
def flux_expressions() -> dict[str, list[Json]]:
    """The health checks of each Kustomization."""
    documents = read_documents((GITOPS / "flux" / "kustomizations.yaml").read_text())
    return {doc["metadata"]["name"]: doc["spec"].get("healthCheckExprs", []) for doc in documents}


def flux_health(body: Json, kustomization: str) -> str:
    """RFC 0009: the generation first, then inProgress, failed and current; an error is an error."""
    if body["status"].get("observedGeneration", 0) != body["metadata"]["generation"]:
        return "InProgress"
    checks = flux_expressions()[kustomization]
    (check,) = (each for each in checks if each["kind"] == body["kind"])
    for name, health in (
        ("inProgress", "InProgress"),
        ("failed", "Failed"),
        ("current", "Current"),
    ):
        if name in check and cel.evaluate(check[name], body) is True:
            return health
    return "InProgress"


def kstatus(body: Json) -> str:
    """kstatus, which `flux` and `kpt` use for kinds without rules of their own.

    The rules are those of sigs.k8s.io/cli-utils, pkg/kstatus/status: deletion, generation, the first of
    Reconciling and Stalled in the list that is True, and at last Ready.
    """
    if "deletionTimestamp" in body["metadata"]:
        return "Terminating"
    status = body.get("status", {})
    if (
        status.get("observedGeneration", body["metadata"]["generation"])
        != (body["metadata"]["generation"])
    ):
        return "InProgress"
    conditions = status.get("conditions", [])
    verdicts = {"Reconciling": "InProgress", "Stalled": "Failed"}
    for condition in conditions:
        if condition["status"] == "True" and condition["type"] in verdicts:
            return verdicts[condition["type"]]
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "True")
    return "Current" if ready == "True" else "InProgress"
