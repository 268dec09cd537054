"""A copy of the status in the store, next to the ledger: users with access to the store only read what kubectl shows."""

from __future__ import annotations

import json
import logging
from typing import Any

from isoloss_contract import layout
from isoloss_contract.store import StoreError, time_limit
from isoloss_operator.api.statuses import StatusType
from isoloss_operator.reconcile.memory import STORE_SECONDS, Folder
from isoloss_operator.reconcile.resource import Resource
from isoloss_operator.reconcile.services import Services

logger = logging.getLogger(__name__)


def copy_status(
    services: Services, resource: Resource, folder: Folder | None, status: StatusType
) -> None:
    """Write the status that the API server has, unless this process has written the same already.

    Without a `folder`, as under an invalid spec or for want of its sweep, it goes where the last one went.

    Nothing is decided by the copy, so a store that does not take it stops nothing: the next pass tries again.
    """
    memory = resource.memory
    folder = memory.status_folder = folder or memory.status_folder
    if folder is None or memory.status_copied == status:
        return
    content, path = _document(resource, status), layout.status_in(folder.path)
    try:
        with time_limit(STORE_SECONDS):
            services.storage.write("status", folder.store_uri, path, content)
    except StoreError as error:
        logger.warning("%s: status not copied to the store: %s", resource.key, error)
    else:
        memory.status_copied = status


def _document(resource: Resource, status: StatusType) -> bytes:
    """As `kubectl get -o json` prints it, without the spec: pod templates may hold what a bucket's readers must not
    see."""
    owner = resource.owner
    document: dict[str, Any] = {
        "apiVersion": owner.kind.api_version,
        "kind": owner.kind.kind,
        "metadata": {
            "name": owner.name,
            "namespace": owner.namespace,
            "uid": owner.uid,
            "generation": resource.generation,
        },
        "status": status.document(),
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
