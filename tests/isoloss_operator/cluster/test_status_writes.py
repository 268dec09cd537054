"""Every optional field of both statuses, filled and then absent, as the operator writes it to a real API server.

Server-side apply merges: what an earlier apply set and a later one leaves out goes, unless the merge leaves
something that the schema refuses. Such a status would never be written again.
"""

import types
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Annotated, Any, Literal, cast

import pytest

from isoloss_operator.api.statuses import (
    HyperparamPredictionStatus,
    ScalingSweepStatus,
    StatusType,
)
from isoloss_operator.cluster.client import PREDICTION, SWEEP, Cluster, Kind, Refused, ResourceKey
from isoloss_operator.cluster.manifests import Owner
from isoloss_operator.reconcile.memory import Memory
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.status_writes import reporting_failures
from isoloss_operator.settings import Settings
from tests.support.operator_process import (
    User,
    conditions,
    prediction_manifest,
    sweep_manifest,
)

pytestmark = pytest.mark.cluster

STATUSES: dict[Kind, type[StatusType]] = {
    SWEEP: ScalingSweepStatus,
    PREDICTION: HyperparamPredictionStatus,
}
Path = tuple[str, ...]
LIMITED_BY_THE_WRITER = {"type", "reason", "message"}
"""Texts of a condition, which `dated` cuts; all others cut themselves."""
TIME = "2026-11-24T12:00:00Z"


def filled(model: type[StatusType], entries: int = 1, text: str = "1") -> StatusType:
    """A status in which every field has a value, every list and map so many entries, and texts are `text`."""
    values = {
        name: _value(field.annotation, name, (entries, text), _longest(field))
        for name, field in model.model_fields.items()
    }
    return model.model_validate(values)


def _longest(field: Any) -> int:
    bounds = [m.max_length for m in field.metadata if getattr(m, "max_length", None)]
    return cast("int", min(bounds)) if bounds else 1


def _value(annotation: Any, name: str, size: tuple[int, str], longest: int) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        bounds = [getattr(m, "max_length", None) for m in arguments[1:]]
        return _value(arguments[0], name, size, next(filter(None, bounds), longest))
    if origin in (typing.Union, types.UnionType):
        return _value(next(a for a in arguments if a is not type(None)), name, size, longest)
    if origin is Literal:
        return arguments[0]
    entries, text = size
    count = min(entries, longest)
    if origin is tuple:
        return tuple(_numbered(arguments[0], name, number, size) for number in range(count))
    if origin is dict:
        return {f"key-{number}": text for number in range(count)}
    if isinstance(annotation, type) and issubclass(annotation, StatusType):
        return filled(annotation, *size)
    if name == "last_transition_time":
        return TIME
    if annotation is str and name in LIMITED_BY_THE_WRITER:
        return text[:longest]
    return {str: text, int: 1, bool: True}[annotation]


def _numbered(annotation: Any, name: str, number: int, size: tuple[int, str]) -> Any:
    """The entry of a list; lists by type have a different type in each."""
    found = _value(annotation, name, size, 1)
    return found.model_copy(update={"type": f"Type{number}"}) if name == "conditions" else found


def optional_fields(model: type[StatusType], at: Path = ()) -> Iterator[Path]:
    """Paths of all fields that need not be there, also inside objects that need not be there."""
    for name, field in model.model_fields.items():
        if not field.is_required():
            yield (*at, name)
        inner = _model_of(field.annotation)
        if inner is not None:
            yield from optional_fields(inner, (*at, name))


def _model_of(annotation: Any) -> type[StatusType] | None:
    """The type of a field that holds one object."""
    for each in (annotation, *typing.get_args(annotation)):
        if isinstance(each, type) and issubclass(each, StatusType):
            return None if typing.get_origin(annotation) is tuple else each
    return None


def without(status: StatusType, path: Path) -> StatusType:
    """The status with the field at `path` as it is where there is nothing to say."""
    name, *rest = path
    if rest:
        inner = without(getattr(status, name), tuple(rest))
    else:
        inner = type(status).model_fields[name].get_default(call_default_factory=True)
    return status.model_copy(update={name: inner})


@pytest.fixture
def objects(user: User) -> dict[Kind, dict[str, Any]]:
    """A sweep and a prediction that no operator looks at."""
    sweep = user.apply_sweep(sweep_manifest("dense", "s3://bucket/sweep"))
    prediction = user.apply_prediction(prediction_manifest("target", "dense"))
    return {SWEEP: sweep, PREDICTION: prediction}


def write(cluster: Cluster, kind: Kind, body: dict[str, Any], status: StatusType) -> None:
    """Write a status as the operator does; the API server must store just that."""
    document = status.document()
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    newest = cluster.get(kind, namespace, name)
    assert newest is not None
    cluster.apply_status(kind, newest["metadata"], document)
    stored = cluster.get(kind, namespace, name)
    assert stored is not None
    if not document["conditions"]:  # a list by key that is empty is none; every pass writes some
        del document["conditions"]
    assert stored["status"] == document


@pytest.mark.parametrize("kind", [SWEEP, PREDICTION], ids=lambda kind: kind.kind)
def test_each_optional_field_of_a_status_can_be_filled_left_out_and_filled_again(
    kind: Kind, cluster: Cluster, objects: dict[Kind, dict[str, Any]]
) -> None:
    full = filled(STATUSES[kind])
    paths = list(optional_fields(STATUSES[kind]))
    assert len(paths) > 20
    for path in paths:
        write(cluster, kind, objects[kind], full)
        write(cluster, kind, objects[kind], without(full, path))


@pytest.mark.parametrize("kind", [SWEEP, PREDICTION], ids=lambda kind: kind.kind)
def test_a_full_status_gives_way_to_an_empty_one_and_to_other_keys_and_lengths(
    kind: Kind, cluster: Cluster, objects: dict[Kind, dict[str, Any]]
) -> None:
    empty, one, two = STATUSES[kind](), filled(STATUSES[kind]), filled(STATUSES[kind], 2)
    for status in (one, two, one, empty, two, empty):
        write(cluster, kind, objects[kind], status)


@pytest.mark.parametrize("kind", [SWEEP, PREDICTION], ids=lambda kind: kind.kind)
def test_a_status_with_every_text_and_list_at_its_bound_is_taken(
    kind: Kind, cluster: Cluster, objects: dict[Kind, dict[str, Any]]
) -> None:
    """Longer texts are cut and say so."""
    full = filled(STATUSES[kind], entries=100, text="ü" * 5000)
    assert full.model_dump()["laws_sha256"] == "ü" * 1023 + "…"
    write(cluster, kind, objects[kind], full)


def test_why_a_status_is_refused_is_written_in_its_place(
    cluster: Cluster, objects: dict[Kind, dict[str, Any]]
) -> None:
    """A status that only a former schema took would be refused again with every report about it."""
    write(cluster, SWEEP, objects[SWEEP], filled(ScalingSweepStatus))
    metadata = objects[SWEEP]["metadata"]
    body = cluster.get(SWEEP, metadata["namespace"], metadata["name"])
    assert body is not None
    status = {**body["status"], "progress": "x" * 2000}
    services: Any = SimpleNamespace(cluster=cluster, settings=Settings(trainer_image="i"))
    owner = Owner(SWEEP, metadata["namespace"], metadata["name"], metadata["uid"])
    key = ResourceKey(SWEEP, owner.namespace, owner.name)
    with (
        pytest.raises(Refused, match="progress"),
        reporting_failures(
            services, Resource(key, owner, {**body, "status": status}, Memory("uid"))
        ),
    ):
        cluster.apply_status(SWEEP, body["metadata"], status)
    stored = cluster.get(SWEEP, metadata["namespace"], metadata["name"])
    assert stored is not None
    ready = conditions(stored)["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "RequestRefused")
    assert "progress" in ready["message"]
