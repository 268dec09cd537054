"""What sweeps cost against what their answers lose, and whether that was what was expected before they were trained.

    python -m benchmarks.economy [DATA_FOLDER] [--brief] [--figure FILE]

Published sweeps: every part of them that is a design (two or three sizes to some tokens, the dozen runs about each best) answers for every larger cell.
Synthetic ones: what isoloss init would choose at each cost, for 4B parameters and 80B tokens. Costs are those of whole grids; a search takes a
part of them. Last, answers far beyond whole grids, shares of tokens wasted. Regret is nats above the least loss at the target, in thousandths. "expected" is what isoloss.design says before a loss is read,
"reported" what the answer says of itself. At no cost there are the published law and the best run of the nearest size. The published sweeps' own targets are small: two sizes and a dozen runs of each cost about as much as they do. Where the tables are: benchmarks/science.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.economy import distances, published, synthetic
from benchmarks.economy.outcomes import (
    FRONTIER_HEAD,
    PUBLISHED_CAPS,
    Outcome,
    best_within,
    mean_line,
    table,
)
from benchmarks.science import tables
from isoloss_operator.commands.design import NEAR, SPACINGS

SEEDS, BRIEF_SEEDS = 4, 1
CLOSEST = SPACINGS[0] / NEAR
"""Sizes that isoloss init compares are no closer."""
Frontier = dict[str, list[Outcome]]


def main() -> int:
    """Print the tables; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--brief", action="store_true", help="pairs of sizes and one seed alone")
    parser.add_argument("--figure", type=Path, help="also draw cost against regret into this file")
    given = parser.parse_args()
    code, folder = tables.tell_missing(given.data), tables.data_folder(given.data)
    groups: list[tuple[str, Sequence[Outcome]]] = []
    frontiers: dict[str, Frontier] = {}
    free: dict[str, dict[str, list[float]]] = {}
    for name, file in (("dense", tables.DENSE), ("mixtures", tables.MOE)):
        if not (folder / file).exists():
            continue
        sweep = tables.load(folder / file)
        found = published.outcomes(sweep, brief=given.brief)
        every = [each for some in found.values() for each in some]
        groups.append((name, [each for each in every if each.spacing >= CLOSEST]))
        groups.append(
            (f"{name}, closer sizes", [each for each in every if each.spacing < CLOSEST])
        )
        frontiers[name] = _frontier(found)
        free[name] = published.without_a_sweep(sweep, sorted(found))
    chosen: Frontier = {}
    for name, outcome in synthetic.outcomes(BRIEF_SEEDS if given.brief else SEEDS):
        chosen.setdefault(name, []).append(outcome)
    groups.append(("synthetic", [each for some in chosen.values() for each in some]))
    frontiers["synthetic"] = chosen
    print("\n".join(table(groups)))
    for name, frontier in frontiers.items():
        print(f"\n{name}\n\n{FRONTIER_HEAD}")
        for words, regrets in free.get(name, {}).items():
            print(
                f"| {words} | 0% | {len(regrets)} | 0 | {1e3 * np.mean(regrets):.2f} | {1e3 * max(regrets):.2f} | |"
            )
        for words, outcomes in frontier.items():
            print(mean_line(words, outcomes))
    with ProcessPoolExecutor() as pool:
        print("\n" + "\n".join(distances.table(pool, 1 if given.brief else 3)))
    if given.figure:
        draw(frontiers, free, given.figure)
    return code


def _frontier(found: Mapping[tables.CellKey, Sequence[Outcome]]) -> Frontier:
    """At each cap, one design for each target that has any."""
    chosen: Frontier = {}
    for cap in PUBLISHED_CAPS:
        best = [one for each in found.values() if (one := best_within(each, cap)) is not None]
        if best:
            chosen[f"at most {cap:.0%}"] = best
    return chosen


def draw(
    frontiers: Mapping[str, Frontier],
    free: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
) -> None:
    """One picture: what is paid, and what is lost."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for k, (name, frontier) in enumerate(frontiers.items()):
        rows = []
        for some in frontier.values():
            answered = [each for each in some if each.measured is not None]
            # Where most are refused, those that are answered are the easy ones.
            if 2 * len(answered) > len(some):
                columns = [(each.cost, each.measured, each.expected) for each in answered]
                rows.append(np.mean(np.array(columns, dtype=float), axis=0))
        if not rows:
            continue
        cost, measured, expected = (np.array(column) for column in zip(*rows, strict=True))
        axes.plot(100 * cost, 1e3 * measured, "o-", color=f"C{k}", label=f"{name}, measured")
        axes.plot(100 * cost, 1e3 * expected, ":", color=f"C{k}", label=f"{name}, expected")
        if law := free.get(name, {}).get("published law"):
            label = f"{name}, published law"
            axes.axhline(1e3 * float(np.mean(law)), color=f"C{k}", lw=0.7, ls="--", label=label)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="cost of the whole grids, % of the target run's FLOPs",
        ylabel="regret, thousandths of a nat",
    )
    # Between the curves, off the lines of the published laws.
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(0.33, 0.7))
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    raise SystemExit(main())
