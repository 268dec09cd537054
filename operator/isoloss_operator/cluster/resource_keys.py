"""Keys of the work queue: which resource to reconcile, not what happened to it."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_operator.cluster.client import PREDICTION, SWEEP, Kind

KINDS = {kind.kind: kind for kind in (SWEEP, PREDICTION)}


@dataclass(frozen=True)
class ResourceKey:
    """A ScalingSweep or HyperparamPrediction by name. A recreated one has the same key."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}"
