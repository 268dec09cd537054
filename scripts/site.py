"""Builds the documentation site from the pages as they lie in the checkout, strictly: `make site`.

Pages link to one another and to files of the repository by their paths, on the site as in an editor: they
are laid out under .site/pages as in the checkout, with the files that they link to, and built from there.
A link that leads nowhere, an anchor that no heading has, and a page that the navigation leaves out are
errors.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
CONFIGURATION = CHECKOUT / "zensical.toml"
SITE = CHECKOUT / ".site"
PAGES = SITE / "pages"
START = CHECKOUT / "README.md"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)")
INLINE_CODE = re.compile(r"(?<!<pre><span></span>)<code>[^<]*</code>")
IDENTIFIER_JOINT = re.compile(r"(?<=\w)(\.(?=[A-Za-z])|_(?=[a-z]))")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main() -> int:
    """Build the site; returns the exit status."""
    shutil.rmtree(SITE, ignore_errors=True)
    pages = sorted(_reached())
    for path in (*pages, *_linked_files(pages)):
        target = PAGES / path.relative_to(CHECKOUT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_on_the_site(path)) if path in pages else shutil.copy(path, target)
    for style in tomllib.loads(CONFIGURATION.read_text())["project"].get("extra_css", ()):
        shutil.copy(CHECKOUT / style, PAGES / style)
    problems = _outside_navigation(pages)
    done = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict", "-f", CONFIGURATION],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        problems += COLOUR.sub("", done.stdout + done.stderr).splitlines()
    for page in (SITE / "html").glob("**/*.html"):
        page.write_text(INLINE_CODE.sub(_with_breaks, page.read_text()))
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


def _reached() -> set[Path]:
    """Every page that links lead to from the README, and all of docs/."""
    found: set[Path] = set()
    waiting = [START, *CHECKOUT.glob("docs/**/*.md")]
    while waiting:
        page = waiting.pop()
        if page in found:
            continue
        found.add(page)
        waiting += [link for link in _links(page) if link.suffix == ".md" and link.exists()]
    return found


def _links(page: Path) -> Iterator[Path]:
    for link in LINK.findall(page.read_text()):
        yield (page.parent / link).resolve()


def _linked_files(pages: list[Path]) -> set[Path]:
    """Pictures, examples and other files of the repository."""
    linked = {link for page in pages for link in _links(page)}
    return {path for path in linked if path.is_file() and path.suffix != ".md"}


def _on_the_site(page: Path) -> str:
    """A page, its links to folders as plain words: a site has no listing of a folder."""

    def without_folders(match: re.Match[str]) -> str:
        return match[1] if (page.parent / match[2]).is_dir() else match[0]

    return re.sub(r"\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)\)", without_folders, page.read_text())


def _with_breaks(code: re.Match[str]) -> str:
    """Inline code that a narrow column may break after the dots and underscores of identifiers, and not inside options."""
    whole = OPTION.sub(r'<span class="option">\g<0></span>', code[0])
    return IDENTIFIER_JOINT.sub(r"\1<wbr>", whole)


def _outside_navigation(pages: list[Path]) -> list[str]:
    listed = set(_listed(tomllib.loads(CONFIGURATION.read_text())["project"]["nav"]))
    names = {str(page.relative_to(CHECKOUT)) for page in pages}
    return [
        *(
            f"{name}: not in the navigation of {CONFIGURATION.name}"
            for name in sorted(names - listed)
        ),
        *(f"{CONFIGURATION.name}: {name} is no page" for name in sorted(listed - names)),
    ]


def _listed(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for each in entry.values() if isinstance(entry, dict) else entry:
        if not isinstance(entry, str):
            yield from _listed(each)


if __name__ == "__main__":
    sys.exit(main())
