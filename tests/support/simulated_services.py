"""What the operator's own passes work with over a world in memory: in place of the API server, the store and the fitter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import ABSENT, Read, Unreadable
from isoloss_contract.records import DataManifest, SweepCorpus
from isoloss_contract.store import StoreError, StoreUnavailable
from isoloss_operator.cluster.client import PREDICTION, SWEEP, Refused
from isoloss_operator.cluster.jobs import FORBIDDEN
from isoloss_operator.cluster.live_jobs import LiveJobs
from isoloss_operator.cluster.manifests import config_map_manifest
from isoloss_operator.decide.fits import FitOutcome, FitRequest
from isoloss_operator.decide.plans import (
    ConfigMapRequest,
    JobDeletion,
    JobExpiry,
    JobRequest,
    Quarantine,
)
from isoloss_operator.fitting.fit_jobs import FitJob
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.reconcile.resource import Object
from isoloss_operator.settings import read_settings
from tests.support.builders import UID
from tests.support.ledgers import read_back
from tests.support.published_configs import TOY_CHECKPOINT

if TYPE_CHECKING:
    from tests.support.simulator import Simulator

SETTINGS = read_settings(
    {
        "ISOLOSS_TRAINER_IMAGE": "trainer",
        "ISOLOSS_LEASE_NAMESPACE": "isoloss",
        "ISOLOSS_ALLOWED_STORAGE": json.dumps(
            {"*": ["s3://bucket", "s3://elsewhere", "s3://models"]}
        ),
        # The worlds' time is their own: what is looked for once in so many seconds is looked for in each pass.
        "ISOLOSS_RESYNC_SECONDS": "1e-9",
    }
)
METRICS = Metrics()


def services_of(world: Simulator) -> Any:
    """As Services."""
    jobs, store = _Jobs(world), _Store(world)
    return SimpleNamespace(
        settings=SETTINGS.model_copy(update={"trainer_image": world.operator_image}),
        cluster=_Cluster(world),
        storage=store,
        ledgers=store,
        jobs=jobs,
        job_reader=jobs,
        fitter=_Fitter(world),
        metrics=METRICS,
        watchdog=SimpleNamespace(read=lambda *_: None),
    )


@dataclass(frozen=True)
class _Jobs:
    """JobWriter and JobReader."""

    world: Simulator

    def read(self, _owner: object) -> LiveJobs:
        listed = (job for name, job in self.world.jobs.items() if name not in self.world.recorded)
        return LiveJobs(tuple(listed), tuple(self.world.orphaned), (), {})

    def create(self, _owner: object, requests: Sequence[JobRequest]) -> None:
        for request in requests:
            self.world.may_die()
            self.world.create(request)

    def delete(self, _owner: object, deletions: Iterable[JobDeletion]) -> None:
        self._change(deletions, deleting=True)

    def expire(self, _owner: object, expiries: Iterable[JobExpiry]) -> None:
        for each in expiries:
            self.world.may_die()
            self.world.recorded.add(each.name)

    def _change(self, jobs: Iterable[JobDeletion], **changes: bool) -> None:
        for each in jobs:
            self.world.may_die()
            self.world.jobs[each.name] = replace(self.world.jobs[each.name], **changes)


@dataclass(frozen=True)
class _Store:
    """Ledgers and Storage."""

    world: Simulator

    def read(self, _uri: str, folder: str) -> Read[Ledger]:
        self._answer()
        if (found := self.world.ledger_in(folder)) is not None:
            return found
        if self.world.ledger_is_damaged:
            return Unreadable("ledger.jsonl.gz: not JSON")
        return ABSENT if self.world.ledger is None else self.world.ledger

    def _answer(self) -> None:
        if self.world.store_error:
            raise StoreUnavailable(self.world.store_error)

    def corpus(self, *_: object) -> Read[DataManifest]:
        return self.world.corpus

    def write(self, _uri: str, _folder: str, ledger: Ledger) -> None:
        if self.world.refuses_ledgers:
            raise StoreError("ledger.jsonl.gz: AccessDenied")
        self.world.may_die()
        self.world.ledger = read_back(ledger)

    def sweep_corpus(self, *_: object) -> Read[SweepCorpus]:
        self._answer()
        key = self.world.corpus.prepare_key
        return SweepCorpus(prepare_key=key) if self.world.is_prepared else ABSENT

    def manifest(self, *_: object) -> Read[DataManifest]:
        self._answer()
        return self.world.corpus if self.world.is_prepared else ABSENT

    def point_names(self, *_: object) -> frozenset[str]:
        # The trainer's reports stand in the same folders as the results.
        return frozenset(self.world.results) | frozenset(self.world.progress)

    def results(self, _uri: str, keys: Iterable[str]) -> dict[str, Read[Any]]:
        return {key: self.world.read_result(key) for key in keys}

    def progress(self, _uri: str, keys: Iterable[str]) -> dict[str, Read[Any]]:
        return {key: self.world.progress.get(key, ABSENT) for key in keys}

    def quarantine(self, _uri: str, request: Quarantine) -> None:
        self.world.may_die()
        self.world.quarantine(request.path)

    def fit_outcome(self, *_: object) -> Read[FitOutcome]:
        return self.world.stored_fit

    def laws_are_lost(self, *_: object) -> bool:
        return False

    def page_shows(self, *_: object) -> str:
        return ""

    def anchor(self, uri: str) -> str:
        return uri

    def model_config(self, checkpoint: str) -> Read[dict[str, Any]]:
        return self.world.model_configs.get(checkpoint, TOY_CHECKPOINT)

    def checkpoint_stamp(self, checkpoint: str) -> Read[str]:
        return self.world.stamps.get(checkpoint, ABSENT)

    def evaluation(self, _uri: str, path: str) -> Read[Any]:
        return self.world.evaluations.get(path, ABSENT)

    def courses(self, _uri: str, digests: Mapping[str, str], *, raw: bool) -> dict[str, Any]:
        return dict.fromkeys(digests, self.world.courses)


@dataclass(frozen=True)
class _Fitter:
    """No page is ever drawn."""

    world: Simulator

    def running(self, _uid: str) -> FitRequest | None:
        return self.world.fit_running

    def waits(self, _uid: str) -> bool:
        return False

    def in_backoff(self, _uid: str) -> bool:
        return False

    def outcome(self, uid: str) -> FitOutcome | None:
        return self.world.fit if uid == UID else None

    def remember(self, _uid: str, outcome: FitOutcome) -> None:
        self.world.fit = outcome

    def forget(self, uid: str) -> None:
        if uid == UID:
            self.world.fit = None

    def start(self, uid: str, _key: object, job: FitJob) -> None:
        if uid == UID:
            assert isinstance(job.request, FitRequest)
            self.world.may_die()
            self.world.start_fit(job.request)


class _Cluster:
    """The sweeps and predictions that are referred to, and ConfigMaps."""

    def __init__(self, world: Simulator) -> None:
        self._world = world
        self.clock = self

    def now(self) -> datetime:
        return self._world.now

    def get(self, kind: object, _namespace: str, name: str) -> Object | None:
        if kind is SWEEP:
            return self._world.sweep(name)
        if kind is PREDICTION:
            return self._world.prediction(name)
        if name in self._world.taken:
            return {"metadata": {"name": name, "uid": "of another", "resourceVersion": "1"}}
        return self._config_map(name) if name in self._world.config_maps else None

    def list(self, *_: object, **_options: object) -> list[Object]:
        return [self._config_map(name) for name in self._world.config_maps]

    def _config_map(self, name: str) -> Object:
        request = ConfigMapRequest(name, self._world.config_maps[name])
        body = config_map_manifest(request, self._world.owner)
        return {**body, "metadata": {**body["metadata"], "uid": name, "resourceVersion": "1"}}

    def create(self, _kind: object, _namespace: str, body: Object) -> None:
        self._write(body["metadata"]["name"], body["data"])

    def patch(self, _kind: object, _namespace: str, name: str, change: Object) -> None:
        merged = {**self._world.config_maps[name], **change["data"]}
        self._write(name, {key: value for key, value in merged.items() if value is not None})

    def delete(self, _kind: object, _namespace: str, name: str, _uid: str) -> None:
        self._world.may_die()
        self._world.config_maps.pop(name, None)

    def _write(self, name: str, data: Mapping[str, str]) -> None:
        self._world.may_die()
        if self._world.refuses_config_maps:
            raise Refused("no quota", FORBIDDEN)
        assert name not in self._world.taken, "another's ConfigMap is overwritten"
        self._world.config_maps[name] = data
