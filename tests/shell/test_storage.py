"""The operator's reads of a checkpoint's config.json: bounded, kept for a while, errors as values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoloss.store import BadRecord, NotFound
from isoloss_operator.storage import MODEL_CONFIG_SECONDS, Storage


@pytest.fixture
def times() -> list[float]:
    return [100.0]


@pytest.fixture
def storage(times: list[float]) -> Iterator[Storage]:
    storage = Storage(clock=lambda: times[0])
    yield storage
    storage.close()


def write(folder: Path, config: object) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def test_a_config_is_read_and_not_read_again_for_a_while(
    storage: Storage, times: list[float], tmp_path: Path
) -> None:
    uri = tmp_path.as_uri()
    write(tmp_path, {"model_type": "llama"})
    assert storage.model_config(uri) == {"model_type": "llama"}
    write(tmp_path, {"model_type": "qwen3"})
    assert storage.model_config(uri) == {"model_type": "llama"}
    times[0] += MODEL_CONFIG_SECONDS
    assert storage.model_config(uri) == {"model_type": "qwen3"}


def test_a_config_that_is_missing_or_no_object_is_said_and_looked_for_again(
    storage: Storage, tmp_path: Path
) -> None:
    uri = tmp_path.as_uri()
    assert isinstance(storage.model_config(uri), NotFound)
    write(tmp_path, [1, 2])
    assert isinstance(storage.model_config(uri), BadRecord)
    write(tmp_path, {"model_type": "llama"})
    assert storage.model_config(uri) == {"model_type": "llama"}
