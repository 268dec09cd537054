"""Real text in three domains, the same bytes on every machine: the locked packages' own files.

The sweep's grid brackets the optima of this very text, and the standard library differs with
Python's version. So only packages are read whose version in the lock is one for all Pythons, and no
tests, which some distributions leave out. tests/e2e holds the digests.
"""

import ast
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "_vendor", "__pycache__"})
SHORTEST = 80
"""Characters: shorter docstrings and documents carry little text."""
LONGEST = 1500
"""Characters: longer texts are cut between paragraphs, lest a few held-out documents be most of the
validation tokens."""
OLDEST_PYTHON = (3, 11)
"""Files that need a newer one are left out on every Python."""


@dataclass(frozen=True)
class Domain:
    """What is taken from each module of some packages, and how much in all.

    More text than `size_bytes` would cost preparation time and change nothing.
    """

    packages: tuple[str, ...]
    extract: Callable[[str], str]
    size_bytes: int
    suffix: str = ".py"
    """Of the files that are read."""

    def documents(self) -> list[str]:
        """Distinct documents from all over the packages."""
        return _up_to(self.size_bytes, self._distinct())

    def split(self) -> tuple[list[str], list[str]]:
        """`documents`, and what the packages have beyond them."""
        pieces = self._distinct()
        return _up_to(self.size_bytes, pieces), list(pieces)

    def _distinct(self) -> Iterator[str]:
        sources = _sources(self.packages, self.suffix)
        return _distinct(map(self.extract, sources))


def pieces(text: str) -> Iterator[str]:
    """`text` cut at blank lines into parts of about LONGEST characters."""
    part: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        part.append(paragraph)
        size += len(paragraph)
        if size >= LONGEST:
            yield "\n\n".join(part)
            part, size = [], 0
    if part:
        yield "\n\n".join(part)


def _distinct(texts: Iterable[str]) -> Iterator[str]:
    """The pieces of `texts` that are not too short, each once."""
    seen: set[str] = set()
    for piece in (piece for text in texts for piece in pieces(text)):
        if len(piece) >= SHORTEST and piece not in seen:
            seen.add(piece)
            yield piece


def _up_to(size_bytes: int, texts: Iterator[str]) -> list[str]:
    """The first of `texts`, until there are so many bytes; `texts` goes on behind them."""
    taken: list[str] = []
    size = 0
    for text in texts:
        taken.append(text)
        size += len(text.encode())
        if size >= size_bytes:
            break
    return taken


def _sources(packages: Sequence[str], suffix: str) -> Iterator[str]:
    """Sources of all modules in the order of a hash, so that a limit cuts evenly through all."""
    root = _site_packages()
    modules = (path for package in packages for path in (root / package).rglob(f"*{suffix}"))
    named = {path.relative_to(root).as_posix(): path for path in modules}
    for name in sorted(named, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        if not SKIPPED_FOLDERS.intersection(name.split("/")):
            yield named[name].read_text(encoding="utf-8", errors="replace")


def _site_packages() -> Path:
    """Where the installed packages are: beside numpy, whatever the environment's layout."""
    return Path(str(metadata.distribution("numpy").locate_file("")))


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source, feature_version=OLDEST_PYTHON)
    except (SyntaxError, ValueError):
        return None  # some packages ship templates or files for other Python versions


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)
"""Below a module, what can hold a class or a function."""


def _documented(tree: ast.Module) -> Iterator[Documented]:
    """In the order of `ast.walk`, which looks at every part of every expression, too."""
    left: deque[ast.AST] = deque([tree])
    while left:
        node = left.popleft()
        if isinstance(node, Documented):
            yield node
        left.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, HOLDERS))


def docstrings(source: str) -> str:
    """All docstrings of a module that are not too short, a blank line between them."""
    tree = _parse(source)
    if tree is None:
        return ""
    found = (ast.get_docstring(node) or "" for node in _documented(tree))
    return "\n\n".join(dict.fromkeys(text for text in found if len(text) >= SHORTEST))


def without_docstrings(source: str) -> str:
    """`source` with its docstrings' lines taken out; "" where it cannot be parsed."""
    tree = _parse(source)
    if tree is None:
        return ""
    dropped: set[int] = set()
    for node in _documented(tree):
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            dropped.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = source.splitlines()
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in dropped).strip()


DOMAINS = {
    "general": Domain(
        ("accelerate", "datasets", "huggingface_hub", "matplotlib", "pandas", "pydantic"),
        docstrings,
        5_000_000,
    ),
    "math": Domain(("mpmath", "sympy"), docstrings, 2_500_000),
    "code": Domain(
        ("_pytest", "botocore", "fsspec", "huggingface_hub", "kopf", "pydantic", "rich"),
        without_docstrings,
        2_500_000,
    ),
}

# ------------------------------------------------------------------------------------- files


def write_jsonl_zst(texts: Iterable[str], field: str, path: Path) -> None:
    """JSON lines, Zstandard-compressed."""
    content = "".join(json.dumps({field: text}) + "\n" for text in texts)
    path.write_bytes(zstandard.ZstdCompressor(level=3).compress(content.encode()))


def write_jsonl(texts: Iterable[str], field: str, path: Path) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))


def write_parquet(texts: Iterable[str], field: str, path: Path) -> None:
    """One column of strings."""
    pq.write_table(pa.table({field: pa.array(list(texts), pa.string())}), path)


def write_corpus(texts: Mapping[str, Sequence[str]], folder: Path) -> list[Path]:
    """Write the domains' documents to one file each, each in another format."""
    folder.mkdir(parents=True, exist_ok=True)
    general, math, code = (
        folder / "general.jsonl.zst",
        folder / "math.parquet",
        folder / "code.jsonl",
    )
    write_jsonl_zst(texts["general"], "text", general)
    write_parquet(texts["math"], "text", math)
    write_jsonl(texts["code"], "content", code)
    return [general, math, code]
