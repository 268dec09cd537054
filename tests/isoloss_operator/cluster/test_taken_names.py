"""A Job that is to be created and exists already."""

from collections.abc import Iterator
from typing import Any

import pytest

from isoloss_operator.cluster.client import SWEEP, Conflict
from isoloss_operator.cluster.jobs import CreateRefused, JobWriter
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.observation import (
    LABEL_ATTEMPT,
    LABEL_GENERATION,
    LABEL_OWNER_UID,
    LABEL_RECORDED,
)
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.settings import Settings
from tests.support.builders import UID, observed

REQUEST = decide_sweep(observed()).create[0]
OWNER = Owner(SWEEP, "research", "demo", UID)


class Cluster:
    """Has a Job of that name already."""

    def __init__(
        self,
        labels: dict[str, str],
        owners: tuple[dict[str, Any], ...] = ({"uid": UID, "controller": True},),
    ) -> None:
        self.labels = labels
        self.owners = owners
        self.changes: list[Any] = []

    def patch(self, _kind: Any, _namespace: str, name: str, change: Any) -> None:
        assert name == REQUEST.name
        self.changes.append(change)

    def create(self, *_: Any) -> None:
        raise Conflict("409 exists", 409)

    def list(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        owners, name = list(self.owners), REQUEST.name
        yield {"metadata": {"name": name, "ownerReferences": owners, "labels": self.labels}}


def create(labels: dict[str, str], *owners: dict[str, Any]) -> list[Any]:
    """What was changed of the Job that is there."""
    cluster = Cluster(labels, owners) if owners else Cluster(labels)
    jobs = JobWriter(cluster, Settings(trainer_image="i"), writers=1)  # type: ignore[arg-type]
    jobs.create(OWNER, [REQUEST])
    return cluster.changes


def test_the_very_job_that_is_asked_for_is_fine() -> None:
    """Also one of an earlier generation: it may be ending after it was deleted."""
    assert create({**REQUEST.labels, LABEL_GENERATION: "0", "of": "a user"}) == []


def test_a_job_that_a_lost_ledger_had_recorded_is_listed_again() -> None:
    """It would be neither seen nor created, for ever."""
    changes = create({**REQUEST.labels, LABEL_RECORDED: "true"})
    assert changes == [{"metadata": {"labels": {LABEL_RECORDED: None}}}]


def test_a_running_job_whose_owner_reference_was_taken_away_gets_it_again() -> None:
    """It was to be deleted, though it trains, or has its result."""
    other = {"uid": "x", "kind": "Backup", "name": "b"}
    (change,) = create(dict(REQUEST.labels), other)
    assert change == {"metadata": {"ownerReferences": [other, OWNER.reference()]}}


@pytest.mark.parametrize(
    ("labels", "owner"),
    [
        ({**REQUEST.labels, LABEL_OWNER_UID: "another"}, {"uid": "x"}),
        ({}, {"uid": "x"}),
        (dict(REQUEST.labels), {"uid": "another", "controller": True}),
    ],
    ids=["of another sweep", "of nobody of ours", "of another controller"],
)
def test_a_job_that_is_not_the_sweeps_stays_as_it_is(
    labels: dict[str, str], owner: dict[str, Any]
) -> None:
    with pytest.raises(CreateRefused, match="does not belong to demo: delete it"):
        create(labels, owner)


TIME_TO_LIVE, RETRIES = "ttlSecondsAfterFinished", "backoffLimit"


class Policy:
    """Sets a field of every Job that is created, and of every one that is changed if it is a stubborn one."""

    def __init__(self, field: str, *, stubborn: bool) -> None:
        self.field, self.stubborn = field, stubborn
        self.job: dict[str, Any] = {}
        self.deleted: list[str] = []

    def create(self, _kind: Any, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        metadata = {**body["metadata"], "namespace": namespace, "uid": "u"}
        self.job = {"metadata": metadata, "spec": {**body["spec"], self.field: 6}}
        return self.job

    def patch(self, _kind: Any, _namespace: str, _name: str, change: Any) -> dict[str, Any]:
        assert change["spec"].keys() == {self.field}
        if not self.stubborn:
            self.job["spec"] |= change["spec"]
        return self.job

    def delete(self, _kind: Any, _namespace: str, name: str, uid: str) -> None:
        assert uid == "u"
        self.deleted.append(name)


@pytest.mark.parametrize(("field", "ours"), [(TIME_TO_LIVE, None), (RETRIES, 0)])
def test_what_a_policy_sets_that_ends_jobs_or_starts_pods_is_taken_back(
    field: str, ours: int | None
) -> None:
    """A Job would be gone before its outcome is recorded, so that failures were free and spend was forgotten; or
    Kubernetes would try a crash six times again, with growing waits, before anybody heard of it."""
    policy = Policy(field, stubborn=False)
    JobWriter(policy, Settings(trainer_image="i"), writers=1).create(OWNER, [REQUEST])  # type: ignore[arg-type]
    assert policy.job["spec"][field] == ours
    assert policy.deleted == []


@pytest.mark.parametrize("field", [TIME_TO_LIVE, RETRIES])
def test_where_a_policy_insists_on_it_no_job_is_left_to_run(field: str) -> None:
    policy = Policy(field, stubborn=True)
    message = f"sets spec.{field} of .* exempt Jobs with the label {LABEL_OWNER_UID}"
    with pytest.raises(CreateRefused, match=message):
        JobWriter(policy, Settings(trainer_image="i"), writers=1).create(OWNER, [REQUEST])  # type: ignore[arg-type]
    assert policy.deleted == [REQUEST.name]


@pytest.mark.parametrize("label", [LABEL_OWNER_UID, LABEL_ATTEMPT])
def test_a_job_of_ours_that_no_list_would_find_is_to_be_deleted(label: str) -> None:
    """It used to be taken for created, in every pass anew and without a word."""
    for labels in ({}, {**REQUEST.labels, label: "9"}):
        with pytest.raises(CreateRefused, match=rf"{label}.* were changed: restore them"):
            create(labels)
