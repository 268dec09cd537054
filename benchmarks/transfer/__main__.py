"""Measures continued runs against the laws' answers and prints the table.

    python -m benchmarks.transfer [--brief] [--folder .bench/transfer] [--markdown FILE]

Everything is trained with the trainer, one run after another on one core, and saved in the folder: a
second call continues where the first one ended.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.transfer.design import BRIEF, FULL
from benchmarks.transfer.measuring import Say, measure
from benchmarks.transfer.table import tables
from benchmarks.transfer.texts import provide_texts
from benchmarks.transfer.training import Workshop
from isoloss_contract.records import ExitCode
from isoloss_trainer.termination import Interrupted, Interruption


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".bench/transfer"))
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    parser.add_argument("--brief", action="store_true", help="fewer checkpoints, shorter runs")
    options = parser.parse_args()

    def found(interruption: Interruption, say: Say) -> Iterator[str]:
        corpus = provide_texts(options.folder / "texts")
        design = BRIEF if options.brief else FULL
        workshop = Workshop(design, options.folder, corpus, interruption)
        say("texts ready")
        return tables(measure(workshop, say))

    return conduct(options, found)


def conduct(given: Namespace, tables: Callable[[Interruption, Say], Iterable[str]]) -> int:
    """Train in this process by one thread and print the tables; the exit code."""
    torch.set_num_threads(1)
    started, cpu = time.monotonic(), time.process_time()

    def say(line: str) -> None:
        passed = time.monotonic() - started
        print(
            f"{passed:6.0f} s, {time.process_time() - cpu:6.0f} s of CPU here: {line}", flush=True
        )

    try:
        text = "\n".join(tables(Interruption().listen(), say))
    except Interrupted:
        say("stopped; the same command continues from here")
        return ExitCode.INTERRUPTED
    print(text)
    if given.markdown is not None:
        given.markdown.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
