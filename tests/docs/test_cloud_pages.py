"""The pages for clouds, which no test types: what they have people apply is well-formed and fits together."""

import json
import re
import subprocess
from typing import Any

import pytest

import isoloss
from isoloss.yaml_text import read_documents
from isoloss_operator.cluster.pod_templates import merge
from isoloss_operator.commands.costs import planned
from isoloss_operator.commands.manifest_reader import pod_warnings
from isoloss_operator.planning.specs import parse_sweep_spec
from isoloss_operator.settings import read_settings
from tests.deploy.chart import NAMESPACE, environment, operator_pod
from tests.support.pages import CHECKOUT, blocks

GUIDES = CHECKOUT / "docs" / "guides"
PAGES = ("eks.md", "gke.md")
SCREENS = 3 * 50
"""Lines of a page."""
Json = dict[str, Any]


def applied(page: str, name: str) -> Json:
    """The page's file of this name."""
    (text,) = (each.text for each in blocks(GUIDES / page) if each.text.startswith(f"# {name}\n"))
    (found,) = read_documents(text)
    return dict(found)


def sweep(page: str) -> Json:
    """Spec of the first sweep, changed as the page says."""
    (manifest,) = read_documents((CHECKOUT / "crds/examples/first-sweep.yaml").read_text())
    spec: Json = manifest["spec"]
    del spec["storage"]["secretName"]
    change = applied(page, "first-sweep.yaml")["spec"]
    spec["storage"] |= change["storage"]
    template = merge(spec["podTemplate"], change["podTemplate"])
    return {**spec, "training": change["training"], "podTemplate": template}


@pytest.mark.parametrize("page", PAGES)
def test_the_shell_of_a_page_is_well_formed_and_the_page_short(page: str) -> None:
    text = (GUIDES / page).read_text()
    assert len(text.splitlines()) <= SCREENS
    shell = [each.text for each in blocks(GUIDES / page) if each.language == "sh"]
    assert len(shell) >= 5
    for block in shell:
        checked = subprocess.run(
            ["bash", "-n"], input=block, text=True, capture_output=True, check=False
        )
        assert checked.returncode == 0, checked.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("page", PAGES)
def test_the_chart_takes_a_pages_values_and_its_accounts_have_the_identity(page: str) -> None:
    values, text = applied(page, "values.yaml"), (GUIDES / page).read_text()
    settings = read_settings(environment(values))
    pods = settings.pod_template["spec"]["serviceAccountName"]
    assert f"kubectl --namespace research create serviceaccount {pods}\n" in text
    operator = operator_pod(values)["serviceAccountName"]
    if page == "gke.md":
        assert f"for account in ns/{NAMESPACE}/sa/{operator} ns/research/sa/{pods}; do" in text
    else:
        associations = applied(page, "cluster.yaml")["iam"]["podIdentityAssociations"]
        found = [(each["namespace"], each["serviceAccountName"]) for each in associations]
        assert found == [(NAMESPACE, operator), ("research", pods)]
    (prefix,) = settings.allowed_storage["research"]
    assert sweep(page)["storage"]["uri"].startswith(f"{prefix}/")
    assert settings.trainer_image.endswith(f"/isoloss/trainer:{isoloss.__version__}")


@pytest.mark.parametrize(
    ("page", "grace", "in_time"), [("eks.md", 100, True), ("gke.md", 15, False)]
)
def test_the_first_sweep_passes_the_plan_with_the_grace_that_its_nodes_leave(
    page: str, grace: int, in_time: bool
) -> None:
    spec = parse_sweep_spec(sweep(page))
    assert pod_warnings(spec) == ()
    for size in planned(spec).sizes:
        assert size.checkpointing.grace == grace
        assert size.checkpointing.is_in_time is in_time
        assert (size.checkpointing.interval < 60) is not in_time


def test_a_pods_rights_on_s3_are_those_of_the_page_on_security() -> None:
    page = (CHECKOUT / "docs" / "concepts" / "security.md").read_text()
    (policy,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    needed = {action for each in json.loads(policy)["Statement"] for action in _actions(each)}
    for association in applied("eks.md", "cluster.yaml")["iam"]["podIdentityAssociations"]:
        statements = association["permissionPolicy"]["Statement"]
        assert {action for each in statements for action in _actions(each)} == needed


def _actions(statement: Json) -> list[str]:
    found = statement["Action"]
    return [found] if isinstance(found, str) else found
