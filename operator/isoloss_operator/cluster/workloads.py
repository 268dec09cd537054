"""Kueue's Workloads of our Jobs: why a suspended Job is not admitted, or no longer.

Kueue is optional and its version is not ours to choose: a cluster without it, or that does not let us
read its objects, says nothing, and suspended Jobs are then just waiting.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from isoloss_operator.cluster.client import Cluster, Kind, NotFound, Refused
from isoloss_operator.cluster.observe import condition
from isoloss_operator.decide.observation import ObservedWorkload

GROUP: Final = "kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")
"""Newest first. What is read here is the same in both."""
PLURAL: Final = "workloads"
JOB_UID_LABEL: Final = "kueue.x-k8s.io/job-uid"
"""Kueue puts it on the Workload of a Job."""
_NOT_YET: Final = ("QuotaReserved", "Admitted")
"""Conditions whose message says, while they are False, what a Workload waits for."""

logger = logging.getLogger(__name__)


class WorkloadReader:
    """Reads the Workloads of Jobs. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def of_jobs(self, namespace: str, job_uids: frozenset[str]) -> dict[str, ObservedWorkload]:
        """Workloads keyed by Job uid, for those of `job_uids` that have one. Raises Unavailable."""
        for version in VERSIONS:
            kind = Kind(GROUP, version, PLURAL, "Workload")
            listed = self._cluster.list(kind, namespace, labels=JOB_UID_LABEL)
            try:
                return {
                    uid: observe_workload(each)
                    for each in listed
                    if (uid := (each["metadata"].get("labels") or {}).get(JOB_UID_LABEL, ""))
                    in job_uids
                }
            except NotFound:
                continue
            except Refused as error:
                logger.warning("Kueue's Workloads cannot be read: %s", error)
                return {}
        return {}


def observe_workload(workload: Mapping[str, Any]) -> ObservedWorkload:
    """What decisions need of a Workload."""
    status = workload.get("status") or {}
    evicted = condition(status, "Evicted")
    waits = (found for kind in _NOT_YET if (found := condition(status, kind, "False")))
    return ObservedWorkload(
        name=workload["metadata"]["name"],
        active=(workload.get("spec") or {}).get("active") is not False,
        evicted=(evicted.get("reason") or "Evicted") if evicted else "",
        message=(evicted or next(waits, {})).get("message") or "",
    )
