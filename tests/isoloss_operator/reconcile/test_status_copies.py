"""The copy of a status in the store: what it says, and that a store that refuses it stops nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isoloss_contract import layout
from isoloss_contract.store import Store, StoreUnavailable
from isoloss_operator.api import ScalingSweepStatus
from isoloss_operator.cluster.client import SWEEP
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.reconcile.memory import Folder, Memory
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.status_copies import copy_status
from isoloss_operator.store.storage import Storage

FOLDER = layout.sweep_folder("dense", "uid")
STATUS = ScalingSweepStatus(observed_generation=3)


def resource(memory: Memory | None = None) -> Resource:
    body = {
        "metadata": {"name": "dense", "namespace": "research", "generation": 3},
        "spec": {"podTemplate": {"spec": {"containers": [{"env": [{"value": "secret"}]}]}}},
    }
    owner = Owner(SWEEP, "research", "dense", "uid")
    key = ResourceKey(SWEEP, "research", "dense")
    return Resource(key, owner, body, memory or Memory("uid"))


def services(storage: Any) -> Any:
    return SimpleNamespace(storage=storage)


def test_the_copy_is_what_kubectl_prints_without_the_spec(tmp_path: Path) -> None:
    folder = Folder(f"file://{tmp_path}", FOLDER)
    copy_status(services(Storage()), resource(), folder, STATUS)
    found = Store(folder.store_uri).read_json_object(layout.status_in(FOLDER))
    assert found == {
        "apiVersion": "isoloss.dev/v1alpha1",
        "kind": "ScalingSweep",
        "metadata": {"name": "dense", "namespace": "research", "uid": "uid", "generation": 3},
        "status": STATUS.document(),
    }


class CountingStorage:
    """Counts writes, and refuses them while it is told to."""

    def __init__(self) -> None:
        self.writes = 0
        self.refuses = False

    def write(self, _name: str, _uri: str, _path: str, _content: bytes) -> None:
        self.writes += 1
        if self.refuses:
            raise StoreUnavailable("quota exceeded")


def test_a_status_is_copied_once_and_again_when_it_changed() -> None:
    storage, of = CountingStorage(), resource()
    for status in (STATUS, STATUS, STATUS.model_copy(update={"observed_generation": 4})):
        copy_status(services(storage), of, Folder("s3://bucket", FOLDER), status)
    assert storage.writes == 2


def test_a_status_without_a_folder_goes_where_the_last_one_went(tmp_path: Path) -> None:
    """An invalid spec names no storage, and whoever has the store alone would go on to read of a training."""
    of, copies = resource(), services(Storage())
    copy_status(copies, of, None, STATUS)
    copy_status(copies, of, Folder(f"file://{tmp_path}", FOLDER), STATUS)
    later = STATUS.model_copy(update={"observed_generation": 4})
    copy_status(copies, of, None, later)
    found = Store(f"file://{tmp_path}").read_json_object(layout.status_in(FOLDER))
    assert found["status"] == later.document()


def test_a_store_that_does_not_take_the_copy_is_logged_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage, of = CountingStorage(), resource()
    storage.refuses = True
    with caplog.at_level(logging.WARNING):
        copy_status(services(storage), of, Folder("s3://bucket", FOLDER), STATUS)
    assert "quota exceeded" in caplog.text
    storage.refuses = False
    copy_status(services(storage), of, Folder("s3://bucket", FOLDER), STATUS)
    copy_status(services(storage), of, Folder("s3://bucket", FOLDER), STATUS)
    assert storage.writes == 2
