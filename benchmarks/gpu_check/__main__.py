"""Runs the checks one after the other, each in a process of its own, and writes what they found.

    python -m benchmarks.gpu_check [--folder .bench/gpu-check] [--only speed] [--again] [--toy]

No network and no installation are needed beyond torch, transformers and the small packages of
pyproject.toml's trainer extra. A check that is done is not repeated by the next call, so that the command
may be run for as long as a machine is at hand, over and over: each check takes less than SECONDS and is
stopped otherwise. results.json holds everything, results.md the same as a table. --toy, the default
without a GPU, runs every check at toy size: that shows that they work, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.table import as_markdown

SECONDS = 590
DEFAULT = Path(".bench/gpu-check")


def main(arguments: list[str] | None = None) -> int:
    """Run what is not done; returns 1 where a check failed."""
    from benchmarks.gpu_check.checks import CHECKS, has_gpu, run_check

    options = _parse(arguments, list(CHECKS))
    toy = options.toy or not has_gpu()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.one:
        found = run_check(options.one, options.folder, toy=toy)
        _answer(options.folder, options.one).write_text(json.dumps(found))
        return 0
    results = options.folder / "results.json"
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    for name in options.only or CHECKS:
        if options.again or known.get(name, {}).get("status") != "done":
            known[name] = _run(name, options.folder, toy=toy)
            results.write_text(json.dumps(known, indent=2) + "\n")
            (options.folder / "results.md").write_text(as_markdown(known))
    print((options.folder / "results.md").read_text())
    return int(any(entry["status"] != "done" for entry in known.values()))


def _parse(arguments: list[str] | None, names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT)
    parser.add_argument("--only", choices=names, action="append")
    parser.add_argument("--again", action="store_true", help="repeat what is done")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--one", choices=names, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _answer(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _run(name: str, folder: Path, *, toy: bool) -> dict[str, Any]:
    """One check in a process of its own: one that breaks the device breaks no other."""
    print(f"==> {name}", flush=True)
    _answer(folder, name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--one", name]
    command += ["--folder", str(folder), *(["--toy"] if toy else [])]
    log, started = folder / f"{name}.log", time.monotonic()
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    entry: dict[str, Any] = {"seconds": round(time.monotonic() - started, 1), "toy": toy}
    if code == 0 and _answer(folder, name).exists():
        return {"status": "done", **entry, "found": json.loads(_answer(folder, name).read_text())}
    words = "took too long" if code is None else f"exit code {code}"
    end = log.read_text(errors="replace").strip()[-1500:]
    return {"status": "failed", **entry, "reason": words, "end_of_log": end}


if __name__ == "__main__":
    sys.exit(main())
