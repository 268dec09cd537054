"""Do five short probes move the laws' answer towards the measured optimum? Prints the tables.

    python -m benchmarks.validation [--seeds 3] [--jobs 1] [--folder .bench/validation] [--markdown FILE]

A sweep of the demo's proxies, the grid of continued runs and the probes are trained with the trainer and saved in the
folder: a second call continues where the first one ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.study import Say, conduct, study_parser
from benchmarks.validation.measuring import Bench
from benchmarks.validation.running import training_pool
from benchmarks.validation.table import tables
from benchmarks.validation.training import NoAnswer, Workshop
from isoloss_trainer.termination import Interruption


def main() -> int:
    parser = study_parser((__doc__ or "").partition("\n")[0], "validation")
    parser.add_argument(
        "--seeds", type=int, default=3, help="data orders of every continued run, 3 or more"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that train, of one thread each"
    )
    options = parser.parse_args()
    if options.seeds < 3:
        parser.error(
            "--seeds: one is judged by the others, whose scatter must show: give 3 or more"
        )
    if options.jobs < 1:
        parser.error("--jobs: give 1 or more")

    def found(interruption: Interruption, say: Say) -> Iterator[str]:
        workshop = Workshop(options.folder, interruption, say)
        with training_pool(options.folder, options.jobs, interruption) as pool:
            measured = Bench(workshop, pool, range(options.seeds), say).measure()
        return tables(measured)

    try:
        return conduct(options, found)
    except NoAnswer as error:
        print(f"the demo's laws have no answer: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
