"""What the tests of several commands share."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from isoloss.cli import reporting
from isoloss.report import page
from isoloss_contract.store import Store
from tests.support.pages import drawn_empty
from tests.support.watched import put_kubectl

PutInCluster = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with empty figures, whichever command draws them."""
    for module in (page, reporting):
        monkeypatch.setattr(module, "draw_figures", drawn_empty)


@pytest.fixture
def put_in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PutInCluster:
    """Makes these resources, KIND__NAME, all that there is in a cluster."""
    return partial(put_kubectl, tmp_path, monkeypatch)
