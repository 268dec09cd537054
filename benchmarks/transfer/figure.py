"""The picture of docs/evidence/transfer.md: which learning rate continued runs want, over that of the laws.

python -m benchmarks.transfer --read FILE... --figure docs/evidence/transfer.png
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from benchmarks.transfer.design import SIZES
from benchmarks.transfer.reading import Case
from benchmarks.transfer.texts import FAR

matplotlib.use("agg")
from matplotlib import pyplot

FIRST_STUDY = Path(__file__).parents[2] / "docs" / "evidence" / "transfer.csv"
"""Its laws are those of its own runs from scratch, by its own engine."""
TICKS, RATIOS = (0.05, 0.1, 0.2, 0.5, 1, 2), (0.125, 0.25, 0.5, 1, 2)


def draw(cases: Sequence[Case], path: Path) -> None:
    """Every case with its standard error: over the laws against the share, and over Measured's answer against the checkpoint's own rate.

    Coloured by size; the marker is the text, and hollow what broke its shape. Triangles are the first study's, all pre-trained at 2^-8.
    """
    figure, (by_share, by_ratio) = pyplot.subplots(
        1, 2, figsize=(9, 4.6), sharey=True, layout="constrained"
    )
    groups = sorted({(case.size, case.checkpoint.text, case.broken) for case in cases})
    for name, text, broken in groups:
        some = [c for c in cases if (c.size, c.checkpoint.text, c.broken) == (name, text, broken)]
        factors = np.exp([case.errors[0] for case in some])
        look: dict[str, Any] = {"color": f"C{list(SIZES).index(name)}", "ms": 4.5, "lw": 0.8}
        look |= {"fmt": "o" if text == FAR else "s", "mfc": "white" if broken else None}
        look["label"] = f"{name}, {text}" + ", rate breaks the shape" * broken
        over_laws = np.array([case.wish for case in some])
        over_rule = np.exp([case.over_measured for case in some])
        for axes, x, y in (
            (by_share, [case.share for case in some], over_laws),
            (by_ratio, [case.ratio for case in some], over_rule),
        ):
            axes.errorbar(x, y, np.abs([y - y / factors, y * factors - y]), **look)
    with FIRST_STUDY.open() as file:
        first = list(csv.DictReader(file))
    for number, name in enumerate(("small", "large", "wide"), 2):
        rows = [row for row in first if row["size"] == name]
        wanted, laws, share = (
            np.array([float(row[column]) for row in rows])
            for column in ("best_learning_rate", "laws_learning_rate", "share")
        )
        by_share.plot(share, wanted / laws, "^", ms=4, color=f"C{number}", label=name)
    shares = np.linspace(0.02, 1, 200)
    by_share.plot(shares, np.sqrt(shares), color="0.3", label="Measured: root of s")
    by_share.plot(shares, shares**0.75, color="0.3", lw=0.8, dashes=(4, 2), label="s^0.75")
    for axes in (by_share, by_ratio):
        axes.axhline(1, color="0.6", dashes=(4, 2))
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(TICKS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(ScalarFormatter())
    by_share.set(xlabel="s, share of compute still to come", ylabel="LR wanted / LR of the laws")
    by_ratio.set(
        xlabel="LR of the checkpoint's pre-training / LR of the laws",
        ylabel="LR wanted / LR by Measured",
        xscale="log",
    )
    by_ratio.xaxis.set_major_locator(FixedLocator(RATIOS))
    by_ratio.xaxis.set_minor_locator(NullLocator())
    by_ratio.xaxis.set_major_formatter(ScalarFormatter())
    by_ratio.yaxis.set_tick_params(labelleft=True)
    figure.legend(
        *by_share.get_legend_handles_labels(),
        frameon=False,
        ncols=4,
        loc="outside lower center",
        fontsize=8,
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
