"""Draws the pictures of docs/concepts: those of the quick start's report.

python -m tests.docs.pictures
"""

import tempfile
from pathlib import Path

from isoloss.cli.application import run

TARGET = Path(__file__).parents[2] / "docs" / "concepts"
FIGURES = ("answer.png", "iso-loss.png", "laws.png")


def main() -> None:
    """Write FIGURES."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "quickstart"
        run(["quickstart", "--folder", str(folder), "--no-open"])
        for name in FIGURES:
            (TARGET / name).write_bytes((folder / "report-figures" / name).read_bytes())


if __name__ == "__main__":
    main()
