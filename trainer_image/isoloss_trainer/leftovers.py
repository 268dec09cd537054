"""Removes what preparing a corpus leaves beside it, once its manifest is written.

Only what is listed in the units folder is looked at: an earlier manifest, of which pods may still read, was written
before anything there began.
"""

from __future__ import annotations

from collections.abc import Iterator

from isoloss_contract import layout
from isoloss_contract.records import DataManifest, DomainData
from isoloss_contract.store import Store
from isoloss_trainer.log import Log
from isoloss_trainer.shards import windows_path
from isoloss_trainer.units import shard_name, units_folder


def remove_leftovers(store: Store, key: str, manifest: DataManifest, log: Log) -> None:
    """Remove the units, and their shards that the manifest does not name: those of files that were replaced before
    the corpus with this prepare key was complete. What cannot be removed stays, with an event that says why."""
    with log.survived("leftovers-kept", corpus=key):
        for domain in manifest.domains:
            for path in _unnamed_shards(store, key, domain):
                store.remove(path)
        store.remove(units_folder(key))


def _unnamed_shards(store: Store, key: str, domain: DomainData) -> Iterator[str]:
    folder = layout.data_folder(key)
    named = {path for shard in domain.training for path in (shard.path, windows_path(shard.path))}
    units = {name.partition(".")[0] for name in store.names(f"{units_folder(key)}/{domain.name}")}
    begun = tuple(f"{shard_name(domain.name, unit)}-" for unit in units)
    for name in store.names(f"{folder}/{domain.name}") if begun else ():
        path = f"{domain.name}/{name}"
        if path.startswith(begun) and path not in named:
            yield f"{folder}/{path}"
