"""Draws the pictures of docs/concepts with the report's own code, from the sample runs.

python -m tests.docs.pictures
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from isoloss import datasets
from isoloss.cli.application import run

TARGET = Path(__file__).parents[2] / "docs" / "concepts"
FIGURES = ("answer.png", "iso-loss.png", "laws.png")
QUERY = ("--initial-loss", "2.75", "--cpt-flops", "3e19", "--params", "1e9")


def main() -> None:
    """Write FIGURES."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        runs, laws, page = (folder / n for n in ("runs.csv", "laws.json", "report.html"))
        runs.write_text(datasets.sample_text(datasets.RUNS))
        run(["fit", str(runs), "--out", str(laws)])
        run(["report", str(laws), "--runs", str(runs), "--out", str(page), *QUERY])
        for name in FIGURES:
            (TARGET / name).write_bytes((folder / "report-figures" / name).read_bytes())


if __name__ == "__main__":
    main()
