"""Runs the checks one after the other, each in a process of its own, and writes what they found.

    python -m benchmarks.gpu_check [--folder FOLDER] [--only NAME]... [--again] [--budget SECONDS] [--toy]

No network is needed; docs/guides/gpu-check.md says which packages are. A check that is done is not
repeated by the next call, so that the command may be run for as long as a machine is at hand, over and
over: each check is stopped after SECONDS_PER_CHECK, and --budget stops the whole command. What it stops
begins again with the next call. results.json holds everything, results.md the same as tables. --toy, the
default without a GPU, runs every check at toy size: that shows that they work, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.packages import advice, missing

SECONDS_PER_CHECK = 590
SECONDS_WORTH_STARTING = 30
FOLDER, TOY_FOLDER = Path(".bench/gpu-check"), Path(".bench/gpu-check-toy")
END_OF_LOG = 1500
"""Characters of a failed check's log that the results keep."""

Entry = dict[str, Any]
Runner = Callable[[str, float], Entry | None]
"""Runs the named check for so many seconds at most; None where the time is over."""


def main(arguments: list[str] | None = None) -> int:
    """Run what is not done; returns 1 while a check has failed or is left."""
    options = _parse(arguments)
    lacking = missing()
    if lacking:
        print(advice(lacking), file=sys.stderr)
        return 2
    import torch

    from benchmarks.bench_trainer import machine
    from benchmarks.gpu_check.checks import CHECKS, run_check

    names = list(dict.fromkeys(options.only or CHECKS))
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(
            f"no check is called {unknown[0]!r}; there are: {', '.join(CHECKS)}", file=sys.stderr
        )
        return 2
    toy = options.toy or not torch.cuda.is_available()
    folder = options.folder or (TOY_FOLDER if toy else FOLDER)
    if options.child:
        _answer(folder, names[0]).write_text(json.dumps(run_check(names[0], folder, toy=toy)))
        return 0
    try:
        results = Results(folder, {"machine": machine(), "toy": toy})
    except OtherMachine as error:
        print(error, file=sys.stderr)
        return 2
    left = results.left(names, again=options.again)
    run_all(results, left, options.budget, lambda name, s: in_own_process(name, folder, toy, s))
    print(results.page.read_text())
    return int(bool(results.left(list(CHECKS) if not options.only else names, again=False)))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description="What only a GPU can show.")
    parser.add_argument("--folder", type=Path, help=f"of the results; {FOLDER} or {TOY_FOLDER}")
    parser.add_argument("--only", action="append", help="a check; may be given several times")
    parser.add_argument("--again", action="store_true", help="repeat what is done")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for this call")
    parser.add_argument("--toy", action="store_true", help="toy size also on a GPU")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.budget < SECONDS_WORTH_STARTING:
        parser.error(f"--budget must be {SECONDS_WORTH_STARTING} seconds or more")
    if options.folder is not None and options.folder.exists() and not options.folder.is_dir():
        parser.error(f"--folder {options.folder} is a file")
    return options


class OtherMachine(Exception):
    """The folder holds results of another machine or another size."""


class Results:
    """What was found so far, in a folder; written after every check."""

    def __init__(self, folder: Path, of: Mapping[str, Any]) -> None:
        """Raises OtherMachine where the folder's results are not `of` the same."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self.page = folder / "results.json", folder / "results.md"
        self._of, self.entries = dict(of), dict[str, Entry]()
        if self._file.exists():
            known = json.loads(self._file.read_text())
            if known["of"] != self._of:
                message = (
                    f"{self._file} is of {known['of']}, this is {self._of}: name another --folder"
                )
                raise OtherMachine(message)
            self.entries = known["checks"]
        self._write()

    def left(self, names: list[str], *, again: bool) -> list[str]:
        """Those of `names` that are to be run."""
        return [n for n in names if again or self.entries.get(n, {}).get("status") != "done"]

    def add(self, name: str, entry: Entry) -> None:
        """Keep what a check found."""
        self.entries[name] = entry
        self._write()

    def _write(self) -> None:
        text = json.dumps({"of": self._of, "checks": self.entries}, indent=2) + "\n"
        self._file.write_text(text)
        self.page.write_text(as_markdown(self._of, self.entries))


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


def run_all(results: Results, names: list[str], budget: float, run: Runner) -> None:
    """Run the checks `names` and keep what they find, for `budget` seconds."""
    end = time.monotonic() + budget
    for number, name in enumerate(names, 1):
        seconds = min(SECONDS_PER_CHECK, end - time.monotonic())
        if seconds < SECONDS_WORTH_STARTING:
            print(f"==> out of time before {name}; the next call goes on from there", flush=True)
            return
        print(f"==> {name} ({number} of {len(names)})", flush=True)
        entry = run(name, seconds)
        if entry is None:
            print(f"    stopped after {seconds:.0f} s; the next call begins it again", flush=True)
            return
        print(f"    {entry['status']} in {entry['seconds']} s", flush=True)
        results.add(name, entry)


def in_own_process(name: str, folder: Path, toy: bool, seconds: float) -> Entry | None:
    """One check in a process of its own: one that breaks the device breaks no other."""
    _answer(folder, name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--child", "--only", name]
    command += ["--folder", str(folder), *(["--toy"] if toy else [])]
    log, started = folder / f"{name}.log", time.monotonic()
    code = _run_for(command, log, _environment(folder), seconds)
    if code is None and seconds < SECONDS_PER_CHECK:
        return None
    entry: Entry = {"seconds": round(time.monotonic() - started, 1)}
    if code == 0:
        return {"status": "done", **entry, "found": json.loads(_answer(folder, name).read_text())}
    words = f"stopped after {seconds:.0f} s" if code is None else f"exit code {code}"
    end = log.read_text(errors="replace").strip()[-END_OF_LOG:]
    return {"status": "failed", **entry, "reason": words, "end_of_log": end}


def _run_for(
    command: list[str], log: Path, environment: dict[str, str], seconds: float
) -> int | None:
    """The exit code; None where it took longer and was killed, with all processes that it started."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(folder: Path) -> dict[str, str]:
    """Compiled code is kept beside the results: what was stopped is faster the second time."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": str((folder / "compiled").absolute()),
    }


def _answer(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


if __name__ == "__main__":
    sys.exit(main())
