"""The chart against a real API server: accepted, restricted, and with just the rights it claims."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, dynamic

from devcluster.control_plane import ControlPlane
from isoloss.yaml_text import read_documents
from isoloss_operator.cluster import rbac
from tests.deploy import chart

# One worker for all: the chart names its namespaces.
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chart")]
VALUES = [pytest.param({}, id="defaults"), pytest.param(chart.EVERYTHING_ON, id="everything on")]
GROUP = "isoloss.dev"


def apply(api: client.ApiClient, manifest: dict[str, Any], **options: Any) -> None:
    """Server-side apply, refusing unknown fields."""
    kinds: Any = dynamic.DynamicClient(api)  # type: ignore[no-untyped-call]
    kind = kinds.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
    kinds.server_side_apply(
        kind,
        body=manifest,
        name=manifest["metadata"]["name"],
        namespace=manifest["metadata"].get("namespace"),
        field_manager="isoloss-tests",
        query_params=[("fieldValidation", "Strict")],
        **options,
    )


@pytest.fixture(scope="module")
def namespaces(api_client: client.ApiClient) -> Iterator[None]:
    """The namespaces that the values name; the operator's is restricted."""
    core = client.CoreV1Api(api_client)
    names = {chart.NAMESPACE: "restricted", "teaching": "privileged", "products": "privileged"}
    for name, level in names.items():
        labels = {"pod-security.kubernetes.io/enforce": level}
        manifest = {"metadata": {"name": name, "labels": labels}}
        apply(api_client, {"apiVersion": "v1", "kind": "Namespace", **manifest})
    yield
    for name in names:
        core.delete_namespace(name)


@pytest.mark.parametrize("values", VALUES)
def test_the_api_server_accepts_all_that_the_chart_renders(
    values: dict[str, Any], isoloss_api: client.ApiClient, namespaces: None
) -> None:
    for manifest in chart.render(values):
        apply(isoloss_api, manifest, dry_run="All")


@pytest.mark.parametrize("values", VALUES)
def test_the_operators_pod_is_admitted_where_only_restricted_pods_are(
    values: dict[str, Any], api_client: client.ApiClient, namespaces: None
) -> None:
    pod = pod_of_the_chart(values)
    apply(api_client, pod, dry_run="All")
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(client.ApiException, match="violates PodSecurity"):
        apply(api_client, pod, dry_run="All")


def pod_of_the_chart(values: dict[str, Any]) -> dict[str, Any]:
    deployment = chart.one("Deployment", values)
    pod = deployment["spec"]["template"]
    # Of a made-up account: the admission of service accounts would first ask for the real one.
    spec = pod["spec"] | {"serviceAccountName": "default"}
    metadata = {"name": "operator", "namespace": chart.NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


ALLOWED = [
    (GROUP, "scalingsweeps", "", "list"),
    (GROUP, "hyperparampredictions", "", "watch"),
    (GROUP, "scalingsweeps", "status", "patch"),
    ("batch", "jobs", "", "create"),
    ("batch", "jobs", "", "delete"),
    ("", "pods", "", "list"),
    ("", "configmaps", "", "patch"),
    ("", "configmaps", "", "list"),
    ("", "configmaps", "", "delete"),
    ("events.k8s.io", "events", "", "create"),
]
NEVER = [
    ("", "secrets", "", "get"),
    ("", "secrets", "", "list"),
    ("", "pods", "", "create"),
    ("", "pods", "log", "get"),
    ("", "configmaps", "", "update"),
    ("", "configmaps", "", "deletecollection"),
    ("", "serviceaccounts", "token", "create"),
    (GROUP, "scalingsweeps", "", "update"),
    (GROUP, "scalingsweeps", "", "patch"),
    (GROUP, "scalingsweeps", "", "delete"),
    ("rbac.authorization.k8s.io", "roles", "", "create"),
    ("coordination.k8s.io", "leases", "", "delete"),
]


def may(
    api: client.ApiClient,
    namespace: str,
    asked: tuple[str, str, str, str],
    account: str = rbac.NAME,
    name: str = "",
) -> bool:
    """Whether the operator's account may do that in a namespace, with any object or that of a name."""
    group, resource, subresource, verb = asked
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    attributes |= {"subresource": subresource, "name": name}
    user = f"system:serviceaccount:{chart.NAMESPACE}:{account}"
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    answer: Any = client.AuthorizationV1Api(api).create_subject_access_review(review)  # type: ignore[arg-type]
    return bool(answer.status.allowed)


def test_the_account_may_do_its_work_in_its_namespaces_and_nothing_else(
    isoloss_api: client.ApiClient, namespaces: None
) -> None:
    for manifest in rbac.account(chart.NAMESPACE, watched=["teaching"]):
        apply(isoloss_api, manifest)
    lease = ("coordination.k8s.io", "leases", "", "create")
    assert may(isoloss_api, chart.NAMESPACE, lease)
    for asked in ALLOWED:
        assert may(isoloss_api, "teaching", asked), asked
        assert not may(isoloss_api, "products", asked), asked
        assert not may(isoloss_api, chart.NAMESPACE, asked), asked
    for asked in NEVER:
        for namespace in ("teaching", "products", chart.NAMESPACE):
            assert not may(isoloss_api, namespace, asked), asked


class Helm:
    """Installs releases for good, and removes them at the end. The CRDs are there already."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._login = ("--kubeconfig", str(plane.admin_kubeconfig))
        self._folder = folder
        self._installed: list[tuple[str, str]] = []

    def install(self, release: str, namespace: str, values: dict[str, Any]) -> None:
        """Without the CRDs unless asked for, as all releases of a cluster but one."""
        self._do("install", release, namespace, values)
        self._installed.append((release, namespace))

    def upgrade(self, release: str, namespace: str, values: dict[str, Any], *options: str) -> None:
        """The same for a release that is there."""
        self._do("upgrade", release, namespace, values, *options)

    def _do(
        self, verb: str, release: str, namespace: str, values: dict[str, Any], *options: str
    ) -> None:
        file = self._folder / f"{release}-{namespace}.json"
        file.write_text(json.dumps(chart.with_images({"crds": {"install": False}, **values})))
        where = ("--values", str(file), "--namespace", namespace, *self._login)
        answer = chart.helm(verb, release, str(chart.CHART), *where, *options)
        assert answer.returncode == 0, answer.stderr

    def end(self) -> None:
        """Uninstall them."""
        for release, namespace in self._installed:
            chart.helm("uninstall", release, "--namespace", namespace, *self._login)


@pytest.fixture
def releases(
    control_plane: ControlPlane,
    isoloss_api: client.ApiClient,
    namespaces: None,
    tmp_path: Path,
) -> Iterator[Helm]:
    made = Helm(control_plane, tmp_path)
    yield made
    made.end()


@pytest.mark.whole
def test_each_team_can_have_a_release_of_its_own(
    releases: Helm, api_client: client.ApiClient
) -> None:
    """All of one name, and one of them watches all namespaces."""
    releases.install("team", "teaching", {"watchNamespaces": ["teaching"]})
    releases.install("team", "products", {"watchNamespaces": ["products"]})
    releases.install("team", chart.NAMESPACE, {})
    roles = client.RbacAuthorizationV1Api(api_client).list_cluster_role().items
    names = {role.metadata.name for role in roles}
    for namespace in ("teaching", "products", chart.NAMESPACE):
        assert {f"{namespace}:team-operator-{way}" for way in ("view", "edit")} <= names
    assert f"{chart.NAMESPACE}:team-operator" in names


@pytest.mark.whole
def test_the_crds_move_to_another_release_as_the_guide_says(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """On an API server of its own: other tests need the kinds."""
    plane = own_control_plane
    core = client.CoreV1Api(plane.api_client())
    for namespace in ("teaching", "products"):
        core.create_namespace({"metadata": {"name": namespace}})  # type: ignore[arg-type]
    releases = Helm(plane, tmp_path)
    releases.install("a", "teaching", {"watchNamespaces": ["teaching"], **with_crds(True)})
    releases.install("b", "products", {"watchNamespaces": ["products"]})
    uids = uids_of_crds(plane)
    assert len(uids) == 2
    moved = {"watchNamespaces": ["products"], **with_crds(True)}
    releases.upgrade("b", "products", moved, "--take-ownership")
    releases.upgrade("a", "teaching", {"watchNamespaces": ["teaching"]})
    assert uids_of_crds(plane) == uids
    releases.upgrade("b", "products", moved)


def with_crds(install: bool) -> dict[str, Any]:
    return {"crds": {"install": install}}


def uids_of_crds(plane: ControlPlane) -> set[str]:
    listed = client.ApiextensionsV1Api(plane.api_client()).list_custom_resource_definition().items
    return {each.metadata.uid for each in listed}


def test_a_role_that_somebody_changed_is_restored_as_the_runbooks_say(
    releases: Helm, api_client: client.ApiClient
) -> None:
    """Helm 4 leaves what it installed to whoever has changed it since, and says so."""
    values = {"watchNamespaces": ["teaching"]}
    releases.install("mended", chart.NAMESPACE, values)
    rights = client.RbacAuthorizationV1Api(api_client)

    def role() -> Any:
        (found,) = [
            each
            for each in rights.list_namespaced_role("teaching").items
            if each.metadata.name.startswith("mended")
        ]
        return found

    rules = role().rules
    rights.patch_namespaced_role(role().metadata.name, "teaching", {"rules": []})
    with pytest.raises(AssertionError, match=r"Apply failed with 1 conflict.* \.rules"):
        releases.upgrade("mended", chart.NAMESPACE, values)
    releases.upgrade("mended", chart.NAMESPACE, values, "--force-conflicts")
    assert role().rules == rules


@pytest.mark.whole
def test_a_release_whose_name_is_as_long_as_helm_takes_is_installed(
    releases: Helm, api_client: client.ApiClient
) -> None:
    release = "r" * 53
    releases.install(release, chart.NAMESPACE, {})
    services = client.CoreV1Api(api_client).list_namespaced_service(chart.NAMESPACE).items
    (name,) = [each.metadata.name for each in services if each.metadata.name.startswith("rrr")]
    assert name.endswith("-metrics")
    assert len(name) <= 63


def test_an_installation_without_cluster_wide_rights_works_as_the_guide_says(
    releases: Helm, isoloss_api: client.ApiClient, tmp_path: Path
) -> None:
    """An administrator applies what the guide's command prints, and the chart is installed without roles."""
    page = (chart.ROOT / "docs" / "guides" / "upgrade.md").read_text()
    (command,) = re.findall(r"helm (template .+ --show-only templates/rbac.yaml)", page)
    values = {
        "watchNamespaces": ["teaching"],
        "rbac": {"create": False, "aggregateRoles": False},
    }
    (tmp_path / "values.yaml").write_text(json.dumps(chart.with_images(values)))
    filled = {
        "isoloss": "lab",
        "helm/isoloss": str(chart.CHART),
        "isoloss-system": chart.NAMESPACE,
        "values.yaml": str(tmp_path / "values.yaml"),
    }
    printed = chart.helm(*(filled.get(word, word) for word in command.split()))
    assert printed.returncode == 0, printed.stderr
    for manifest in read_documents(printed.stdout):
        apply(isoloss_api, manifest)
    releases.install("lab", chart.NAMESPACE, values)
    (deployment,) = [
        each
        for each in client.AppsV1Api(isoloss_api).list_namespaced_deployment(chart.NAMESPACE).items
        if each.metadata.name == "lab-operator"
    ]
    pod = deployment.spec.template.spec
    (lease,) = (each.value for each in pod.containers[0].env if each.name == "ISOLOSS_LEASE_NAME")
    account = pod.service_account_name
    for asked in ALLOWED:
        assert may(isoloss_api, "teaching", asked, account), asked
        assert not may(isoloss_api, "products", asked, account), asked
    use = ("coordination.k8s.io", "leases", "", "update")
    assert may(isoloss_api, chart.NAMESPACE, use, account, lease)
    assert not may(isoloss_api, chart.NAMESPACE, use, account, "another")


@pytest.mark.parametrize(
    ("ours", "is_reported"),
    [
        pytest.param({}, True, id="all namespaces"),
        pytest.param({"watchNamespaces": ["products", "teaching"]}, True, id="one in common"),
        pytest.param({"watchNamespaces": ["products"]}, False, id="none in common"),
    ],
)
def test_a_release_that_would_serve_anothers_namespaces_says_so(
    ours: dict[str, Any],
    is_reported: bool,
    api_client: client.ApiClient,
    control_plane: ControlPlane,
    namespaces: None,
    tmp_path: Path,
) -> None:
    other = chart.one("Deployment", {"watchNamespaces": ["teaching"]})
    other["metadata"] |= {"name": "other-operator", "namespace": "teaching"}
    other["spec"]["replicas"] = 0
    apply(api_client, other)
    values = tmp_path / "values.json"
    values.write_text(json.dumps(chart.with_images(ours)))
    # Other tests have applied objects of these names without helm.
    answer = chart.helm(
        *("install", "isoloss", str(chart.CHART), "--dry-run=server", "--take-ownership"),
        *("--values", str(values)),
        *("--namespace", chart.NAMESPACE, "--kubeconfig", str(control_plane.admin_kubeconfig)),
    )
    assert answer.returncode == 0, answer.stderr
    assert (
        "WARNING: teaching/other-operator serves teaching, too" in answer.stdout
    ) is is_reported
