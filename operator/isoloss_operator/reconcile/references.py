"""Reading another resource, to which a sweep or a prediction refers."""

from __future__ import annotations

from isoloss_contract import layout
from isoloss_contract.reading import Read
from isoloss_operator.cluster.client import PREDICTION, SWEEP
from isoloss_operator.decide.fits import FitOutcome
from isoloss_operator.decide.observation import FirstReads, ObservedAnswer, ObservedReference
from isoloss_operator.planning.specs import parse_prediction_spec, parse_sweep_spec
from isoloss_operator.reconcile.resource import parsed
from isoloss_operator.reconcile.services import Services


def read_reference(services: Services, namespace: str, name: str) -> ObservedReference | None:
    """The sweep of this name; None if there is none."""
    body = services.cluster.get(SWEEP, namespace, name)
    if body is None:
        return None
    metadata = body["metadata"]
    return ObservedReference(
        name=name,
        uid=metadata["uid"],
        generation=metadata["generation"],
        spec=parsed(parse_sweep_spec, body),
        status=body.get("status") or {},
    )


def read_answer(services: Services, namespace: str, name: str) -> ObservedAnswer | None:
    """The prediction of this name; None if there is none."""
    body = services.cluster.get(PREDICTION, namespace, name)
    if body is None:
        return None
    return ObservedAnswer(
        generation=body["metadata"]["generation"],
        spec=parsed(parse_prediction_spec, body),
        status=body.get("status") or {},
    )


def read_laws(
    services: Services, reads: FirstReads, reference: ObservedReference | None
) -> Read[FitOutcome]:
    """The stored laws of a sweep."""
    known = (reference.status.get("lawsSha256") or "") if reference else ""
    return services.storage.fit_outcome(reads.store_uri, layout.laws_in(reads.folder), known)
