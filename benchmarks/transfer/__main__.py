"""Trains continued runs and runs from scratch, many at once, and says what they want beside the laws.

    python -m benchmarks.transfer --device cuda --minutes 12     # texts.py says how the text is made
    python -m benchmarks.transfer --dry-run --device cuda        # parts, what is done, what the rest costs
    python -m benchmarks.transfer --check --device cuda --sizes 3M   # whether it agrees with a CPU, and its speed
    python -m benchmarks.transfer --read FILE...                 # tables of results, also of several machines

A second call goes on where the first one ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.transfer.costs import FLOPS_PER_SECOND, cost_table
from benchmarks.transfer.design import SIZES
from benchmarks.transfer.devices import check
from benchmarks.transfer.figure import draw
from benchmarks.transfer.reading import cases, tables
from benchmarks.transfer.training import Stopped, Study, read_results


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".bench/transfer"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=150.0)
    parser.add_argument(
        "--sizes", nargs="+", choices=tuple(SIZES), default=(), help="in this order"
    )
    parser.add_argument(
        "--origins", nargs="+", metavar="NAME", default=(), help="only these, as scratch or far-5"
    )
    parser.add_argument("--read", nargs="+", type=Path, metavar="FILE", help="train nothing")
    parser.add_argument("--figure", type=Path, help="with --read: draw it there")
    parser.add_argument("--dry-run", action="store_true", help="train nothing")
    parser.add_argument("--flops-per-second", type=float, help="for --dry-run, over all runs")
    parser.add_argument("--check", action="store_true", help="agreement and speed of the device")
    options = parser.parse_args()
    if options.dry_run or options.read:
        own = options.folder / "results.jsonl"
        results = read_results(options.read or ([own] if own.exists() else []))
        speed = options.flops_per_second or FLOPS_PER_SECOND[options.device]
        lines = (
            cost_table(results, options.device, speed, options.sizes)
            if options.dry_run
            else tables(results)
        )
        print("\n".join(lines))
        if options.figure:
            draw(cases(results), options.figure)
        return 0
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")  # of the head, which alone is float32
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call] # recording needs another than the default one
    started, stopped = time.monotonic(), []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(True))

    def stop() -> bool:
        return bool(stopped) or time.monotonic() - started > 60 * options.minutes

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s: {line}", flush=True)

    if options.check:
        check(options.device, options.sizes, say)
        return 0
    study = Study(options.folder, options.device, stop, say)
    try:
        study.train(options.sizes, options.origins)
        say("all is trained")
    except Stopped:
        say("stopped; the same command goes on from here")
    print("\n".join(tables(study.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
