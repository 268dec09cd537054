"""The pages about the code name only files and folders that exist."""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/architecture.md", "operator/README.md", "trainer_image/README.md")
ROOTS = (
    ".",
    "operator",
    "operator/isoloss",
    "operator/isoloss_contract",
    "operator/isoloss_operator",
    "operator/isoloss_operator/decide",
    "trainer_image",
    "trainer_image/isoloss_trainer",
)
"""Where a path may begin: a page about one package leaves its name out."""
NAMED = re.compile(r"`([A-Za-z_][\w./-]*(?:\.py|/))`")
LINKED = re.compile(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)")
DOCS = sorted(str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("docs/**/*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_every_module_named_in_a_page_exists(page: str) -> None:
    named = set(NAMED.findall((CHECKOUT / page).read_text()))
    assert named or page == "README.md"
    missing = [path for path in named if not any((CHECKOUT / r / path).exists() for r in ROOTS)]
    assert missing == []


@pytest.mark.parametrize("page", [*DOCS, *PAGES])
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    folder = (CHECKOUT / page).parent
    links = LINKED.findall((CHECKOUT / page).read_text())
    assert [link for link in links if not (folder / link).exists()] == []


def test_a_guide_is_two_screens() -> None:
    """Each alert has a screen of its own."""
    guides = {
        page.name: len(page.read_text().split()) for page in CHECKOUT.glob("docs/guides/*.md")
    }
    assert [name for name, words in guides.items() if words > 800] == ["runbooks.md"]


def test_no_paragraph_of_the_reference_is_a_wall() -> None:
    """Of tables and lists each line counts, of others what stands between blank lines."""
    for page in sorted(CHECKOUT.glob("docs/reference/*.md")):
        for block in page.read_text().split("\n\n"):
            parts = block.splitlines() if re.match(r"[|`-]|\d\.| ", block) else [block]
            assert max(map(len, parts), default=0) <= 900, f"{page.name}: {block[:80]}"
