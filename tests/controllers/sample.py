"""The sample repository for GitOps with a sweep that this machine can train, and what becomes of it in a cluster."""

import re
from typing import Any

import yaml
from kubernetes import client

from isoloss.yaml_text import to_yaml
from tests.controllers.controller import Json
from tests.gitops.health import GITOPS
from tests.isoloss_operator.conftest import (
    Place,
    judging_sweep,
    sweep,
    write_toy_checkpoint,
)
from tests.support.operator_process import User, prediction_manifest, sweep_manifest

PARTS = ("sweep", "prediction", "validation", "training")
FILES = {part: f"research/{part}/{part}.yaml" for part in PARTS}
TRAINING = "dense-8b-continued-1"
"""The Job's name."""
PROBES = "dense-8b-probes"
"""The name of the sweep that judges the answer."""


def research(user: User, place: Place, **spec: Any) -> dict[str, str]:
    """Its files, for the user's namespace; with `spec` for the sweep."""
    files = {
        path.relative_to(GITOPS / "repository").as_posix(): path.read_text()
        for path in (GITOPS / "repository").rglob("*.yaml")
    }
    files = {
        path: text.replace("namespace: research", f"namespace: {user.namespace}")
        for path, text in files.items()
    }
    uri = write_toy_checkpoint(place)
    asked = {
        "checkpoint": {"uri": uri},
        "validation": {"sweepRef": {"name": PROBES}},
        "publish": {"configMapName": "dense-8b-hyperparams"},
    }
    probes = judging_sweep(place, PROBES, "dense-8b", uri, tokens=4_000_000)
    if "storage" in spec:
        probes["spec"]["storage"] = spec["storage"]
    grid = sweep_manifest("dense", place.uri)["spec"]["grid"]  # enough points for laws
    for part, body in (
        ("sweep", sweep(place, **{"grid": grid, **spec})),
        ("prediction", prediction_manifest("dense-8b", "dense", **asked)),
        ("validation", probes),
    ):
        waves = yaml.safe_load(files[FILES[part]])["metadata"]["annotations"]
        body["metadata"]["annotations"] = waves
        files[FILES[part]] = to_yaml(body)
    training = yaml.safe_load(files[FILES["training"]])
    container = training["spec"]["template"]["spec"]["containers"][0]
    container |= {"command": ["sh", "-c", 'test -n "$LEARNING_RATE" -a -n "$BATCH_SIZE"']}
    del container["resources"]
    files[FILES["training"]] = to_yaml(training)
    return files


def with_unquoted_rate(files: dict[str, str]) -> dict[str, str]:
    """With a learning rate that is a number, which the API server refuses."""
    sweep_file = FILES["sweep"]
    changed = files[sweep_file].replace('"2e-3"', "0.002").replace("'2e-3'", "0.002")
    assert changed != files[sweep_file]
    return {**files, sweep_file: changed}


def with_forbidden_checkpoint(files: dict[str, str]) -> dict[str, str]:
    """With a checkpoint where the namespace may read nothing, which only the operator can refuse."""
    prediction_file = FILES["prediction"]
    changed = re.sub(r"s3://\S+/models/", "s3://others/", files[prediction_file])
    assert changed != files[prediction_file]
    return {**files, prediction_file: changed}


def edit_by_hand(user: User, parallelism: int) -> None:
    """`kubectl edit` of the sweep."""
    user.patch_sweep("dense", {"spec": {"parallelism": parallelism}})
    assert user.sweep("dense")["spec"]["parallelism"] == parallelism


def of_sweep(job: Any) -> bool:
    """Whether it goes with the sweep whose laws answer."""
    owners = job.metadata.owner_references or ()
    return any((each.kind, each.name) == ("ScalingSweep", "dense") for each in owners)


def succeeded(user: User, name: str) -> bool:
    """Whether this Job has."""
    job = client.BatchV1Api(user.api_client).read_namespaced_job_status(name, user.namespace)
    return bool(job.status and job.status.succeeded)


def without_time(body: Json) -> Json:
    """All but the times at which managers last applied the same."""
    managers = [
        {key: value for key, value in each.items() if key != "time"}
        for each in body["metadata"]["managedFields"]
    ]
    metadata = {**body["metadata"], "managedFields": managers}
    return {**body, "metadata": metadata}
