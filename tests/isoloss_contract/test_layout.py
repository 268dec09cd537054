"""The repository's shape: traps that would break every import at once."""

from pathlib import Path

import pytest

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
