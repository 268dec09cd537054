"""Do five short probes move the laws' answer towards the measured optimum? Prints the tables.

    python -m benchmarks.validation [--seeds 3] [--jobs 1] [--folder .bench/validation] [--markdown FILE]

A sweep of the demo's proxies, the grid of continued runs and the probes are trained with the trainer and saved in the
folder: a second call continues where the first one ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.validation.measuring import Bench
from benchmarks.validation.running import training_pool
from benchmarks.validation.table import tables
from benchmarks.validation.training import NoAnswer, Workshop
from isoloss_contract.records import ExitCode
from isoloss_trainer.termination import Interrupted, Interruption


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seeds", type=int, default=3, help="data orders of every continued run, 3 or more"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that train, of one thread each"
    )
    parser.add_argument("--folder", type=Path, default=Path(".bench/validation"))
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    options = parser.parse_args()
    if options.seeds < 3:
        parser.error(
            "--seeds: one is judged by the others, whose scatter must show: give 3 or more"
        )
    if options.jobs < 1:
        parser.error("--jobs: give 1 or more")
    torch.set_num_threads(1)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s: {line}", flush=True)

    interruption = Interruption().listen()
    try:
        workshop = Workshop(options.folder, interruption, say)
        with training_pool(options.folder, options.jobs, interruption) as pool:
            measured = Bench(workshop, pool, range(options.seeds), say).measure()
    except Interrupted:
        say("stopped; the same command continues from here")
        return ExitCode.INTERRUPTED
    except NoAnswer as error:
        print(f"the demo's laws have no answer: {error}", file=sys.stderr)
        return 1
    text = "\n".join(tables(measured))
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
