"""The fault matrix: every row is played against a real control plane and a real S3 server.

    python -m tests.faults [--only PATTERN] [--again] [--full] [--at-once 2] [--list]

Verdicts are kept in a file and the table is written from it, so that a run can be ended and resumed:
rows that held are not played again unless asked for. Of rows without a verdict the table keeps what it says.
"""

import argparse
import fnmatch
import itertools
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.fixture import RUN_ENDED, RunEnded
from tests.faults.harness import Harness, own_harness
from tests.faults.kills import (
    BATCH,
    EXHAUSTIVE,
    JUDGE_KILLED,
    SEARCH,
    Killed,
    play_kills,
    was_killed,
)
from tests.faults.matrix import all_rows
from tests.faults.rows import REFERENCES, Row, play_row, undisturbed
from tests.faults.table import TABLE, Results, write_table
from tests.faults.verdict import Verdict

RESULTS = Path(".faults") / "results.json"
KILLED = (EXHAUSTIVE, SEARCH, JUDGE_KILLED)
MOST_WRITES = 1000
"""More than any sweep here makes."""


def report(results: Results, verdict: Verdict) -> None:
    """Keep a verdict and show it."""
    results.keep(verdict)
    state = "held" if verdict.held else "FAILED"
    message = f"; said {', '.join(verdict.said)}" if verdict.said else ""
    print(f"{state:6} {verdict.row} ({verdict.seconds:.0f} s{message})", flush=True)
    for problem in verdict.problems:
        print(f"       {problem}", flush=True)


def play_all(harness: Harness, rows: list[Row], results: Results, at_once: int) -> None:
    """Play rows, a few at a time."""
    references = results.references

    def play(row: Row) -> None:
        if row.skip:
            results.skip(row.name, row.skip)
            print(f"skip   {row.name}: {row.skip}", flush=True)
            return
        if RUN_ENDED.is_set():
            return
        try:
            report(results, play_row(harness, row, references[row.reference]))
        except RunEnded:
            return
        except Exception as error:  # noqa: BLE001 (one row must not end the others)
            report(results, _harness_failed(row.name, error))

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(play, rows))


def _harness_failed(row: str, error: Exception) -> Verdict:
    problem = f"the harness failed: {type(error).__name__}: {error}"[:600]
    return Verdict(row, problems=(problem,), converged=False)


def find_references(harness: Harness, names: Iterable[str], results: Results) -> None:
    """Play the sweeps that others are compared with."""
    for name in sorted(names):
        reference = undisturbed(harness, **REFERENCES[name])
        results.keep_reference(name, reference)
        counted = f"{len(reference.points)} points, {reference.writes} writes"
        print(f"undisturbed {name}: {counted}", flush=True)


def play_every_kill(
    harness: Harness, killed: Killed, wanted: str, results: Results, again: bool
) -> None:
    """Batches of kills, until all sweeps of one had ended before their kill."""
    reference = results.references[killed.reference]
    for first in itertools.count(1, BATCH):
        numbers = range(first, first + BATCH)
        chosen = [n for n in numbers if _is_wanted(killed.row(n), wanted, results, again)]
        try:
            verdicts = play_kills(harness, chosen, reference, killed) if chosen else []
        except RunEnded:
            return
        except Exception as error:  # noqa: BLE001 (one batch must not end the others)
            verdicts = [_harness_failed(killed.row(n), error) for n in chosen]
        for verdict in verdicts:
            # One that ended before its kill shows nothing.
            if was_killed(verdict) or not verdict.held:
                report(results, verdict)
        if first > reference.writes and not any(was_killed(v) for v in verdicts):
            return


def _is_wanted(name: str, pattern: str, results: Results, again: bool) -> bool:
    if pattern and not any(fnmatch.fnmatch(name, each) for each in pattern.split(",")):
        return False
    return again or not results.has_held(name)


def main() -> int:
    """Play what was asked for and write the table; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--only", default="", help="names, with wildcards: store/*,kill/after-0*")
    parser.add_argument("--again", action="store_true", help="also rows that have held before")
    parser.add_argument(
        "--full", action="store_true", help="outages of the store as long as named"
    )
    parser.add_argument("--at-once", type=int, default=2, help="rows played at the same time")
    parser.add_argument("--patience", type=float, default=1, help="factor on all time limits")
    parser.add_argument("--list", action="store_true", help="only show the rows")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: RUN_ENDED.set())
    signal.signal(signal.SIGINT, lambda *_: RUN_ENDED.set())
    results = Results(RESULTS)
    rows = all_rows(full=options.full)
    if options.list:
        print("\n".join(f"{row.name:32} {row.does}" for row in rows))
        return 0
    rows = [row for row in rows if _is_wanted(row.name, options.only, results, options.again)]
    # Small groups first: a run that is ended early has then seen most kinds of faults.
    sizes = Counter(row.group for row in rows)
    rows.sort(key=lambda row: sizes[row.group])
    asked = (options.only, results, options.again)
    killed = [
        k for k in KILLED if any(_is_wanted(k.row(n), *asked) for n in range(1, MOST_WRITES))
    ]
    with own_harness() as harness:
        harness.patience = options.patience
        find_references(harness, {each.reference for each in (*rows, *killed)}, results)

        def play_kills_in_turn() -> None:
            for each in killed:
                play_every_kill(harness, each, *asked)

        with ThreadPoolExecutor(1) as pool:
            kills = pool.submit(play_kills_in_turn)
            play_all(harness, rows, results, options.at_once)
            kills.result()
    write_table(results, all_rows(full=options.full))
    failed = results.failed()
    print(f"{TABLE}: {len(results.verdicts) - len(failed)} rows held, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
