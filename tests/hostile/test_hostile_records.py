"""Progress and trajectories that a tenant wrote by hand, with the digests that belong to them.

The running operator reads the former, the process of a fit the latter. Every record is replaced by a sound one in
the end: the tenant pays with points that are trained again.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from devcluster.process_node import ProcessNode
from isoloss_contract import layout
from isoloss_operator.decide.observation import LABEL_KEY, LABEL_KIND
from tests.faults.injection import replace_object
from tests.hostile.neighbour import Neighbour, planned, prepared
from tests.hostile.test_hostile_stores import named
from tests.isoloss_operator.conftest import SMALL_POINTS, Place
from tests.support.cluster import wait_until
from tests.support.hostile_objects import hostile
from tests.support.operator_process import OperatorProcess, User, conditions

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

Json = dict[str, Any]
ROW: Json = {"step": 1, "tokens": 3_000_000, "averaged_loss": 3.0, "loss": 3.0}


def row(**values: Any) -> bytes:
    return json.dumps({**ROW, **values}).encode() + b"\n"


TRAJECTORIES = {
    "larger than may be": b" " * (32 * 2**20 + 1),
    "as many sound rows as may be": row() * (32 * 2**20 // len(row())),
    "nested": b'{"a":' * 10_000,
    "wrong types": row(loss="3.0", tokens=[1]),
    "no number": row(loss=float("nan")),
    "beyond every number": row(loss=float("inf"), tokens=10**400),
    "a loss below zero that is as large as may be": row(loss=-1.7e308, averaged_loss=-1.7e308),
    "nothing": b"",
}
"""One for each of the points. Nothing is what a run leaves that ends before its first evaluation; no other can be."""


def done(tenant: User, name: str) -> Json:
    return tenant.wait_for(
        lambda: tenant.sweep(name), "Progressing", "False", "Finished", seconds=150
    )


def test_no_trajectory_takes_the_operator_or_the_fits_from_its_neighbours(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    """Results name what stands there by its digest, so that nothing but the content is wrong."""
    folder = place.storage.buckets / place.bucket / "lab"
    with Neighbour(user, limited, place) as neighbour:
        tenant.apply_sweep(named(place, "first", "lab"))
        done(tenant, "first")
        tenant.delete_sweep("first")
        found = sorted((folder / layout.POINTS).glob("*/result.json"))
        for path, content in zip(found, TRAJECTORIES.values(), strict=True):
            forge(path, content)
        tenant.apply_sweep(named(place, "second", "lab"))
        wait_until(lambda: left(folder) == {"nothing"}, "the others to be quarantined", 100)
        assert done(tenant, "second")["status"]["points"]["succeeded"] == SMALL_POINTS
        neighbour.is_fitted()
        neighbour.judge()


def forge(result: Path, content: bytes) -> None:
    """A result that names this content as its trajectory."""
    digest = hashlib.sha256(content).hexdigest()
    replace_object(result.parent / "trajectories" / f"{digest}.jsonl", content)
    record = {**json.loads(result.read_text()), "trajectory_sha256": digest}
    replace_object(result, json.dumps(record).encode())


def left(folder: Path) -> set[str]:
    """Hostile trajectories that still stand where a fit reads them."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in TRAJECTORIES.items()}
    return {
        name
        for name, digest in digests.items()
        if list(folder.glob(f"points/*/trajectories/{digest}.jsonl"))
    }


@pytest.mark.whole
def test_no_progress_takes_the_operator_from_its_neighbours(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    """Of points that train, and so are asked for it in every pass."""
    limited.environment["ISOLOSS_RESYNC_SECONDS"] = "1"
    body = named(
        place, "lab", "lab", parallelism=SMALL_POINTS, failures=[{"exit": "hang", "kind": "train"}]
    )
    store = prepared(place, "lab", body["spec"])
    with Neighbour(user, limited, place) as neighbour:
        tenant.apply_sweep(body)
        tenant.wait_for(lambda: tenant.sweep("lab"), "Ready", "False", "Training", seconds=60)
        keys = [point.key for point in planned(body["spec"])]
        wait_until(lambda: trained(tenant) == set(keys), "all points to train")
        for key, content in zip(keys, progress().values(), strict=False):
            store.write(layout.point_progress(key), content)
        neighbour.asks_again()
        neighbour.judge()
        status = tenant.sweep("lab")["status"]
    assert conditions(tenant.sweep("lab"))["Ready"]["reason"] == "Training"
    assert status["spentFlops"] == "0"
    assert status["points"]["failed"] == 0


def trained(tenant: User) -> set[str]:
    """Keys of the points that have Jobs: that of the corpus has one, too."""
    labels = [job.metadata.labels for job in tenant.jobs()]
    return {each[LABEL_KEY] for each in labels if each[LABEL_KIND] == "train"}


def progress() -> Mapping[str, bytes]:
    """What is no report, and reports of what nobody can have trained."""
    strange = {"not a number": float("nan"), "without bound": float("inf"), "wrong": "many"}
    return {
        **{what: json.dumps({"tokens": value}).encode() for what, value in strange.items()},
        **{what: make() for what, make in hostile("progress").items()},
    }


@pytest.mark.whole
def test_a_report_that_cannot_be_written_does_not_keep_the_fits_from_its_neighbours(
    limited: OperatorProcess, user: User, tenant: User, node: ProcessNode, place: Place
) -> None:
    """There is a folder of its name. Only one fit runs at a time, and it went on trying for half an hour."""
    folder = place.storage.buckets / place.bucket / "lab"
    limited.environment["ISOLOSS_FIT_TIMEOUT_SECONDS"] = "600"
    body = named(place, "lab", "lab")
    body["spec"]["suspend"] = True
    with Neighbour(user, limited, place) as neighbour:
        uid = tenant.apply_sweep(body)["metadata"]["uid"]
        report = folder / layout.report_in(layout.sweep_folder("lab", uid))
        (report / "in-its-place").mkdir(parents=True)
        tenant.apply_sweep(named(place, "lab", "lab"))
        done(tenant, "lab")
        neighbour.is_fitted()
        neighbour.judge()
        # The record is in the store a moment before the status names the laws.
        wait_until(lambda: tenant.sweep("lab")["status"]["lawsUri"], "the tenant's laws", 100)
        record = folder / layout.fit_in(layout.sweep_folder("lab", uid))
    assert json.loads(record.read_text())["report_written"] is False
