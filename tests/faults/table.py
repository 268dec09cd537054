"""The verdicts of a matrix, kept in a file, and the table in the documentation made from them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.rows import Row
from tests.faults.verdict import Reference, Verdict

KILL = re.compile(r"after-\d+$")
"""How the name of a kill after so many writes ends."""
TABLE = Path("docs/reference/faults.md")
Json = dict[str, Any]
GROUPS = {
    "kill": "The operator is killed",
    "search": "A sequential search",
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
HEAD = """# Faults

Written by `make faults`, which plays each row against a real API server with its controllers and a real S3
server: the operator is its real process, with the chart's rights, behind two proxies that count its calls and
make them fail; a player ends its pods with real records in the store. Each row has a sweep of {points} points of
its own, `parallelism: 4`, which an undisturbed operator ends with {writes} writes; the kills after the N-th write
have one of {wide_points} points, `parallelism: 6`, and {wide_writes} writes; those of a sequential search have one of six
points whose optimum lies beyond the grid, and {searched_writes} writes. Sweeps of several kills share an operator:
the proxies hold what each would write after its N-th, until all have got there and it is killed.

A row holds if no point is lost, no token is trained twice, there are never more at work than allowed, nothing is
charged to a point that is not its fault, and ledger and laws end as those of an undisturbed run. *Seen* are the
reasons that a person sees in the sweep's conditions and Warning events meanwhile, beside those of an undisturbed
sweep.

{summary}
"""


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
        self.seconds: float = kept.get("seconds", 0.0)

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

    def add_time(self, seconds: float) -> None:
        """Time that a run took, of those that the table is made of."""
        self.seconds += seconds
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
            "seconds": self.seconds,
        }
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1))
        partial.rename(self._path)


def _verdict(document: Json) -> Verdict:
    lists = {name: tuple(document[name]) for name in ("said", "problems", "notes")}
    return Verdict(**{**document, **lists})


def write_table(results: Results, rows: Sequence[Row]) -> None:
    """Write the page."""
    TABLE.write_text(page(results, rows))


def page(results: Results, rows: Sequence[Row]) -> str:
    """The page: a table for each group."""
    reference = results.references.get("rows", Reference({}, {}))
    killed = results.references.get("kills", Reference({}, {}))
    verdicts = [each for each in results.verdicts.values() if each.row not in results.skipped]
    failed = sum(not each.held for each in verdicts)
    summary = (
        f"{len(verdicts)} rows were played, in {results.seconds / 60:.0f} minutes: "
        f"{len(verdicts) - failed} held, {failed} failed."
    )
    searched = results.references.get("searches", Reference({}, {}))
    text = HEAD.format(
        points=len(reference.points),
        writes=reference.writes,
        wide_points=len(killed.points),
        wide_writes=killed.writes,
        searched_writes=searched.writes,
        summary=summary,
    )
    words = {row.name: row.does for row in rows}
    for group, title in GROUPS.items():
        text += _section(title, group, results, words)
    return text


def _section(title: str, group: str, results: Results, words: dict[str, str]) -> str:
    names = [name for name in results.verdicts if name.partition("/")[0] == group]
    names += [name for name in results.skipped if name.partition("/")[0] == group]
    if not names:
        return ""
    text = f"\n## {title}\n\n| row | what happens | lost | again | most | holds | seen |\n|---|---|---|---|---|---|---|\n"
    kills = sorted(name for name in names if KILL.search(name))
    if kills:
        text += _kills_line([results.verdicts[name] for name in kills])
    order = {name: number for number, name in enumerate(words)}
    rest = sorted({*names} - {*kills}, key=lambda name: order.get(name, len(order)))
    for name in rest:
        if name in results.skipped:
            text += f"| `{name}` | {words.get(name, '')} | | | | not played: {results.skipped[name]} | |\n"
        else:
            text += _line(results.verdicts[name], words.get(name, ""))
    for name in kills:
        if not results.verdicts[name].held:
            text += _line(results.verdicts[name], "; ".join(results.verdicts[name].notes))
    return text


def _kills_line(verdicts: list[Verdict]) -> str:
    """The kills that held, as one line: there are more than a hundred."""
    held = [verdict for verdict in verdicts if verdict.held]
    numbers = f"{len(held)} of {len(verdicts)}"
    rows = KILL.sub("after-N", verdicts[0].row)
    return (
        f"| `{rows}` | SIGKILL after the N-th write, for every N to {len(verdicts)} "
        f"| {sum(v.lost for v in verdicts)} | {sum(v.retrained for v in verdicts)} "
        f"| {max(v.most for v in verdicts)} | {numbers} | {_seen(verdicts)} |\n"
    )


def _line(verdict: Verdict, words: str) -> str:
    holds = "yes" if verdict.held else f"**no**: {_cell('; '.join(verdict.problems))}"
    return (
        f"| `{verdict.row}` | {_cell(words)} | {verdict.lost} | {verdict.retrained} "
        f"| {verdict.most} | {holds} | {_seen([verdict])} |\n"
    )


def _seen(verdicts: list[Verdict]) -> str:
    reasons = dict.fromkeys(reason for verdict in verdicts for reason in verdict.said)
    return ", ".join(f"`{reason}`" for reason in reasons) or "–"


def _cell(text: str) -> str:
    """As part of a table; what differs between runs of the same row is left out."""
    return (
        re.sub(r"-[0-9a-f]{6}-[a-z0-9-]+", "-…", text).replace("|", "/").replace("\n", " ")[:400]
    )
