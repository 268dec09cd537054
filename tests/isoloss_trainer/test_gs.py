"""The same on Google Cloud Storage, as fake-gcs-server has it: prepare, train, stop, resume, evaluate.

Skipped where the server is not built: `make test-gs` builds it, which takes two minutes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from isoloss_contract.store import Store
from isoloss_trainer.evaluate import evaluate
from isoloss_trainer.termination import Interruption
from tests.isoloss_trainer.builders import (
    LLAMA,
    evaluate_task,
    quiet,
)
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.other_stores import prepared_on, trained_there_and_here
from tests.isoloss_trainer.test_evaluate import save
from tests.support.gcs_server import gcs_server, needs_gcs_server

pytestmark = needs_gcs_server


@pytest.fixture
def bucket() -> Iterator[None]:
    """A server with the bucket `lab`, and the environment that leads to it."""
    with gcs_server("lab"):
        yield


def copy(folder: Path, store: Store) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(folder)), path.read_bytes())


@pytest.mark.usefixtures("bucket")
def test_a_point_and_a_checkpoint_give_the_same_as_on_a_file_system(
    corpus: Path, prepared: Prepared, tmp_path: Path
) -> None:
    copy(corpus, Store("gs://lab/corpus"))
    manifest = prepared_on("gs://lab", tmp_path)
    assert manifest.digest == prepared.manifest.digest
    _, remote, local = trained_there_and_here(manifest, "gs://lab", prepared, tmp_path)
    assert remote == local

    folder = save(tmp_path / "model", LLAMA, corpus / "tokenizer", max_shard_size="20KB")
    copy(folder, Store("gs://lab/model"))
    there = evaluate_task(manifest, "gs://lab/sweep", "gs://lab/model")
    here = prepared.evaluate_task(folder)
    answers = [evaluate(task, tmp_path, Interruption(), quiet()) for task in (there, here)]
    assert answers[0] == answers[1]
