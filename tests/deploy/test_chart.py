"""The chart: what it renders, which rights it gives and which values it refuses."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from isoloss_operator.cluster import rbac
from isoloss_operator.generate.crdgen import definitions
from isoloss_operator.settings import read_settings
from tests.deploy.chart import (
    CHART,
    EVERYTHING_ON,
    NAMESPACE,
    ROOT,
    environment,
    helm,
    manifests_of,
    of_kind,
    one,
    operator_container,
    render,
    template,
    with_images,
)

pytestmark = pytest.mark.cluster
ROLES = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount")


def bare(manifest: dict[str, Any]) -> dict[str, Any]:
    """Without labels and annotations."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k in {"name", "namespace"}}
    return manifest | {"metadata": metadata}


def by_name(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("kind", "namespace", "name")
    return sorted(
        map(bare, manifests), key=lambda m: [{**m["metadata"], **m}.get(key, "") for key in keys]
    )


@pytest.mark.parametrize("values", [{}, EVERYTHING_ON], ids=["defaults", "everything on"])
def test_helm_finds_no_fault(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    answer = helm("lint", "--strict", str(CHART), "--values", str(file))
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("values", "watched"),
    [
        pytest.param({}, (), id="all namespaces"),
        pytest.param({"watchNamespaces": ["a", "b"]}, ("a", "b"), id="two namespaces"),
    ],
)
@pytest.mark.parametrize("kueue", [False, True])
def test_the_chart_gives_the_rights_that_demo_and_tests_run_with(
    values: dict[str, Any], watched: tuple[str, ...], kueue: bool
) -> None:
    given = {**values, "rbac": {"aggregateRoles": False}, "kueue": {"enabled": kueue}}
    rendered = of_kind(render(given), *ROLES)
    assert by_name(rendered) == by_name(rbac.account(NAMESPACE, watched=watched, kueue=kueue))


def test_the_operators_own_command_prints_the_account_and_its_roles() -> None:
    assert rbac.main(["ops"]) == rbac.account("ops")
    assert rbac.main(["ops", "a"]) == rbac.account("ops", watched=["a"])


def test_no_rule_reaches_secrets_or_everything() -> None:
    for role in of_kind(render(EVERYTHING_ON) + render(), "Role", "ClusterRole"):
        for rule in role["rules"]:
            assert not {"*", "secrets"} & {*rule["resources"], *rule["verbs"], *rule["apiGroups"]}


def test_viewers_read_and_editors_write_sweeps_but_neither_writes_a_status() -> None:
    view, edit = (
        next(
            m for m in render() if m["metadata"]["name"] == f"{NAMESPACE}:isoloss-operator-{role}"
        )
        for role in ("view", "edit")
    )
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert view["rules"][0]["verbs"] == ["get", "list", "watch"]
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert not [name for name in edit["rules"][0]["resources"] if name.endswith("/status")]


def test_the_operator_understands_the_environment_it_is_given() -> None:
    settings = read_settings(environment(EVERYTHING_ON))
    assert settings.namespaces == ("products", "teaching")
    assert settings.allows_storage("teaching", "s3://lm-sweeps/dense")
    assert settings.allows_storage("products", "gs://shared/a/b")
    assert not settings.allows_storage("products", "s3://lm-sweeps/dense")
    assert settings.trainer_image == "registry/trainer:2"
    assert settings.image_pull_policy == "Always"
    assert settings.pod_template["metadata"] == {"labels": {"cost-centre": "teaching"}}
    assert settings.pod_template["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert settings.lease_name == rbac.NAME
    assert settings.http_port == 8080


def test_every_variable_of_the_chart_is_one_that_the_operator_reads() -> None:
    fields = {f"ISOLOSS_{name.upper()}" for name in read_settings(environment()).model_fields_set}
    given = {e["name"] for e in operator_container()["env"] if e["name"].startswith("ISOLOSS_")}
    assert given - {"ISOLOSS_LEASE_NAMESPACE"} <= fields


def test_one_operator_stops_before_the_next_starts() -> None:
    """Not by Recreate, to which server-side apply cannot go back once the API server has filled in a rolling update."""
    spec = one("Deployment")["spec"]
    assert spec["replicas"] == 1
    ends_all_first = {"maxSurge": 0, "maxUnavailable": "100%"}
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": ends_all_first}
    recreate = {"strategy": {"type": "Recreate"}}
    assert one("Deployment", recreate)["spec"]["strategy"] == {"type": "Recreate"}


def test_a_pod_that_is_not_ready_keeps_no_node_from_being_drained() -> None:
    budget = one("PodDisruptionBudget", EVERYTHING_ON)
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_pods_of_helm_test_keep_a_quota_of_cpu_limits() -> None:
    answer = template(
        {"resources": {"limits": {"cpu": 1}}}, "--show-only", "templates/tests/install.yaml"
    )
    pods = of_kind(manifests_of(answer.stdout), "Pod")
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
    assert limits == [{"memory": "512Mi", "cpu": "1"}] * 2


def test_dollars_of_a_pod_template_reach_the_operator_as_they_are() -> None:
    """In a variable the kubelet makes one of two, and a value of what $(NAME) names."""
    template = {"metadata": {"annotations": {"shell": "$$(HOSTNAME) $$$$ $(HOME)"}}}
    value = environment({"trainer": {"podTemplate": template}})["ISOLOSS_POD_TEMPLATE"]
    assert "$" not in value.replace("$$", ""), "the kubelet expands nothing"
    assert json.loads(value.replace("$$", "$")) == template


def test_rules_that_are_rendered_by_the_guide_select_the_job_that_it_names() -> None:
    page = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
    command = next(code for code in page.split("`") if code.startswith("helm template"))
    name, chart, *options = shlex.split(command)[2:]
    values = options.index("values.yaml")
    options[values] = "-"
    answer = helm("template", name, str(ROOT / chart), *options, stdin=json.dumps(with_images({})))
    assert answer.returncode == 0, answer.stderr
    assert set(re.findall(r'job=\\"([^\\"]+)', answer.stdout)) == {
        "isoloss-system/isoloss-operator"
    }
    assert "(`isoloss-system/isoloss-operator`)" in page


def test_the_probes_ask_what_the_operator_serves() -> None:
    container = operator_container()
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]


def test_credentials_come_from_a_secret_by_reference_only() -> None:
    assert operator_container(EVERYTHING_ON)["envFrom"] == [{"secretRef": {"name": "operator-s3"}}]


def test_a_digest_wins_over_a_tag() -> None:
    assert operator_container(EVERYTHING_ON)["image"] == "isoloss/operator@sha256:" + "0" * 64


def test_the_root_file_system_is_read_only_and_tmp_is_not() -> None:
    container = operator_container()
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert environment()["HOME"] == "/tmp"


def test_the_crds_are_those_of_the_types_and_stay_when_the_release_goes_unless_told_otherwise() -> (
    None
):
    crds = of_kind(render(), "CustomResourceDefinition")
    expected = {crd["metadata"]["name"]: crd["spec"] for crd in definitions()}
    assert {crd["metadata"]["name"]: crd["spec"] for crd in crds} == expected
    values: list[tuple[dict[str, Any], Any]] = [
        ({}, {"helm.sh/resource-policy": "keep"}),
        ({"annotations": {"a": "b"}}, {"helm.sh/resource-policy": "keep", "a": "b"}),
        ({"keep": False}, None),
    ]
    for given, annotations in values:
        for crd in of_kind(render({"crds": given}), "CustomResourceDefinition"):
            assert crd["metadata"].get("annotations") == annotations
    assert of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_the_service_monitor_reads_the_port_of_the_service() -> None:
    values = {"metrics": {"serviceMonitor": {"enabled": True, "labels": {"prometheus": "main"}}}}
    manifests = render(values)
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    (service,) = of_kind(manifests, "Service")
    assert monitor["metadata"]["labels"]["prometheus"] == "main"
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
