"""What the commands of studies that train for hours share: a folder in which a second call goes on, a clock, and tables."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from isoloss_contract.records import ExitCode
from isoloss_trainer.termination import Interrupted, Interruption

Say = Callable[[str], None]
"""Told of progress."""


def study_parser(description: str, name: str) -> ArgumentParser:
    """The options that each of them has."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, default=Path(".bench") / name)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    return parser


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
