"""The verdicts of a matrix, kept in a file, and the table in the documentation made from them."""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.rows import Row
from tests.faults.verdict import Reference, Verdict

KILL = re.compile(r"after-\d+$")
"""How the name of a kill after so many writes ends."""
KILLS = re.compile(r"after-N$")
COUNTED = re.compile(r"(\d+) of \d+$")
TABLE = Path("docs/reference/faults.md")
Json = dict[str, Any]
GROUPS = {
    "kill": "The operator is killed",
    "search": "A sequential search",
    "judge": "A sweep around an answer",
    "api": "The API server",
    "store": "The store",
    "job": "Jobs and pods",
    "node": "Nodes",
    "namespace": "Namespaces",
    "two": "Two operators",
    "clock": "Clocks",
    "version": "Other versions' files",
    "disk": "Disks",
}
HEAD = """# Fault matrix

Written by `make faults`, which injects each fault into a run against a real API server and a real S3 server. The
operator is its real process with the chart's rights, behind two proxies that count its calls and make them fail; a
simulator ends its pods with real records in the store.

Most rows have a sweep of 12 points and `parallelism: 4`. Kills after the N-th write have 18 points and
`parallelism: 6`, a search has four to six points with its optimum beyond the grid, and a sweep around an answer five
points, the 18 of the laws and the prediction that it judges.

A row holds if no point is lost, no token is trained twice, no more Jobs run than allowed, and no point is charged for
what is not its fault. Ledger, laws and answer must end as in an undisturbed run. Faults of API calls happen 12 times,
those of the store last 15 s (unwritable objects 45 s).

*Lost* are points that ended differently from that run, *again* trainings that repeated tokens without need. *Most* is
the largest number of points of one owner at work at once. *Seen* are the additional reasons of conditions and Warning
events. Rows not played again keep their line and date (UTC).

{summary}
"""
HEADER = "|row|what happens|lost/again/most|holds|seen|played|"
COLUMNS = HEADER.count("|") - 1
ROW = re.compile(r"^\|`(\S+)`\|")
"""A line of the page, and its row's name."""


class Results:
    """Verdicts by row; thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        kept: Json = json.loads(path.read_text()) if path.exists() else {}
        found = [_verdict(each) for each in kept.get("verdicts", ())]
        self.verdicts = {verdict.row: verdict for verdict in found}
        self.skipped: dict[str, str] = kept.get("skipped", {})
        self.references = {
            name: Reference(**each) for name, each in kept.get("references", {}).items()
        }

    def keep(self, verdict: Verdict) -> None:
        """Add a verdict, or replace the row's last."""
        with self._lock:
            self.verdicts[verdict.row] = verdict
            self._write()

    def skip(self, row: str, why: str) -> None:
        """Note that a row could not be played."""
        with self._lock:
            self.skipped[row] = why
            self._write()

    def keep_reference(self, name: str, reference: Reference) -> None:
        """What the rows, or the kills, are compared with."""
        self.references[name] = reference
        self._write()

    def has_held(self, row: str) -> bool:
        """Whether the row need not be played again."""
        return row in self.verdicts and self.verdicts[row].held

    def failed(self) -> list[str]:
        """Names of the rows that did not hold."""
        return [row for row, verdict in self.verdicts.items() if not verdict.held]

    def _write(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        document = {
            "verdicts": [verdict.document() for verdict in self.verdicts.values()],
            "skipped": self.skipped,
            "references": {name: asdict(each) for name, each in self.references.items()},
        }
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1))
        partial.rename(self._path)


def _verdict(document: Json) -> Verdict:
    lists = {name: tuple(document[name]) for name in ("said", "problems", "notes")}
    return Verdict(**{**document, **lists})


def write_table(results: Results, rows: Sequence[Row]) -> None:
    """Write the page; rows that were not played keep what it says of them."""
    TABLE.write_text(page(results, rows, TABLE.read_text() if TABLE.exists() else ""))


def page(results: Results, rows: Sequence[Row], former: str = "") -> str:
    """The page: a table for each group; of rows that were not played the lines of a former page."""
    lines = {**_lines_of(former), **_lines(results, {row.name: row.does for row in rows})}
    order = {row.name: number for number, row in enumerate(rows)}
    text = HEAD.format(summary=_summary(lines))
    for group, title in GROUPS.items():
        names = [name for name in lines if name.partition("/")[0] == group]
        if names:
            names.sort(key=lambda name: (not KILLS.search(name), order.get(name, len(order))))
            text += f"\n## {title}\n\n{HEADER}\n{'|---' * COLUMNS}|\n"
            text += "".join(f"{lines[name]}\n" for name in names)
    return text


def _summary(lines: Mapping[str, str]) -> str:
    """How many rows held; a line of kills stands for as many as it says."""
    held = failed = 0
    for line in lines.values():
        holds = re.split(r"(?<!\\)\|", line)[COLUMNS - 2]
        if found := COUNTED.match(holds):
            held += int(found[1])
            # Those that failed have lines of their own.
        elif not holds.startswith("not played"):
            held += holds == "yes"
            failed += holds != "yes"
    return f"{held + failed} rows: {held} held, {failed} failed."


def _lines_of(page: str) -> dict[str, str]:
    """The lines of a page, by row."""
    return {found[1]: line for line in page.splitlines() if (found := ROW.match(line))}


def _lines(results: Results, words: Mapping[str, str]) -> dict[str, str]:
    """The lines of what was played."""
    lines, kills = {}, defaultdict[str, list[Verdict]](list)
    for name, verdict in results.verdicts.items():
        if KILL.search(name):
            kills[KILL.sub("after-N", name)].append(verdict)
        if not KILL.search(name) or not verdict.held:
            lines[name] = _line(verdict, words.get(name) or "; ".join(verdict.notes))
    for name, why in results.skipped.items():
        lines[name] = _row(name, words.get(name, ""), "", f"not played: {why}", "", "")
    return {**lines, **{name: _kills_line(name, found) for name, found in kills.items()}}


def _kills_line(name: str, verdicts: Sequence[Verdict]) -> str:
    """The kills that held, as one line: there are more than a hundred."""
    held = [verdict for verdict in verdicts if verdict.held]
    numbers = sorted(int(verdict.row.rpartition("-")[2]) for verdict in verdicts)
    is_all = numbers == list(range(1, len(numbers) + 1))
    which = f"every N to {len(numbers)}" if is_all else f"{len(numbers)} N to {numbers[-1]}"
    return _row(
        name,
        f"SIGKILL after the N-th write, for {which}",
        _counts(
            sum(v.lost for v in verdicts),
            sum(v.retrained for v in verdicts),
            max(v.most for v in verdicts),
        ),
        f"{len(held)} of {len(verdicts)}",
        _seen(verdicts),
        _date(max(v.played for v in verdicts)),
    )


def _line(verdict: Verdict, words: str) -> str:
    holds = "yes" if verdict.held else f"**no**: {_cell('; '.join(verdict.problems))}"
    counted = _counts(verdict.lost, verdict.retrained, verdict.most)
    return _row(verdict.row, _cell(words), counted, holds, _seen([verdict]), _date(verdict.played))


def _counts(lost: int, again: int, most: int) -> str:
    return f"{lost}/{again}/{most}"


def _date(played: str) -> str:
    """Without the time of the day."""
    return played.partition(" ")[0]


def _row(name: str, *cells: object) -> str:
    return f"|`{name}`|{'|'.join(str(cell) for cell in cells)}|"


def _seen(verdicts: Sequence[Verdict]) -> str:
    """Reasons of conditions and events, each once."""
    message = (reason for verdict in verdicts for reason in verdict.said)
    reasons = dict.fromkeys(reason.removesuffix(" (event)") for reason in message)
    return ", ".join(f"`{reason}`" for reason in reasons) or "–"


def _cell(text: str) -> str:
    """As part of a table; what differs between runs of the same row is left out."""
    return (
        re.sub(r"-[0-9a-f]{6}-[a-z0-9-]+", "-…", text).replace("|", "/").replace("\n", " ")[:400]
    )
