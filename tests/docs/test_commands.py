"""What the pages tell people to type exists: make targets, options, kinds, chart values, headings.

That they also do what the pages say is for test_executed.py and the tests that it names.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.main import get_command

from isoloss.cli.application import application
from isoloss_operator.generate.crdgen import definitions
from tests.support.pages import CHECKOUT, PAGES, blocks, page_id

SCHEMA = json.loads((CHECKOUT / "helm" / "isoloss" / "values.schema.json").read_text())
BUILT_IN = {
    "pods", "pod", "workload", "events", "deployment", "deployments", "leases", "lease", "configmap", "crd", "namespace",
    "nodes", "secret", "workloads", "roles", "rolebindings", "get", "--raw", "isoloss",
}  # fmt: skip


def commands(page: Path) -> Iterator[str]:
    """Every line to be typed and every command quoted in a sentence; continued lines joined."""
    for block in blocks(page):
        if block.is_shell:
            yield from (line.strip() for line in block.text.replace("\\\n", " ").splitlines())


def test_removing_what_the_commands_made_installs_nothing() -> None:
    """`make clean` would fetch gigabytes in a fresh clone to delete them again."""
    command = ["make", "--dry-run", "clean"]
    message = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout
    assert "rm -rf" in message
    assert "setup.sh" not in message


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z][\w-]*):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    )
    named = {
        match[1] for line in commands(page) if (match := re.match(r"make ([a-z][\w-]*)", line))
    }
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_subcommand_and_option_of_isoloss_exists(page: Path) -> None:
    group: Any = get_command(application)
    context = group.make_context("isoloss", [], resilient_parsing=True)
    for line in commands(page):
        match = re.match(r"(?:isoloss/bin/)?isoloss ([a-z]+)\b(.*)", line)
        if match is None:
            continue
        _, command, _ = group.resolve_command(context, [match[1]])  # raises for an unknown one
        known = {"--help", *(name for each in command.params for name in each.opts)}
        used = re.findall(r"(?<!\S)(--[a-z][\w-]*)", match[2].partition("#")[0])
        assert set(used) <= known, line


@pytest.mark.parametrize("name", ["fit", "predict", "validate"])
def test_the_reference_has_every_option_of_a_command_that_asks_the_laws(name: str) -> None:
    group: Any = get_command(application)
    context = group.make_context("isoloss", [], resilient_parsing=True)
    _, command, _ = group.resolve_command(context, [name])
    options = {each.opts[0] for each in command.params if each.opts[0].startswith("--")}
    page = (CHECKOUT / "docs" / "reference" / "cli.md").read_text()
    section = page.partition(f"## isoloss {name}\n")[2].partition("\n## ")[0]
    # --json is described once, for all commands.
    assert options - set(re.findall(r"--[a-z][a-z-]*", section)) == {"--json"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_kind_that_kubectl_is_asked_for_is_ours_or_built_in(page: Path) -> None:
    names = [crd["spec"]["names"] for crd in definitions()]
    ours = {name for each in names for name in (each["plural"], each["singular"])}
    ours |= {short for each in names for short in each["shortNames"]}
    for line in commands(page):
        match = re.match(
            r"kubectl (?:(?:-n|--namespace) \S+ )?(?:get|describe|patch|delete) (\S+)", line
        )
        if match is None:
            continue
        for kind in match[1].split(","):
            assert kind.partition("/")[0] in ours | BUILT_IN, line


@pytest.mark.parametrize("file", [*PAGES, *sorted(CHECKOUT.glob("gitops/**/*.yaml"))], ids=page_id)
def test_nothing_waits_with_a_negative_timeout(file: Path) -> None:
    """kubectl takes one for a week, which a sweep can outlast."""
    assert not re.findall(r"--timeout[= ]-\S*", file.read_text())


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_chart_values_in_yaml_blocks_are_accepted(page: Path) -> None:
    blocks = re.findall(r"^( *)```yaml\n(.*?)^\1```$", page.read_text(), re.MULTILINE | re.DOTALL)
    top = set(SCHEMA["properties"])
    for _, block in blocks:
        documents = [each for each in yaml.safe_load_all(block) if isinstance(each, dict)]
        for values in documents:
            if "queue" not in values and set(values) <= top:
                jsonschema.validate(values, SCHEMA)


def slug(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
        file = (page.parent / target) if target else page
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
        assert anchor in {slug(heading) for heading in headings}, f"{target}#{anchor}"


def test_the_index_leads_to_every_page() -> None:
    index = (CHECKOUT / "docs" / "README.md").read_text()
    pages = {str(p.relative_to(CHECKOUT / "docs")) for p in CHECKOUT.glob("docs/**/*.md")}
    assert {page for page in pages if f"({page})" not in index} == {"README.md"}
