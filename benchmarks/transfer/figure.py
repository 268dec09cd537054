"""The picture of docs/evidence/transfer.md: which learning rate continued runs want, over that of the laws.

python -m benchmarks.transfer --read FILE... --figure docs/evidence/transfer.png
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from benchmarks.transfer.design import SIZES
from benchmarks.transfer.reading import Case

matplotlib.use("agg")
from matplotlib import pyplot

TICKS, RATIOS = (0.2, 0.5, 1, 2, 5), (0.5, 1, 2, 5, 10, 20, 50)


def draw(cases: Sequence[Case], path: Path) -> None:
    """Every case with its standard error: against the share, and against tokens a parameter; coloured by size, with a marker for the rate of its checkpoint."""
    figure, (by_share, by_ratio) = pyplot.subplots(
        1, 2, figsize=(8, 3.4), sharey=True, layout="constrained"
    )
    groups = sorted({(case.size, case.pretraining) for case in cases}, reverse=True)
    for name, rate in groups:
        some = [case for case in cases if (case.size, case.pretraining) == (name, rate)]
        wishes = np.array([case.wish for case in some])
        factors = np.exp([case.errors[0] for case in some])
        bars = np.abs([wishes - wishes / factors, wishes * factors - wishes])
        look: dict[str, Any] = {"color": f"C{list(SIZES).index(name)}", "ms": 5}
        look |= {"fmt": "os^D"[(SIZES[name].pretraining.i - rate) % 4], "lw": 1}
        label = f"{name}, checkpoint at {2.0**rate:.1e}"
        by_share.errorbar([case.share for case in some], wishes, bars, label=label, **look)
        by_ratio.errorbar([case.per_param for case in some], wishes, bars, **look)
    shares = np.linspace(0.02, 1, 200)
    by_share.plot(shares, np.sqrt(shares), color="0.3", label="Measured: root of s")
    for axes in (by_share, by_ratio):
        axes.axhline(1, color="0.6", dashes=(4, 2), label="Paper")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(TICKS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(ScalarFormatter())
    by_share.set(xlabel="s, share of compute still to come", ylabel="LR wanted / LR of the laws")
    by_ratio.set(xlabel="r, tokens per parameter", xscale="log")
    by_ratio.xaxis.set_major_locator(FixedLocator(RATIOS))
    by_ratio.xaxis.set_minor_locator(NullLocator())
    by_ratio.xaxis.set_major_formatter(ScalarFormatter())
    by_share.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
