"""A temporary scratch folder is removed with its task; a given one is kept."""

import tempfile
from pathlib import Path

import pytest

from isoloss_contract.records import SCRATCH_VARIABLE
from isoloss_trainer.launch import scratch_folder


def _fail_in_scratch() -> None:
    with scratch_folder() as folder:
        (folder / "shard").write_bytes(b"tokens")
        raise ValueError("mid-task")


def test_a_temporary_folder_is_removed_even_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SCRATCH_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="mid-task"):
        _fail_in_scratch()
    assert not list(tmp_path.iterdir())


def test_a_given_folder_is_created_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, str(tmp_path / "given"))
    with scratch_folder() as folder:
        (folder / "shard").write_bytes(b"tokens")
    assert (tmp_path / "given" / "shard").exists()
