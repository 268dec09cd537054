"""Real text that every machine has once the project is installed, in three domains.

general: docstrings and manual pages of the Python distribution, and the READMEs and docstrings of
installed packages; math: docstrings of mpmath, sympy and scipy; code: the standard library's source
without its docstrings. Only files that every Python distribution brings are read (no test folders:
some distributions leave them out), in an order that depends on their names alone.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

SKIPPED_FOLDERS = frozenset(
    {
        *("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"),
        *("idlelib", "turtledemo", "tkinter", "lib2to3", "distutils", "ensurepip"),
        *("encodings", "pydoc_data"),  # tables, and prose read by another way
    }
)
GENERAL_PACKAGES = ("matplotlib", "numpy")
MATH_PACKAGES = ("mpmath", "scipy", "sympy")
PROJECT = "isoloss"
DOMAIN_BYTES = {"general": 8_000_000, "math": 2_500_000, "code": 2_500_000}
"""At most this much text per domain: preparing more would cost time and change nothing."""
SHORTEST = 80
"""Characters: shorter docstrings and documents say little."""
LONGEST = 1500
"""Characters: longer texts are cut between paragraphs, so that a few held-out documents are no
longer most of the validation tokens."""


def documents(domain: str) -> list[str]:
    """The distinct documents of a domain, up to DOMAIN_BYTES. Raises KeyError for another name."""
    sources = {"general": _general, "math": _mathematics, "code": _code}[domain]
    return _distinct(sources(), DOMAIN_BYTES[domain])


def package_prose(packages: Sequence[str], size: int) -> list[str]:
    """Docstrings of installed packages, about `size` bytes from all over them."""
    return _distinct(_evenly([_site_packages() / package for package in packages]), size)


def _distinct(texts: Iterable[str], limit: int) -> list[str]:
    """The pieces of `texts` that say something, each once, until there are `limit` bytes."""
    kept: dict[str, None] = {}
    size = 0
    for piece in (piece for text in texts for piece in pieces(text)):
        if len(piece) < SHORTEST or piece in kept:
            continue
        kept[piece] = None
        size += len(piece.encode())
        if size >= limit:
            break
    return list(kept)


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


def _general() -> Iterator[str]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    yield from (topics[name].strip() for name in sorted(topics))
    yield from map(_prose, _modules(_standard_library()))
    yield from _readmes()
    for package in GENERAL_PACKAGES:
        yield from map(_prose, _modules(_site_packages() / package))


def _mathematics() -> Iterator[str]:
    return _evenly([_site_packages() / package for package in MATH_PACKAGES])


def _evenly(roots: Sequence[Path]) -> Iterator[str]:
    """Docstrings by module in the order of a hash, so that a limit cuts evenly through all."""
    modules = [path for root in roots for path in _modules(root)]
    for path in sorted(modules, key=lambda path: _shuffle_key(path, _site_packages())):
        yield _prose(path)


def _code() -> Iterator[str]:
    root = _standard_library()
    for path in sorted(_modules(root), key=lambda path: _shuffle_key(path, root)):
        yield without_docstrings(_read(path))


def _readmes() -> Iterator[str]:
    """Long descriptions of the installed distributions but this one, by name."""
    named = {(d.metadata["Name"] or "").lower(): d for d in metadata.distributions()}
    for name in sorted(named.keys() - {PROJECT}):
        body = named[name].metadata.json.get("description")
        if isinstance(body, str):
            yield body.strip()


def _standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _site_packages() -> Path:
    """Where the installed packages lie: beside numpy, whatever the environment's layout."""
    return Path(str(metadata.distribution("numpy").locate_file("")))


def _modules(root: Path) -> list[Path]:
    """The .py files under `root`, except in SKIPPED_FOLDERS, by name."""
    return sorted(
        path
        for path in root.rglob("*.py")
        if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts[:-1])
    )


def _shuffle_key(path: Path, root: Path) -> str:
    return hashlib.sha256(path.relative_to(root).as_posix().encode()).hexdigest()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None  # some packages ship files for other Python versions


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _documented(tree: ast.Module) -> Iterator[Documented]:
    return (node for node in ast.walk(tree) if isinstance(node, Documented))


def _prose(path: Path) -> str:
    """All docstrings of a module that say something, a blank line between them."""
    tree = _parse(_read(path))
    if tree is None:
        return ""
    found = (ast.get_docstring(node) or "" for node in _documented(tree))
    return "\n\n".join(dict.fromkeys(text for text in found if len(text) >= SHORTEST))


def without_docstrings(source: str) -> str:
    """`source` with its docstrings' lines taken out; "" where it can not be parsed."""
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
