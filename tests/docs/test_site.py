"""The documentation site is built strictly: what leads nowhere, or nowhere from, is an error."""

import re
import tomllib
from pathlib import Path

import pytest

from scripts import site

PAGES = sorted((site.CHECKOUT / "docs").rglob("*.md"))
CONFIGURATION = """
[project]
site_name = "x"
docs_dir = ".site/pages"
site_dir = ".site/html"
nav = [{"Home" = "README.md"}, {"Pages" = [{"One" = "docs/one.md"}]}]
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "zensical.toml").write_text(CONFIGURATION)
    (tmp_path / "README.md").write_text("# Home\n\n[one](docs/one.md#a-heading), [code](docs)\n")
    (tmp_path / "docs" / "one.md").write_text(
        "# One\n\n## A heading\n\n[a file](two.yaml), `spec.grid.around`, `calls_total`, `0.5`, `fit --out-file F`\n\n    isoloss a.b.c\n"
    )
    (tmp_path / "docs" / "two.yaml").write_text("a: 1\n")
    monkeypatch.setattr(site, "CHECKOUT", tmp_path)
    monkeypatch.setattr(site, "CONFIGURATION", tmp_path / "zensical.toml")
    monkeypatch.setattr(site, "SITE", tmp_path / ".site")
    monkeypatch.setattr(site, "PAGES", tmp_path / ".site" / "pages")
    monkeypatch.setattr(site, "START", tmp_path / "README.md")
    return tmp_path


def test_pages_and_the_files_they_link_to_are_on_the_site(checkout: Path) -> None:
    assert site.main() == 0
    built = checkout / ".site" / "html"
    assert (built / "docs" / "one" / "index.html").exists()
    assert (built / "docs" / "two.yaml").exists()
    assert 'href="docs/one/#a-heading"' in (built / "index.html").read_text()


def test_identifiers_break_at_dots_and_underscores_and_commands_do_not(checkout: Path) -> None:
    assert site.main() == 0
    page = (checkout / ".site" / "html" / "docs" / "one" / "index.html").read_text()
    assert "<code>spec.<wbr>grid.<wbr>around</code>" in page
    assert "<code>calls_<wbr>total</code>" in page
    assert "<code>0.5</code>" in page
    assert '<code>fit <span class="option">--out-file</span> F</code>' in page
    assert "a.b.c" in page


def test_the_site_begins_with_the_quick_start_leads_on_and_has_dark_pictures() -> None:
    project = tomllib.loads((Path(site.__file__).parents[1] / "zensical.toml").read_text())[
        "project"
    ]
    assert project["nav"][0] == {"Quick start": "docs/guides/quickstart.md"}
    assert "navigation.footer" in project["theme"]["features"]
    assert {each["scheme"] for each in project["theme"]["palette"]} == {"default", "slate"}
    (style,) = project["extra_css"]
    assert "slate" in (Path(site.__file__).parents[1] / style).read_text()


@pytest.mark.parametrize(
    ("page", "text", "says"),
    [
        ("README.md", "[gone](docs/gone.md)", "page does not exist"),
        ("README.md", "[one](docs/one.md#gone)", "anchor does not exist"),
        ("docs/more.md", "# More", "docs/more.md: not in the navigation"),
    ],
)
def test_dead_links_and_pages_without_a_place_are_errors(
    checkout: Path, capsys: pytest.CaptureFixture[str], page: str, text: str, says: str
) -> None:
    with (checkout / page).open("a") as file:
        file.write(f"\n{text}\n")
    assert site.main() == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_below_a_step_are_indented_so_that_the_site_shows_their_lines(page: Path) -> None:
    """By eight: by less, GitHub shows a block of commands, and the site one paragraph of them."""
    is_in_list = False
    before = ""
    for line in page.read_text().splitlines():
        if re.match(r"(\d+\.|-) ", line):
            is_in_list = True
        elif line and not line.startswith(" "):
            is_in_list = False
        indent = len(line) - len(line.lstrip())
        is_code = is_in_list and not before and not line.lstrip().startswith("```")
        assert not (is_code and 4 <= indent < 8), line
        before = line.strip()
