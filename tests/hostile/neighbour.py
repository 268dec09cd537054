"""What another tenant sees of the operator while somebody attacks it."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final

import yaml
from kubernetes import client

from isoloss_contract import layout
from isoloss_contract.records import SweepCorpus
from isoloss_contract.store import Store
from isoloss_operator.planning.points import PlannedPoint, plan_points, prepare_config
from isoloss_operator.planning.specs import parse_sweep_spec
from tests.isoloss_operator.conftest import SMALL_POINTS, Place, finished, sweep
from tests.support.builders import manifest
from tests.support.cluster import wait_until
from tests.support.operator_process import PROJECT, OperatorProcess, User, conditions
from tests.support.synthetic_trainer import VOCABULARY, sources_stamp

LEASE: Final = "isoloss-operator"
UNTROUBLED: Final = frozenset(
    {"PreparingData", "Training", "WaitingToRetry", "Fitting", "Fitted", "NotYetKnown", ""}
)
"""Reasons of Ready of a sweep that nobody disturbs. Laws of its eight points are refused for their own reasons, once
every point is done."""
PROMPT_SECONDS: Final = 30.0
"""Far less than a slow store's 45 to 60 seconds a read, and enough for two busy cores."""


def chart_memory_bytes() -> int:
    """The chart's memory limit."""
    values = yaml.safe_load((PROJECT / "helm" / "isoloss" / "values.yaml").read_text())
    text = values["resources"]["limits"]["memory"]
    unit = {"Mi": 2**20, "Gi": 2**30}[text[-2:]]
    return int(float(text[:-2]) * unit)


def prepared(place: Place, name: str, spec: Any, uid: str = "") -> Store:
    """The folder `name` of the bucket as a store, in which the corpus of a sweep is prepared; the sweep with this uid has
    been told so, as its prepare Job would tell it."""
    store = Store(f"file://{place.storage.buckets / place.bucket / name}")
    stamp = sources_stamp(b"")
    corpus = manifest(spec, vocabulary_size=VOCABULARY, sources_stamp=stamp)
    key = prepare_config(parse_sweep_spec(spec)).key
    store.write(layout.data_manifest(key), corpus.model_dump_json().encode())
    if uid:
        reported = SweepCorpus(prepare_key=key, sources_stamp=stamp)
        store.write(layout.corpus_of(key, uid), reported.model_dump_json().encode())
    return store


def planned(spec: Any) -> tuple[PlannedPoint, ...]:
    """The points of a sweep whose corpus has the tests' trainer's vocabulary."""
    return plan_points(parse_sweep_spec(spec), manifest(spec, vocabulary_size=VOCABULARY))


@dataclass
class Neighbour:
    """A sweep of somebody else, watched from before the attack to its end."""

    user: User
    operator: OperatorProcess
    place: Place
    reasons: set[str] = field(default_factory=set)
    """Of its Ready, while points were left to train."""
    renewals: list[datetime] = field(default_factory=list)
    """Of the lease, as seen."""
    holders: set[tuple[str, int]] = field(default_factory=set)
    """Who held the lease, and at which transition."""
    asked: list[str] = field(default_factory=list)
    """Names of the sweeps of `asks_again`."""
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Neighbour:
        """Its sweep trains before anything else begins."""
        self.operator.start()
        self.user.apply_sweep(sweep(self.place, seconds=0.5, parallelism=2))
        wait_until(lambda: self.place.traces.read("start"), "the neighbour's points to train", 120)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        leases = client.CoordinationV1Api(self.user.api_client)
        while not self._over.wait(0.5):
            spec: Any = leases.read_namespaced_lease(LEASE, self.operator.namespaces[0]).spec
            self.holders.add((spec.holder_identity, spec.lease_transitions))
            if spec.renew_time not in self.renewals:
                self.renewals.append(spec.renew_time)
            body = self.user.sweep("dense")
            points = body.get("status", {}).get("points", {})
            if points.get("succeeded", 0) < SMALL_POINTS:
                self.reasons.add(conditions(body).get("Ready", {}).get("reason", ""))

    def asks_again(self) -> None:
        """Another sweep of the same user is answered promptly, whatever goes on."""
        body = sweep(self.place, parallelism=1)
        body["metadata"]["name"] = name = f"again-{len(self.asked)}"
        self.asked.append(name)
        body["spec"]["suspend"] = True
        self.user.apply_sweep(body)
        self.user.wait_for(lambda: self.user.sweep(name), "Suspended", seconds=PROMPT_SECONDS)

    def is_fitted(self, seconds: float = 100) -> None:
        """The fit of its laws has had its turn, and its report is drawn."""
        fits = self.place.folder / layout.SWEEPS

        def is_done() -> bool:
            return any(
                json.loads(path.read_text())["error"] == "" for path in fits.glob("*/fit.json")
            )

        wait_until(is_done, "the neighbour's fit", seconds)

    def judge(self) -> None:
        """Its sweep came to its end, by the same process, which led and was within its limits all the time."""
        assert finished(self.user)["status"]["points"]["succeeded"] == SMALL_POINTS
        assert self.operator.is_running(), self.operator.log.read_text()[-4000:]
        assert self.operator.starts == 1
        assert self.operator.peak_bytes() < chart_memory_bytes()
        assert len(self.holders) == 1, self.holders
        pairs = zip(self.renewals, self.renewals[1:], strict=False)
        longest = max(((b - a).total_seconds() for a, b in pairs), default=0.0)
        assert longest < 15.0, f"the lease was not renewed for {longest} s"
        assert self.reasons <= UNTROUBLED
