"""Regret, refusals and intervals of the law engine on published and synthetic sweeps.

    python -m benchmarks.science [DATA_FOLDER] [--seeds 3] [--only WORD ...] [--samples 100]

Every row is a kind of question: sizes held out, one or two sizes shown, 3 x 3 windows, thinned grids,
replicates, mistakes in the table. Regret is the loss at an answer above the least one at the target, in thousandths of a nat, mean / worst
(refused); on published sweeps the least loss is that of a polynomial through the target cell's own runs, of the form and window
that predict its best runs best, each left out in turn. Rivals are a plain
regression of per-cell vertices on ln N and ln D, two least squares through all losses, the published Step Law, and the best run of the nearest
size. "excess" is the engine's mean regret above the plain regression's where both answer, "of good" how many
of the questions that the plain regression answers within 0.002 nats the engine refuses, "holds" the share of
true optima inside the 80% intervals (widened by the error of a target cell's own vertex), "x need" the intervals' width over that which would have held 80%.
Published tables (columns described beside them) are looked for in DATA_FOLDER, $ISOLOSS_DATA, or
../shared/data beside the repository; without them the synthetic rows remain, and the exit code is 1 if a folder
was named. docs/evidence/README.md says where they come from.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.science.cases import Row, published_rows, synthetic_rows
from benchmarks.science.scores import HEADER, line, pooled, score_row
from benchmarks.science.tables import DENSE, MOE, data_folder, load, tell_missing
from isoloss.laws import FitOptions


def all_rows(data: str | None, seeds: int) -> Iterator[Row]:
    """Published rows where the tables are at hand, then synthetic ones."""
    folder = data_folder(data)
    for words, name in (("dense", DENSE), ("mixtures", MOE)):
        if (folder / name).exists():
            yield from published_rows(words, load(folder / name), seeds)
    yield from synthetic_rows(4 * seeds)


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--seeds", type=int, default=3, help="how many random cases per row")
    parser.add_argument("--samples", type=int, default=100, help="bootstrap samples of each fit")
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose name contains a word")
    given = parser.parse_args()
    options = FitOptions(bootstrap_samples=given.samples)
    code = tell_missing(given.data)
    print(HEADER)
    found = []
    for row in all_rows(given.data, given.seeds):
        if any(word in row.name for word in given.only):
            found.append(score_row(row, options))
            print(line(found[-1]), flush=True)
    if found:
        print(line(pooled(found)))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
