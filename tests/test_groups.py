"""The runner keeps the tests of a group on one worker: some share a machine's only containerd, or a cluster's CRDs."""

import re
import subprocess
import sys
from pathlib import Path

GROUPED = """
import pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(6))
def test_of_the_group(number):
    pass
"""


def test_tests_of_a_group_run_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    runner = (sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "--verbose")
    done = subprocess.run(
        (*runner, "-c", "/dev/null", str(tmp_path)), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = re.findall(r"^\[(gw\d)\].*PASSED", done.stdout, re.MULTILINE)
    assert len(workers) == 6
    assert len(set(workers)) == 1
