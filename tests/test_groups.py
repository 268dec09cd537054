"""What holds of the repository as a whole: tests of a group run on one worker, nothing shadows a standard module, locks have hashes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "path", ["operator/__init__.py", "tests/operator", "operator/operator.py"]
)
def test_nothing_shadows_the_standard_library_operator_module(path: str) -> None:
    """A package or module named operator on the path would replace the standard library's."""
    assert not (ROOT / path).exists()


def test_locks_carry_hashes_and_no_download_addresses() -> None:
    """A lock installs from any mirror: versions and hashes only."""
    for lock in (ROOT / "locks").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
