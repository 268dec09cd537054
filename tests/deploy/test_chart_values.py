"""What clusters ask of the chart: security contexts, networks, monitoring, labels, objects of their own."""

import json
import re
from typing import Any

import pytest
import yaml

from isoloss_operator.cluster.manifests import job_manifest
from isoloss_operator.cluster.pod_security import violations
from isoloss_operator.settings import Settings, read_settings
from tests.deploy import chart
from tests.isoloss_operator.cluster.test_manifests import OWNER, request
from tests.support.pages import blocks

pytestmark = pytest.mark.cluster
Json = dict[str, Any]
GUIDES = chart.ROOT / "docs" / "guides"
OPERATOR = chart.ROOT / "docs" / "reference" / "operator.md"


def test_openshift_may_assign_the_ids_itself() -> None:
    ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    context = chart.operator_pod({"podSecurityContext": ids})["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_openshift_may_assign_the_ids_of_the_trainers_pods() -> None:
    """What docs/reference/operator.md has for it: helm keeps the nulls, and the operator takes the fields away by them."""
    ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    settings = chart_settings({"trainer": {"podTemplate": {"spec": {"securityContext": ids}}}})
    assert settings.pod_template == {"spec": {"securityContext": ids}}
    template = job_manifest(request(), OWNER, settings)["spec"]["template"]
    assert template["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert violations(template) == []


def chart_settings(values: Json | None = None) -> Settings:
    """What the operator reads from the environment that the chart gives it."""
    return read_settings(chart.environment(values))


def test_the_operator_reads_resync_fits_and_time_limits_from_the_values() -> None:
    values = {
        "fits": 3,
        "resources": {"limits": {"memory": "4Gi"}},
        "fitTimeoutSeconds": 60,
        "passSeconds": 61,
        "resyncSeconds": 62,
        "idleSeconds": 63,
        "podLostSeconds": 64,
    }
    settings = chart_settings(values)
    assert (settings.fits, settings.fit_timeout_seconds, settings.pass_seconds) == (3, 60, 61)
    assert (settings.resync_seconds, settings.idle_seconds) == (62, 63)
    assert settings.pod_lost_seconds == 64


def test_a_pass_may_last_as_long_as_the_operator_allows() -> None:
    """It refuses to start with a limit for passes that is not below the one for what is stuck."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    bound = schema["properties"]["passSeconds"]["exclusiveMaximum"]
    assert bound == Settings.model_fields["stuck_seconds"].default
    assert chart_settings({"passSeconds": bound - 0.5}).pass_seconds == bound - 0.5


def test_dots_in_the_name_of_a_folder_are_no_way_up() -> None:
    prefixes = ["s3://b/a..b/..c/d../.e", "file:///..."]
    settings = chart_settings({"storage": {"allowedPrefixes": {"a": prefixes}}})
    assert settings.storage_prefixes("a") == tuple(prefixes)


def test_the_operator_reads_the_largest_number_that_each_value_may_be() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    plain = {
        name: node["maximum"]
        for name, node in schema["properties"].items()
        if node.get("type") in {"integer", "number"} and "maximum" in node
    }
    values = {**plain, "resources": {"limits": None}}
    settings = chart_settings(values)
    names = {name: re.sub(r"(MiB|[A-Z])", r"_\1", name).lower() for name in plain}
    read = {name: getattr(settings, each) for name, each in names.items() if name != "replicas"}
    assert read == {name: value for name, value in plain.items() if name != "replicas"}
    assert len(read) > 8


def test_the_defaults_of_the_chart_are_those_of_the_operator() -> None:
    plain = read_settings({"ISOLOSS_TRAINER_IMAGE": "a", "ISOLOSS_LEASE_NAMESPACE": "b"})
    settings = read_settings({**chart.environment(), "ISOLOSS_LEASE_NAMESPACE": "b"})
    assert settings.trainer_image == "isoloss/trainer:0.1.0"
    same = set(type(plain).model_fields) - {"trainer_image", "identity"}
    assert {name: getattr(settings, name) for name in same} == {
        name: getattr(plain, name) for name in same
    }


KEPT = {"image.repository", "trainer.image.repository", "metrics.podMonitor.enabled"}
"""What must be named, and what must not be on beside another."""
SWITCHES = {"install", "keep", "create", "aggregateRoles", "enabled"}
ASKED_FOR = {
    f"metrics.rules.{name}"
    for name in (
        "queuedSeconds", "noProgressSeconds", "preparationSeconds", "pointSilentSeconds",
        "budgetUsedRatio",
    )
}  # fmt: skip


def test_a_value_whose_content_is_commented_out_has_its_default() -> None:
    """YAML reads null under such a key, and helm then takes the chart's own value away."""
    nulls: Json = {}
    for path, name in _leaves():
        if path not in KEPT | ASKED_FOR:
            _put(nulls, path, True if name in SWITCHES else None)
    answer = chart.template(nulls)
    assert answer.returncode == 0, answer.stderr
    (deployment,) = chart.of_kind(chart.manifests_of(answer.stdout), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    entries = [entry for entry in container["env"] if "valueFrom" not in entry]
    assert [entry["name"] for entry in entries if not isinstance(entry["value"], str)] == []
    given = {entry["name"]: entry["value"] for entry in entries}
    plain = chart_settings({"kueue": {"enabled": True}})
    assert same_but_who(read_settings(given)) == same_but_who(plain)
    notes = chart.helm(
        "install", "isoloss", str(chart.CHART), "--dry-run=client", "--namespace", chart.NAMESPACE,
        "--values", "-", stdin=json.dumps(chart.with_images(nulls)),
    )  # fmt: skip
    assert "watches all namespaces" in notes.stdout, notes.stderr


@pytest.mark.parametrize(
    "group", ["storage", "kueue", "metrics", "podDisruptionBudget", "resources", "watchNamespaces"]
)
def test_a_group_whose_content_is_commented_out_has_its_defaults(group: str) -> None:
    assert same_but_who(chart_settings({group: None})) == same_but_who(chart_settings())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image": None}, "image.repository"),
        ({"trainer": None}, "trainer.image.repository"),
        *(
            ({"metrics": {"rules": {"enabled": True, path.rpartition(".")[2]: None}}}, path)
            for path in sorted(ASKED_FOR)
        ),
    ],
)
def test_what_has_no_default_without_content_is_asked_for(values: Json, says: str) -> None:
    arguments = ("template", "isoloss", str(chart.CHART), "--values", "-")
    answer = chart.helm(*arguments, stdin=json.dumps({**chart.with_images({}), **values}))
    assert answer.returncode != 0
    assert f"{says} is needed" in answer.stderr


@pytest.mark.parametrize("group", ["crds", "serviceAccount", "rbac", "networkPolicy"])
def test_a_group_that_decides_what_is_installed_is_asked_for_where_its_content_is_commented_out(
    group: str,
) -> None:
    answer = chart.template({group: None})
    assert answer.returncode != 0
    assert f"{group} has no content in the values" in answer.stderr


def same_but_who(settings: Settings) -> Settings:
    """Each reading has an identity of its own."""
    return settings.model_copy(update={"identity": ""})


def _leaves() -> list[tuple[str, str]]:
    """(path, last name) of every value that is no group of values."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    nodes = [(path, node) for path, node in _nodes(schema, "") if path != "global"]
    return [
        (path, path.rpartition(".")[2]) for path, node in nodes if "properties" not in node
    ] + [("trainer.podTemplate", "podTemplate")]


def _put(values: Json, path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[name] = value


@pytest.mark.parametrize("monitor", ["serviceMonitor", "podMonitor"])
def test_every_object_has_the_common_labels_and_no_selector_does(monitor: str) -> None:
    manifests = chart.render(
        {
            "commonLabels": {"cost-centre": "research"},
            "podDisruptionBudget": {"enabled": True},
            "metrics": {
                monitor: {"enabled": True},
                "rules": {"enabled": True},
                "dashboard": {"enabled": True},
            },
        }
    )
    for manifest in manifests:
        assert manifest["metadata"]["labels"]["cost-centre"] == "research", manifest["kind"]
        assert "cost-centre" not in json.dumps(manifest.get("spec", {}).get("selector", {}))


def test_a_label_given_for_all_and_for_one_object_is_there_once() -> None:
    """A key twice is a document that strict readers of YAML refuse, and others read as they like."""
    answer = chart.template(
        {
            "commonLabels": {"team": "research", "app.kubernetes.io/component": "operator"},
            "podLabels": {"team": "platform"},
        }
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("team: platform") == 2, "of the pod, and of the one that tests it"
    (deployment,) = chart.of_kind(chart.manifests_of(answer.stdout), "Deployment")
    assert deployment["metadata"]["labels"]["team"] == "research"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "platform"
    assert labels["app.kubernetes.io/component"] == "operator"


def test_what_the_chart_sets_by_default_is_there_once_where_the_user_sets_it() -> None:
    annotation = "kubectl.kubernetes.io/default-container"
    values: Json = {
        "podAnnotations": {annotation: "proxy"},
        "crds": {"annotations": {"helm.sh/resource-policy": "keep"}},
        "metrics": {"rules": {"enabled": True, "alertLabels": {"severity": "page", "team": "ml"}}},
    }
    answer = chart.template(values, "--skip-tests")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(f"{annotation}:") == 1
    assert answer.stdout.count("helm.sh/resource-policy:") == 2, "of both CRDs"
    manifests = chart.manifests_of(answer.stdout)
    (deployment,) = chart.of_kind(manifests, "Deployment")
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {annotation: "proxy"}
    (rule,) = chart.of_kind(manifests, "PrometheusRule")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert answer.stdout.count("severity: page") == len(alerts)
    assert {json.dumps(alert["labels"]) for alert in alerts} == {
        json.dumps({"severity": "page", "team": "ml"})
    }


def rules(values: Json | None = None) -> list[tuple[set[int], list[Json]]]:
    """(ports, peers) of each egress rule; no peers: any."""
    policy = chart.one("NetworkPolicy", values)
    return [
        ({port["port"] for port in rule["ports"]}, rule.get("to", []))
        for rule in policy["spec"]["egress"]
    ]


def test_names_are_asked_of_the_clusters_dns_alone() -> None:
    (dns,) = [peers for ports, peers in rules() if 53 in ports]
    cluster, node = dns
    labels = cluster["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": "kube-system"}
    assert node == {"ipBlock": {"cidr": "169.254.20.10/32"}}


def test_workload_identity_reaches_the_metadata_services_and_nothing_else_on_their_ports() -> None:
    (metadata,) = [peers for ports, peers in rules() if 80 in ports]
    assert metadata == [{"ipBlock": {"cidr": "169.254.0.0/16"}}]
    assert [ports for ports, _ in rules() if 80 in ports] == [{80, 988}]
    without = {"networkPolicy": {"metadataCidrs": [], "metadataPorts": []}}
    assert not [ports for ports, _ in rules(without) if 80 in ports]


def test_the_network_is_that_of_the_operator_and_of_the_pods_that_test_it() -> None:
    """Beside the policy, `helm test` would find nothing wrong where the operator reaches no storage."""
    selector = chart.one("NetworkPolicy")["spec"]["podSelector"]
    operator = chart.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    for labels in (
        operator,
        *(each["metadata"]["labels"] for each in chart.of_kind(hooks(), "Pod")),
    ):
        assert selects(selector, labels)
        assert not selects(selector, {**labels, "app.kubernetes.io/instance": "another"})
        assert not selects(selector, {**labels, "app.kubernetes.io/name": "another"})


def selects(selector: Json, labels: Json) -> bool:
    """Whether a label selector with matchLabels and In selects these labels."""
    expressions = selector.get("matchExpressions", [])
    assert {each["operator"] for each in expressions} <= {"In"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


@pytest.mark.parametrize(
    ("value", "kind", "endpoints"),
    [
        ("serviceMonitor", "ServiceMonitor", "endpoints"),
        ("podMonitor", "PodMonitor", "podMetricsEndpoints"),
    ],
)
def test_however_it_is_scraped_the_job_is_the_one_that_alerts_ask_for(
    value: str, kind: str, endpoints: str
) -> None:
    values = {"metrics": {value: {"enabled": True}, "rules": {"enabled": True}}}
    (endpoint,) = chart.one(kind, values)["spec"][endpoints]
    (relabel,) = endpoint["relabelings"]
    assert relabel == {"targetLabel": "job", "replacement": f"{chart.NAMESPACE}/isoloss-operator"}
    assert endpoint["honorLabels"] is True
    alert = chart.one("PrometheusRule", values)["spec"]["groups"][0]["rules"][0]
    assert f'job="{relabel["replacement"]}"' in alert["expr"]


def test_the_dashboard_is_the_json_that_grafanas_sidecar_loads() -> None:
    values = {"metrics": {"dashboard": {"enabled": True}}}
    found = chart.one("ConfigMap", values)
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads(found["data"]["isoloss.json"])
    assert dashboard == json.loads((chart.CHART / "files" / "dashboard.json").read_text())
    panels = [panel["id"] for panel in dashboard["panels"]]
    assert len(panels) == len(set(panels))


def test_the_values_on_the_operators_page_for_a_ca_of_the_sites_own_reach_operator_tests_and_jobs() -> (
    None
):
    (text,) = (b.text for b in blocks(OPERATOR) if b.text.startswith("extraEnv:"))
    values = yaml.safe_load(text)
    specs = [
        chart.operator_pod(values),
        *(each["spec"] for each in chart.of_kind(hooks(values), "Pod")),
        job_manifest(request(), OWNER, chart_settings(values))["spec"]["template"]["spec"],
    ]
    assert len(specs) == 4
    for spec in specs:
        (container,) = spec["containers"]
        (path,) = (e["value"] for e in container["env"] if e["name"] == "AWS_CA_BUNDLE")
        (mount,) = (m for m in container["volumeMounts"] if path == f"{m['mountPath']}/ca.crt")
        assert {"name": mount["name"], "configMap": {"name": "s3-ca"}} in spec["volumes"]


def test_the_guide_removes_what_helm_test_leaves() -> None:
    """Everything else of it goes by itself."""
    kept = [
        each
        for each in hooks()
        if "hook-succeeded" not in each["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    ]
    assert {each["kind"] for each in kept} == {"Pod"}
    (command,) = (b.text for b in blocks(GUIDES / "upgrade.md") if " delete pods " in b.text)
    labels = dict(pair.split("=") for pair in command.rpartition(" ")[2].split(","))
    for each in kept:
        assert labels.items() <= each["metadata"]["labels"].items()
    operator = chart.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert not labels.items() <= operator.items()


NUMBERS = {
    "the-release": "123", "the-namespace": "456", "the-name": "12", "the-account": "34", "the-first": "true",
    "the-second": "789", "the-secret": "007", "the-class": "null",
}  # fmt: skip


def test_names_may_read_as_numbers_or_truth_values() -> None:
    """Kubernetes takes text there, and YAML text of digits for a number unless it is in quotes."""

    def rendered(names: dict[str, str]) -> str:
        values = {
            "fullnameOverride": names["the-name"],
            "watchNamespaces": [names["the-first"], names["the-second"]],
            "serviceAccount": {"name": names["the-account"]},
            "storage": {"existingSecret": names["the-secret"]},
            "priorityClassName": names["the-class"],
            "podDisruptionBudget": {"enabled": True},
            "metrics": {
                "podMonitor": {"enabled": True},
                "rules": {"enabled": True},
                "dashboard": {"enabled": True},
            },
        }
        answer = chart.helm(
            "template", names["the-release"], str(chart.CHART), "--values", "-",
            "--namespace", names["the-namespace"], stdin=json.dumps(chart.with_images(values)),
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        return json.dumps(chart.manifests_of(answer.stdout), sort_keys=True)

    words = rendered({word: word for word in NUMBERS})
    for word, number in NUMBERS.items():
        assert word in words
        words = words.replace(word, number)
    assert json.loads(rendered(NUMBERS)) == json.loads(words)


def test_a_release_says_which_namespaces_it_serves() -> None:
    """By this annotation the notes of another release notice that both would serve the same."""

    def reported(values: Json | None = None) -> str:
        found: str = chart.one("Deployment", values)["metadata"]["annotations"][
            "isoloss.dev/watched-namespaces"
        ]
        return found

    assert reported() == "*"
    assert reported({"watchNamespaces": ["a", "b"]}) == "a,b"


def test_every_value_is_described_in_the_schema() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    undescribed = [path for path, node in _nodes(schema, "") if not node.get("description")]
    assert undescribed == []


def _nodes(schema: Json, path: str) -> list[tuple[str, Json]]:
    found = []
    for name, node in schema.get("properties", {}).items():
        inside = f"{path}.{name}".lstrip(".")
        if inside == "trainer.podTemplate":
            continue
        found += (
            [(inside, node), *_nodes(node, inside)]
            if node.get("type") != "array"
            else [(inside, node)]
        )
    return found


def hooks(values: Json | None = None) -> list[Json]:
    answer = chart.template(values)
    assert answer.returncode == 0, answer.stderr
    return [
        manifest
        for manifest in chart.manifests_of(answer.stdout)
        if "helm.sh/hook" in manifest["metadata"].get("annotations", {})
    ]


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["research"]}], ids=["all", "one"])
def test_helm_test_runs_as_the_operator_and_as_somebody_who_may_create_sweeps(
    values: Json,
) -> None:
    pods = chart.of_kind(hooks(values), "Pod")
    ran = {p["spec"]["serviceAccountName"]: p["spec"]["containers"][0]["args"] for p in pods}
    namespace = (values.get("watchNamespaces") or [chart.NAMESPACE])[0]
    assert ran == {
        "isoloss-operator": ["operator"],
        "isoloss-operator-test": ["sweep", namespace],
    }
    (role,) = chart.of_kind(hooks(values), "Role")
    assert role["metadata"]["namespace"] == namespace
    assert role["rules"] == [
        {"apiGroups": ["isoloss.dev"], "resources": ["scalingsweeps"], "verbs": ["create"]}
    ]


def test_helm_test_runs_the_operators_part_under_the_labels_and_annotations_of_its_pod() -> None:
    """Workload identity and meshes go by them."""
    values = {
        "podLabels": {"azure.workload.identity/use": "true", "team": "platform"},
        "podAnnotations": {"sidecar.istio.io/inject": "false"},
        "commonLabels": {"team": "research"},
    }
    pods = {
        each["spec"]["serviceAccountName"]: each for each in chart.of_kind(hooks(values), "Pod")
    }
    metadata = pods["isoloss-operator"]["metadata"]
    assert metadata["labels"] == {
        "app.kubernetes.io/name": "isoloss-test",
        "app.kubernetes.io/instance": "isoloss",
        "azure.workload.identity/use": "true",
        "team": "platform",
    }
    assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"
    assert metadata["annotations"]["helm.sh/hook"] == "test"
    other = pods["isoloss-operator-test"]["metadata"]
    assert other["labels"]["team"] == "research"
    assert "sidecar.istio.io/inject" not in other["annotations"]


def test_helm_test_has_the_environment_and_the_security_of_the_operator() -> None:
    operator = chart.operator_container()
    for each in chart.of_kind(hooks(), "Pod"):
        (container,) = each["spec"]["containers"]
        assert container["env"] == operator["env"]
        assert container["securityContext"] == operator["securityContext"]
        assert each["spec"]["securityContext"] == chart.operator_pod()["securityContext"]
        service = chart.one("Service")["spec"]["selector"]
        assert not service.items() <= each["metadata"]["labels"].items()
