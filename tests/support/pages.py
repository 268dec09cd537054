"""The commands that a page of the documentation tells people to type, and which of them no test runs.

A page says so itself, in a comment that readers do not see:

    <!-- not executed: needs a GPU -->

right before a block it is about that block, and at the end of a line about the commands in its text.
`<!-- page not executed: ... -->` is about the whole page.
"""

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

from isoloss.report import page
from isoloss.report.drawing import Figure

CHECKOUT = Path(__file__).parents[2]
PAGES = [
    *sorted(CHECKOUT.glob("docs/**/*.md")),
    *(CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "helm/isoloss/README.md")),
]
MARK = re.compile(r"<!-- not executed: (.+?) -->")
PAGE_MARK = re.compile(r"^<!-- page not executed: (.+?) -->$", re.MULTILINE)
FENCE = re.compile(r"^ *```(\w*)$")
INDENTED = re.compile(r"^ {4,}(?=\S)")
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*"
    r"(?:\S*bin/)?(?:make|isoloss|isoloss-trainer|kubectl|argocd|helm|docker|kind|python[\d.]*|aws|cp|export|eval)"
    r"(?= )"
)
QUOTED = re.compile(r"`((?:make|isoloss|kubectl|helm|python) [^`]+)`")
WORDS = 4
"""From so many words on, what a sentence quotes is a command to be typed and not the name of one."""


@dataclass(frozen=True)
class Block:
    """Lines that belong together: a block of code, or one command in a sentence."""

    line: int
    """Of its first line in the page, from 1."""
    language: str
    """What the page calls it; "sh" for an indented block of commands and a command in a sentence."""
    text: str
    mark: str = ""
    """Why no test runs it."""
    quoted: bool = False
    """In a sentence."""

    @property
    def is_shell(self) -> bool:
        """Whether it has commands, or the name of one."""
        return self.language in {"sh", "bash"}

    @property
    def is_to_be_typed(self) -> bool:
        """Whether it has commands that are whole."""
        return self.is_shell and not (self.quoted and len(self.text.split()) < WORDS)


def page_id(page: Path) -> str:
    """Its path in the checkout, for a test's name."""
    return str(page.relative_to(CHECKOUT))


def blocks(page: Path) -> list[Block]:
    """Every block of code and every command quoted in a sentence, in the order of the page."""
    lines = page.read_text().splitlines()
    match = PAGE_MARK.search(page.read_text())
    everything = match[1] if match else ""
    found: list[Block] = []
    index = 0
    while index < len(lines):
        if match := FENCE.match(lines[index]):
            end = next(n for n in range(index + 1, len(lines)) if lines[n].strip() == "```")
            found.append(_block(lines, index, match[1], lines[index + 1 : end], everything))
            index = end
        elif INDENTED.match(lines[index]) and not lines[index - 1].strip():
            end = _end_of_indented(lines, index)
            if PROGRAM.match(lines[index].strip()):
                found.append(_block(lines, index, "sh", lines[index:end], everything))
            index = end - 1
        else:
            found += _in_sentences(lines[index], index, everything)
        index += 1
    return found


def commands_run_by_tests(page: Path) -> list[Block]:
    """Those to be typed that the page does not except."""
    return [block for block in blocks(page) if block.is_to_be_typed and not block.mark]


def _mark_above(lines: list[str], index: int) -> str:
    """The reason of a comment that nothing but empty lines divides from this line."""
    above = next((line for line in reversed(lines[:index]) if line.strip()), "")
    match = MARK.fullmatch(above.strip())
    return match[1] if match else ""


def _end_of_indented(lines: list[str], start: int) -> int:
    """The line after the last of an indented block, in which lines may be empty."""
    inside = [bool(INDENTED.match(line)) or not line.strip() for line in lines[start:]]
    length = next((len(list(group)) for _, group in groupby(inside)), 0)
    while not lines[start + length - 1].strip():
        length -= 1
    return start + length


def _block(
    lines: list[str], index: int, language: str, content: list[str], everything: str
) -> Block:
    indent = min((len(each) - len(each.lstrip()) for each in content if each.strip()), default=0)
    text = "\n".join(each[indent:] for each in content)
    return Block(index + 1, language, text, everything or _mark_above(lines, index))


def _in_sentences(line: str, index: int, everything: str) -> list[Block]:
    mark = MARK.search(line)
    reason = everything or (mark[1] if mark else "")
    return [Block(index + 1, "sh", text, reason, quoted=True) for text in QUOTED.findall(line)]


BLANK = {name: Figure((1, 1)) for name in ("laws", "iso-loss", "trajectories")}
"""Without an answer."""
BLANK_ANSWER = {"answer": Figure((1, 1)), **BLANK}


def drawn_empty(
    _laws: Any, _runs: Any, prediction: Any = None, **_options: Any
) -> dict[str, Figure]:
    """In place of draw_figures."""
    return BLANK if prediction is None else BLANK_ANSWER


draw_empty_figures = mock.patch.object(page, "draw_figures", drawn_empty)
"""As long as it is started: for tests that look at no figure."""
