"""A reader who does what a page says: each of its blocks in a shell, as it stands but for its placeholders."""

import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.pages import Block, blocks, commands_run_by_tests

SHELL = ("bash", "-eu", "-o", "pipefail", "-c")
"""A reader stops at the first command that fails."""


@dataclass
class Walk:
    """Pages are opened one after the other, and each is read in its own order."""

    folder: Path
    """Where the reader is: a copy of the checkout, or a folder with what the page takes for granted."""
    environment: Mapping[str, str]
    placeholders: dict[str, str] = field(default_factory=dict)
    """What the pages leave to the reader: text by placeholder."""
    patience: float = 900
    """Seconds that one block may take."""
    page: Path = Path()
    left: list[Block] = field(default_factory=list)
    """Commands of the open page that are still to be typed."""

    def open(self, page: Path, *programs: str) -> None:
        """Begin a page; with `programs`, of its blocks only those that begin with one of them."""
        self.page = page
        found = commands_run_by_tests(page)
        self.left = [each for each in found if not programs or each.text.startswith(programs)]
        assert self.left, f"nothing of {page.name} is left to tests"

    def save(self, first_line: str, name: str) -> str:
        """Save the block of the page that begins with this line as a file, as the page asks; its text."""
        (text,) = (each.text for each in blocks(self.page) if each.text.startswith(first_line))
        (self.folder / name).write_text(self._filled(text))
        return self._filled(text)

    def step(self, begins: str, *, statuses: Collection[int] = (0,)) -> str:
        """Type the next block, which begins with this text; what it printed.

        It must end with one of `statuses`.
        """
        assert self.left, f"{self.page.name} has no block that begins with {begins!r} here"
        block = self.left.pop(0)
        where = f"{self.page.name}, line {block.line}"
        assert block.text.startswith(begins), f"{where}: {block.text}"
        return self._type(block.text, where, statuses)

    def again(self, text: str) -> str:
        """Type something that is not the next block; what it printed."""
        return self._type(text, "typed by hand", (0,))

    def rest(self) -> None:
        """Type what is left of the page."""
        while self.left:
            self.step("")

    def _filled(self, text: str) -> str:
        for placeholder, meant in self.placeholders.items():
            text = text.replace(placeholder, meant)
        return text

    def _type(self, text: str, where: str, statuses: Collection[int]) -> str:
        answer = subprocess.run(
            [*SHELL, self._filled(text)],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self.patience,
            check=False,
        )
        print(f"--- {where}\n{self._filled(text)}\n{answer.stdout}")
        assert answer.returncode in statuses, f"{where} ends with {answer.returncode}"
        return answer.stdout
