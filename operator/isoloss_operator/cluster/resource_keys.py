"""Keys of the work queue: which resource to reconcile, not what happened to it."""

import re
from dataclasses import dataclass

from isoloss_operator.cluster.client import PREDICTION, SWEEP, Kind

KINDS = {kind.kind: kind for kind in (SWEEP, PREDICTION)}
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
LONGEST_NAME = 253
LONGEST_OWNER = max(map(len, KINDS)) + 1 + LONGEST_NAME
"""Characters of a text that `owner_key` takes."""


@dataclass(frozen=True)
class ResourceKey:
    """A ScalingSweep or HyperparamPrediction by name. A recreated one has the same key."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}"


def owner_key(namespace: str, owner: str) -> ResourceKey | None:
    """The key of the resource that a Job names as KIND/NAME; None if there can be no such resource.

    Whoever may write Jobs may name anything, and nothing else would ever take such a key from the queue.
    """
    kind, _, name = owner.partition("/")
    if kind not in KINDS or len(name) > LONGEST_NAME or not DNS_NAME.fullmatch(name):
        return None
    return ResourceKey(KINDS[kind], namespace, name)
