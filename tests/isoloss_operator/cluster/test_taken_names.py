"""A Job that is to be created and exists already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from isoloss_operator.cluster.client import SWEEP, Conflict
from isoloss_operator.cluster.jobs import CreateRefused, JobWriter
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.decide.observation import LABEL_ATTEMPT, LABEL_GENERATION, LABEL_OWNER_UID
from isoloss_operator.decide.sweep import decide_sweep
from isoloss_operator.settings import Settings
from tests.support.builders import UID, observed

REQUEST = decide_sweep(observed()).create[0]
OWNER = Owner(SWEEP, "research", "demo", UID)


class Cluster:
    """Has a Job of that name already."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels

    def create(self, *_: Any) -> None:
        raise Conflict("409 exists", 409)

    def list(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        owners = [{"uid": UID, "controller": True}]
        name = REQUEST.name
        yield {"metadata": {"name": name, "ownerReferences": owners, "labels": self.labels}}


def create(labels: dict[str, str]) -> None:
    jobs = JobWriter(Cluster(labels), Settings(trainer_image="i"), writers=1)  # type: ignore[arg-type]
    jobs.create(OWNER, [REQUEST])


def test_the_very_job_that_is_asked_for_is_fine() -> None:
    """Also one of an earlier generation: it may be ending after it was deleted."""
    create({**REQUEST.labels, LABEL_GENERATION: "0", "of": "a user"})


@pytest.mark.parametrize("label", [LABEL_OWNER_UID, LABEL_ATTEMPT])
def test_a_job_of_ours_that_no_list_would_find_is_to_be_deleted(label: str) -> None:
    """It used to be taken for created, in every pass anew and without a word."""
    for labels in ({}, {**REQUEST.labels, label: "9"}):
        with pytest.raises(CreateRefused, match=rf"{label}.* were changed: restore them"):
            create(labels)
