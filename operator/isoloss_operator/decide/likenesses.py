"""The spec with a model in place of every likeness to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isoloss_contract.reading import Absent, Newer, Read, Unanswered, Unreadable
from isoloss_contract.store import BadRecord, NotFound, StoreError
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.known_ledgers import sweep_ledger
from isoloss_operator.decide.observation import ObservedSweep
from isoloss_operator.planning.specs import with_derived_proxies


def without_likenesses(observed: ObservedSweep, spec: ScalingSweepSpec) -> ScalingSweepSpec:
    """The spec with its models derived: from the ledger or, if that does not know a model yet, from the checkpoint's
    config.json.

    Raises InvalidSpec if a proxy cannot be derived.
    """
    configs = {uri: _model_config(uri, read) for uri, read in observed.like_configs.items()}
    return with_derived_proxies(spec, configs, sweep_ledger(observed).ledger.derived)


def _model_config(
    checkpoint: str, read: Read[Mapping[str, Any]]
) -> Mapping[str, Any] | StoreError:
    match read:
        case Absent():
            return NotFound(f"{checkpoint}/config.json: not found")
        case Unreadable(message) | Newer(message) | Unanswered(message):
            return BadRecord(message)
        case config:
            return config
