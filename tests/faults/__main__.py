"""The fault matrix: every row is played against a real control plane and a real S3 server.

    python -m tests.faults [--only PATTERN] [--again] [--full] [--at-once 2] [--list]

Verdicts are kept in a file and the table is written from it, so that a run can be ended and resumed:
rows that held are not played again unless asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devcluster.cluster import DevCluster
from tests.faults.kills import BATCH, kill_name, play_kills
from tests.faults.matrix import all_rows
from tests.faults.rows import Row, play_row, undisturbed
from tests.faults.stage import Stage
from tests.faults.table import TABLE, Results, write_table
from tests.faults.verdict import Verdict

RESULTS = Path(".faults") / "results.json"


@contextlib.contextmanager
def own_stage() -> Iterator[Stage]:
    """A control plane without scheduler, an S3 server and a player, for this run alone."""
    folder = Path(tempfile.mkdtemp(prefix="isoloss-faults-"))
    cluster = DevCluster(folder / "cluster")
    folder.chmod(0o700)
    try:
        # Even a killed run leaves nothing behind.
        cluster.directory.mkdir()
        cluster.stop_with(os.getpid(), remove=True)
        cluster.start()
        # The player binds its pods itself.
        cluster.control_plane.component("kube-scheduler").stop()
        stage = Stage(folder / "stage", cluster.control_plane, cluster.object_storage)
        try:
            yield stage
        finally:
            stage.end()
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def report(results: Results, verdict: Verdict) -> None:
    """Keep a verdict and show it."""
    results.keep(verdict)
    state = "held" if verdict.held else "FAILED"
    said = f"; said {', '.join(verdict.said)}" if verdict.said else ""
    print(f"{state:6} {verdict.row} ({verdict.seconds:.0f} s{said})", flush=True)
    for problem in verdict.problems:
        print(f"       {problem}", flush=True)


def play_all(stage: Stage, rows: list[Row], results: Results, at_once: int) -> None:
    """Play rows, a few at a time."""
    reference = results.reference
    assert reference is not None

    def play(row: Row) -> None:
        if row.skip:
            results.skip(row.name, row.skip)
            print(f"skip   {row.name}: {row.skip}", flush=True)
            return
        try:
            report(results, play_row(stage, row, reference))
        except Exception as error:  # noqa: BLE001 (one row must not end the others)
            report(results, _harness_failed(row.name, error))

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(play, rows))


def _harness_failed(row: str, error: Exception) -> Verdict:
    problem = f"the harness failed: {type(error).__name__}: {error}"[:600]
    return Verdict(row, problems=(problem,), converged=False)


def find_reference(stage: Stage, results: Results) -> None:
    """Play the sweep that all others are compared with."""
    reference = undisturbed(stage)
    results.keep_reference(reference)
    print(f"undisturbed: {reference.writes} writes, {len(reference.points)} points", flush=True)


def play_every_kill(stage: Stage, wanted: str, results: Results, again: bool) -> None:
    """Batches of kills, until past the last write of an undisturbed sweep."""
    reference = results.reference
    assert reference is not None
    first = 1
    while True:
        numbers = range(first, first + BATCH)
        first += BATCH
        chosen = [n for n in numbers if _is_wanted(kill_name(n), wanted, results, again)]
        if chosen:
            try:
                verdicts = play_kills(stage, chosen, reference)
            except Exception as error:  # noqa: BLE001 (one batch must not end the others)
                verdicts = [_harness_failed(kill_name(n), error) for n in chosen]
            for verdict in verdicts:
                report(results, verdict)
        if first > reference.writes + BATCH:
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
    parser.add_argument("--list", action="store_true", help="only show the rows")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `finally` is reached
    results = Results(RESULTS)
    rows = all_rows(full=options.full)
    if options.list:
        print("\n".join(f"{row.name:32} {row.does}" for row in rows))
        return 0
    rows = [row for row in rows if _is_wanted(row.name, options.only, results, options.again)]
    began = time.monotonic()
    with own_stage() as stage:
        find_reference(stage, results)
        with ThreadPoolExecutor(2) as pool:
            kills = pool.submit(play_every_kill, stage, options.only, results, options.again)
            play_all(stage, rows, results, options.at_once)
            kills.result()
    results.add_time(time.monotonic() - began)
    write_table(results, all_rows(full=options.full))
    failed = results.failed()
    print(f"{TABLE}: {len(results.verdicts) - len(failed)} rows held, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
