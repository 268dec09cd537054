"""Sweeps and predictions under Argo CD itself, with the sample's Application and health checks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from tests.controllers.argo_cd import Application, ArgoCD, add_health_checks
from tests.controllers.controller import Json
from tests.controllers.git_repository import GitRepository
from tests.controllers.sample import (
    FILES,
    PROBES,
    TRAINING,
    edit_by_hand,
    of_sweep,
    research,
    with_forbidden_checkpoint,
    with_unquoted_rate,
    without_time,
)
from tests.isoloss_operator.conftest import Place
from tests.support.cluster import wait_until
from tests.support.operator_process import OperatorProcess, User, conditions

pytestmark = [pytest.mark.cluster, pytest.mark.s3]

WAITING = "waiting for healthy state of isoloss.dev/"
TIME = "%Y-%m-%dT%H:%M:%SZ"


@pytest.fixture(scope="module")
def argo_cd(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArgoCD]:
    running = ArgoCD(control_plane, tmp_path_factory.mktemp("argo-cd"))
    try:
        running.wait_until_ready()
        add_health_checks(running.api_client)
        yield running
    finally:
        running.end()


@pytest.fixture
def application(argo_cd: ArgoCD, user: User, tmp_path: Path) -> Iterator[Application]:
    """Of a repository that has nothing yet, and not applied yet."""
    made = Application(argo_cd, user.namespace, GitRepository(tmp_path / "pretraining"))
    yield made
    made.delete()


def test_a_repository_goes_from_sweep_to_training_and_shows_no_drift(
    argo_cd: ArgoCD,
    application: Application,
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
) -> None:
    """In the sample's order. Ten further looks and another sync change neither object nor manager."""
    operator.start()
    revision = application.repository.commit(research(user, place))
    application.apply()
    application.wait_for_operation("Running", f"{WAITING}ScalingSweep/dense")
    application.wait_for_health("Progressing")
    application.wait_until_healthy(revision)
    sweep, prediction = user.sweep("dense"), user.prediction("dense-8b")
    job = read_job(user, TRAINING)
    assert became_ready(sweep) <= prediction["metadata"]["creationTimestamp"]
    assert became_ready(prediction) <= job.metadata.creation_timestamp.strftime(TIME)
    assert job.status.succeeded
    user.wait_for(lambda: user.prediction("dense-8b"), "Validated")

    for read in (lambda: user.sweep("dense"), lambda: user.sweep(PROBES)):
        user.wait_for(read, "Reconciling", "False")
    before = [without_time(user.sweep("dense")), without_time(user.prediction("dense-8b"))]
    synced = application.operation()
    for _ in range(10):
        application.refresh("hard")
        assert application.status()["sync"]["status"] == "Synced"
        assert application.health() == "Healthy"
    assert application.operation() == synced
    argo_cd.type("app", "sync", application.name, "--server-side")
    assert application.operation()["startedAt"] > synced["startedAt"]
    after = [without_time(user.sweep("dense")), without_time(user.prediction("dense-8b"))]
    assert after == before


def test_a_training_job_that_comes_with_an_edit_of_the_sweep_waits_for_the_new_answer(
    application: Application,
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
) -> None:
    """Although the prediction is Ready all the time, with the former answer at first. The Job of the former name goes."""
    operator.start()
    files = research(user, place)
    application.repository.commit(files)
    application.apply()
    application.wait_for_operation("Succeeded", seconds=300)
    former = user.prediction("dense-8b")
    grid = user.sweep("dense")["spec"]["grid"]
    wider = {**grid, "learningRates": [*grid["learningRates"], "3.2e-2"]}
    second = TRAINING.replace("-1", "-2")
    edited = research(user, place, grid=wider)
    edited[FILES["training"]] = files[FILES["training"]].replace(TRAINING, second)
    application.wait_until_healthy(application.commit(edited))
    prediction = user.prediction("dense-8b")
    assert prediction["status"]["sweepGeneration"] > former["status"]["sweepGeneration"]
    assert became_ready(prediction) == became_ready(former)
    job = read_job(user, second)
    stale = conditions(prediction)["Stale"]
    assert stale["status"] == "False"
    assert stale["lastTransitionTime"] > conditions(former)["Stale"]["lastTransitionTime"]
    assert stale["lastTransitionTime"] <= job.metadata.creation_timestamp.strftime(TIME)
    assert job.status.succeeded
    names = lambda: {each.metadata.name for each in user.jobs()}  # noqa: E731
    wait_until(lambda: TRAINING not in names(), "the renamed Job to be pruned")


def test_a_commit_that_is_refused_is_mended_by_the_next(
    argo_cd: ArgoCD,
    application: Application,
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
) -> None:
    """The next attempt at a sync takes it, or a new sync at once, where somebody ends the one that was refused.

    The API server refuses the first commit, the operator the second.
    """
    operator.start()
    good = research(user, place)
    application.repository.commit(with_unquoted_rate(good))
    application.apply()
    refused = application.wait_for_operation("Running", "Retrying attempt #1")
    assert "learningRates" in str(refused["syncResult"]["resources"])
    assert not user.sweeps()
    stalls = application.commit(with_forbidden_checkpoint(good))
    application.wait_for_health("Degraded")
    assert "StorageNotAllowed" in str(user.prediction("dense-8b")["status"]["conditions"])
    refused = application.wait_for_operation("Running", "Retrying attempt #2")
    assert refused["syncResult"]["revision"] == stalls
    mended = application.commit(good)
    argo_cd.type("app", "terminate-op", application.name)
    application.wait_until_healthy(mended)
    assert not application.operation().get("retryCount")


def test_argo_cd_takes_back_an_edit_by_hand_resumes_by_commit_and_prunes(
    argo_cd: ArgoCD,
    application: Application,
    operator: OperatorProcess,
    user: User,
    node: ProcessNode,
    place: Place,
) -> None:
    """A sync that waits for a suspended sweep holds all of it up until somebody ends that sync, as the guide says."""
    operator.start()
    suspended = application.repository.commit(research(user, place, suspend=True, parallelism=2))
    application.apply()
    application.wait_for_operation("Running", f"{WAITING}ScalingSweep/dense")
    application.wait_for_health("Suspended")
    edit_by_hand(user, 5)
    resumed = application.commit(research(user, place, parallelism=2))
    application.refresh()
    held_up = application.status()
    assert held_up["sync"]["revision"] == resumed
    assert held_up["operationState"]["syncResult"]["revision"] == suspended
    assert user.sweep("dense")["spec"]["suspend"]
    assert user.sweep("dense")["spec"]["parallelism"] == 5
    argo_cd.type("app", "terminate-op", application.name)
    application.wait_until_healthy(resumed)
    assert not user.sweep("dense")["spec"].get("suspend")
    assert user.sweep("dense")["spec"]["parallelism"] == 2

    edit_by_hand(user, 5)
    wait_until(lambda: user.sweep("dense")["spec"]["parallelism"] == 2, "the edit to be undone")

    files = research(user, place, parallelism=2)
    del files[FILES["sweep"]], files["research/sweep/kustomization.yaml"]
    all_of_it = files["research/kustomization.yaml"]
    files["research/kustomization.yaml"] = all_of_it.replace("[sweep, ", "[")
    assert files["research/kustomization.yaml"] != all_of_it
    pruned = application.commit(files)
    wait_until(lambda: "dense" not in user.sweeps(), "the sweep to be pruned", 120)
    wait_until(lambda: not [j for j in user.jobs() if of_sweep(j)], "its Jobs to go", 120)
    application.wait_until_healthy(pruned)  # the answer that was given stands


def read_job(user: User, name: str) -> Any:
    """GET a Job."""
    return client.BatchV1Api(user.api_client).read_namespaced_job(name, user.namespace)


def became_ready(body: Json) -> str:
    """The time at which it became Ready."""
    return str(conditions(body)["Ready"]["lastTransitionTime"])
