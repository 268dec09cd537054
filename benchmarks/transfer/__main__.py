"""Measures continued runs against the laws' answers and prints the table.

    python -m benchmarks.transfer [--brief] [--folder .bench/transfer] [--markdown FILE]

Everything is trained with the trainer, one run after another on one core, and saved in the folder: a
second call continues where the first one ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.study import Say, conduct, study_parser
from benchmarks.transfer.design import BRIEF, FULL
from benchmarks.transfer.measuring import measure
from benchmarks.transfer.table import tables
from benchmarks.transfer.texts import provide_texts
from benchmarks.transfer.training import Workshop
from isoloss_trainer.termination import Interruption


def main() -> int:
    parser = study_parser(__doc__ or "", "transfer")
    parser.add_argument("--brief", action="store_true", help="fewer checkpoints, shorter runs")
    options = parser.parse_args()

    def found(interruption: Interruption, say: Say) -> Iterator[str]:
        corpus = provide_texts(options.folder / "texts")
        design = BRIEF if options.brief else FULL
        workshop = Workshop(design, options.folder, corpus, interruption)
        say("texts ready")
        return tables(measure(workshop, say))

    return conduct(options, found)


if __name__ == "__main__":
    sys.exit(main())
