"""`make test`: the tests that wait for a cluster beside those that compute.

A cluster's test leaves the processor alone most of the time, so several run at once, and what they leave is for
the others, which give way to them. The two sessions share out the test files: what WAITING does not name computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

PROJECT = Path(__file__).parents[1]
WAITING = (
    "tests/faults",
    "tests/e2e",
    "tests/isoloss_operator/test_*.py",
    "tests/gitops",
    "tests/hostile",
    "tests/controllers",
    "tests/monitoring",
    "tests/docs/test_demo_page.py",
    "tests/devcluster",
    "tests/deploy",
    "tests/isoloss_operator/cluster",
    "tests/isoloss_operator/process",
    "tests/isoloss_operator/store",
    "tests/isoloss_contract",
    "tests/images",
)
"""Folders and files with tests that need the control plane or wait for something else; the longest come first."""
COMPUTING = ("tests/isoloss", "tests/[!i]*/", "tests/test_*.py", "tests/i*/")
"""Those of all others. The trainer's come last: several of its processes meet within limits of time, and once the tests
that wait are over they have the machine for themselves."""
WAITING_WORKERS = 4
NICENESS = 10
SHOWN_CHARACTERS = 500
PYTEST = (
    *(sys.executable, "-m", "pytest", "-m", "not whole"),
    *("--durations=40", "--durations-min=5"),
)


def main() -> int:
    """Run all but what `make test-whole` has; the exit code of the first session that failed, or 0."""
    waiting = paths(WAITING)
    computing = ["--no-loadscope-reorder", *(f"--ignore={path}" for path in waiting)]
    computing += [path for path in paths(COMPUTING) if path not in waiting]
    # One more than cores: some of them wait for processes of their own.
    workers = max(2, len(os.sched_getaffinity(0))) + 1
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        reports = [Path(folder, "waiting.xml"), Path(folder, "computing.xml")]
        beside = subprocess.Popen(
            # The tests of a file share fits, figures and models that take seconds to make.
            session(workers, "loadfile", reports[1], computing),
            cwd=PROJECT,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: os.nice(NICENESS),
        )
        try:
            code = subprocess.call(
                session(WAITING_WORKERS, "loadgroup", reports[0], waiting), cwd=PROJECT
            )
            print("==> The tests that compute", flush=True)
        finally:
            # At Ctrl-C, which reaches all of them, for its summary.
            other = beside.wait()
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
            for line in failures(reports):
                print(line, flush=True)
    return code or other


def paths(names: Iterable[str]) -> list[str]:
    """What there is of these names, each once, in their order."""
    found = (
        str(path.relative_to(PROJECT)) for name in names for path in sorted(PROJECT.glob(name))
    )
    return list(dict.fromkeys(found))


def session(workers: int, distribution: str, report: Path, tests: Iterable[str]) -> list[str]:
    """The command of one of them; `distribution` is pytest-xdist's --dist."""
    spread = ("-n", str(workers), f"--dist={distribution}")
    return [*PYTEST, *spread, f"--junit-xml={report}", *tests]


def failures(reports: Iterable[Path]) -> list[str]:
    """What failed in the sessions, a line each: the end of a long log is often all that is kept of it."""
    return [
        f"FAILED {case.get('classname')}::{case.get('name')}: {problem.get('message', '')[:SHOWN_CHARACTERS]!r}"
        for report in reports
        if report.exists()
        for case in ElementTree.parse(report).iter("testcase")
        for problem in (*case.iter("failure"), *case.iter("error"))
    ]


if __name__ == "__main__":
    sys.exit(main())
