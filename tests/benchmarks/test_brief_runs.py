"""Programs that nothing else runs, each once and briefly, as a person calls it."""

import subprocess
import sys

import pytest

from tests.deploy.chart import ROOT

BRIEF = {
    "bench_laws": ("--repeats 1 --rival-samples 1 --skip-large", "ratio rival / isoloss"),
    "coverage": ("--seeds 1 --samples 5 --only exact --grids two-3x3", "j exact laws"),
}
"""Options, and what is printed with them."""


@pytest.mark.whole
@pytest.mark.parametrize("name", BRIEF)
def test_a_program_runs_and_prints_its_table(name: str) -> None:
    options, printed = BRIEF[name]
    command = [sys.executable, "-m", f"benchmarks.{name}", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed in done.stdout
