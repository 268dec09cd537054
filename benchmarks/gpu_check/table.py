"""The checks' results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_markdown(of: Mapping[str, Any], checks: Mapping[str, Any]) -> str:
    """What was found `of` a machine: a table per check, one row for each of its findings."""
    size = ", at toy size: this says nothing about a GPU" if of["toy"] else ""
    lines = ["# What the GPU check found", "", f"On {of['machine']}{size}.", ""]
    for name, entry in checks.items():
        lines += [f"## {name}", "", f"{entry['status'].capitalize()} in {entry['seconds']} s.", ""]
        if entry["status"] != "done":
            lines += [f"{entry['reason']}:", "", "```", entry["end_of_log"], "```", ""]
            continue
        lines += [*_rows(entry["found"]), ""]
    return "\n".join(lines)


def _rows(found: dict[str, Any]) -> list[str]:
    """Findings that are tables of the same columns become one; others have a row each."""
    tables = {name: row for name, row in found.items() if isinstance(row, dict)}
    columns = list(dict.fromkeys(column for row in tables.values() for column in row))
    lines = []
    single = {name: value for name, value in found.items() if name not in tables}
    if single:
        lines += ["| | |", "| --- | --- |"]
        lines += [f"| {name} | {_words(value)} |" for name, value in single.items()]
    if tables:
        lines += [""] if single else []
        lines += [
            "| | " + " | ".join(columns) + " |",
            "| --- | " + " | ".join("---" for _ in columns) + " |",
        ]
        lines += [
            f"| {name} | " + " | ".join(_words(row.get(column)) for column in columns) + " |"
            for name, row in tables.items()
        ]
    return lines


def _words(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_words(item) for item in value)
    return str(value)
