"""The version is stated in pyproject.toml; everything that repeats it says the same."""

import re
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
CHART = (CHECKOUT / "helm" / "isoloss" / "Chart.yaml").read_text()
REPEATED = {
    "the chart's version": (CHART, r"^version: (\S+)$"),
    "the chart's appVersion": (CHART, r'^appVersion: "(\S+)"$'),
    "the citation": ((CHECKOUT / "CITATION.cff").read_text(), r"^version: (\S+)$"),
    "the site": ((CHECKOUT / "zensical.toml").read_text(), r'^copyright = "isoloss (\S+), '),
    "the operator's image": ((CHECKOUT / "operator" / "Dockerfile").read_text(), r"^ARG VERSION=(\S+)$"),
    "the trainer's image": ((CHECKOUT / "trainer_image" / "Dockerfile").read_text(), r"^ARG VERSION=(\S+)$"),
}  # fmt: skip


@pytest.mark.parametrize("where", REPEATED)
def test_the_version_is_the_projects(where: str) -> None:
    text, pattern = REPEATED[where]
    assert set(re.findall(pattern, text, re.MULTILINE)) == {PROJECT["version"]}


@pytest.mark.parametrize(
    "page", sorted(CHECKOUT.glob("docs/**/*.md")), ids=lambda p: str(p.relative_to(CHECKOUT))
)
def test_image_tags_in_the_docs_are_of_this_version(page: Path) -> None:
    tags = re.findall(r"isoloss/(?:operator|trainer|\$name):([\w.]+)", page.read_text())
    assert set(tags) <= {PROJECT["version"]}


def test_the_oldest_kubernetes_is_the_same_for_chart_and_docs() -> None:
    (oldest,) = re.findall(r'^kubeVersion: ">=(\d+\.\d+)\.0-0"$', CHART, re.MULTILINE)
    for page in ("docs/guides/install.md", "docs/reference/support.md"):
        assert f"{oldest} or newer" in (CHECKOUT / page).read_text(), page


def test_every_file_has_a_licence_by_the_reuse_specification() -> None:
    reuse = tomllib.loads((CHECKOUT / "REUSE.toml").read_text())
    (everything,) = reuse["annotations"]
    assert everything["path"] == "**"
    licence = everything["SPDX-License-Identifier"]
    assert licence == PROJECT["license"]
    assert (CHECKOUT / "LICENSES" / f"{licence}.txt").read_text() == (
        CHECKOUT / "LICENSE"
    ).read_text()
