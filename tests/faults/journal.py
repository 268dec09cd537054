"""Everything that happened to sweeps, Jobs and pods, as the API server's watches told it, in the order
in which it happened: resource versions of one etcd are comparable over kinds."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from devcluster.kubelet.api import Api, ApiError
from isoloss.laws import RefusalReason
from isoloss_operator.api import GROUP, PREDICTION_PLURAL, SWEEP_PLURAL, VERSION
from isoloss_operator.cluster.observe import JOB_UID_LABEL
from isoloss_operator.decide.observation import LABEL_OWNER_UID
from tests.support.proxy import Loop

Json = dict[str, Any]
PATHS = {
    "Job": "/apis/batch/v1/jobs",
    "Pod": "/api/v1/pods",
    "Sweep": f"/apis/{GROUP}/{VERSION}/{SWEEP_PLURAL}",
    "Prediction": f"/apis/{GROUP}/{VERSION}/{PREDICTION_PLURAL}",
}
TRAIN = {"isoloss.dev/task": "train"}


@dataclass(frozen=True)
class Entry:
    """One change of one object."""

    version: int
    kind: str
    uid: str
    job: str
    """Uid of the Job it is or belongs to."""
    holds: bool
    """Whether it is an unfinished Job, or a pod that has not ended."""
    train: bool
    at: float
    """Seconds of time.monotonic() when the watch told it."""
    owner: str = ""
    """Uid of the sweep or prediction that it trains for."""


class Journal:
    """Watches a control plane from its start to `stop`."""

    def __init__(self, loop: Loop, kubeconfig: Path) -> None:
        self._api = Api(kubeconfig)
        self._entries: defaultdict[str, list[Entry]] = defaultdict(list)
        self._conditions: defaultdict[str, list[Json]] = defaultdict(list)
        self.fitted_at: dict[tuple[str, str], float] = {}
        """When a sweep's status last became final, by namespace and name."""
        self.largest_status: defaultdict[str, int] = defaultdict(int)
        """Bytes of the largest status seen, by namespace."""
        self._loop = loop
        self._task = asyncio.run_coroutine_threadsafe(self._watch_all(), loop.loop)

    def stop(self) -> None:
        """End the watches."""
        self._task.cancel()

    def most_at_once(self, namespace: str) -> dict[str, int]:
        """Most training Jobs of each owner in a namespace, by uid, that held a slot at the same time."""
        by_owner: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in [*self._entries[namespace]]:
            by_owner[entry.owner].append(entry)
        return {owner: most_at_once(entries) for owner, entries in by_owner.items()}

    def said(self, namespace: str) -> list[str]:
        """What a person saw: each reason that a condition reported as trouble, in order."""
        found: dict[str, None] = {}
        for condition in self._conditions[namespace]:
            if is_trouble(condition):
                found[condition["reason"]] = None
        return list(found)

    def _note_fit(self, sweep: tuple[str, str], body: Json) -> None:
        if not is_final(body):
            self.fitted_at.pop(sweep, None)
        else:
            self.fitted_at.setdefault(sweep, time.monotonic())

    def jobs_seen_at(self, namespace: str) -> list[float]:
        """When each training Job was first seen."""
        return _first_at(self._jobs(namespace))

    def jobs_ended_at(self, namespace: str) -> list[float]:
        """When each training Job that has ended was first seen to have."""
        return _first_at(entry for entry in self._jobs(namespace) if not entry.holds)

    def _jobs(self, namespace: str) -> list[Entry]:
        return [e for e in self._entries[namespace] if e.kind == "Job" and e.train]

    async def _watch_all(self) -> None:
        async with self._api:
            await asyncio.gather(*(self._watch(kind) for kind in PATHS))

    async def _watch(self, kind: str) -> None:
        version = "0"
        while True:
            try:
                async for event in self._api.watch(PATHS[kind], version):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._note(kind, event)
            except ApiError:  # the version is too old, or our kinds are not served yet
                version = "0"
                await asyncio.sleep(0.5)
            except (aiohttp.ClientError, ValueError, OSError):
                await asyncio.sleep(0.5)

    def _note(self, kind: str, event: Json) -> None:
        body = event["object"]
        metadata = body["metadata"]
        namespace = metadata["namespace"]
        if kind == "Prediction":
            self._conditions[namespace] += (body.get("status") or {}).get("conditions") or ()
            return
        if kind == "Sweep":
            status = body.get("status") or {}
            self._conditions[namespace] += status.get("conditions") or ()
            size = len(json.dumps(status, separators=(",", ":")))
            self.largest_status[namespace] = max(self.largest_status[namespace], size)
            self._note_fit((namespace, metadata["name"]), body)
            return
        holds = event["type"] != "DELETED" and not _has_ended(kind, body)
        job = metadata["uid"] if kind == "Job" else _job_of(metadata)
        labels = metadata.get("labels") or {}
        train = TRAIN.items() <= labels.items()
        self._entries[namespace].append(
            Entry(
                int(metadata["resourceVersion"]),
                kind,
                metadata["uid"],
                job,
                holds,
                train,
                time.monotonic(),
                labels.get(LABEL_OWNER_UID, ""),
            )
        )


def _first_at(entries: Iterable[Entry]) -> list[float]:
    """When each object was first told of."""
    first: dict[str, float] = {}
    for entry in entries:
        first.setdefault(entry.uid, entry.at)
    return list(first.values())


def most_at_once(entries: Sequence[Entry]) -> int:
    """Most training Jobs that were unfinished, or had a pod that had not ended, at the same time."""
    holding: defaultdict[str, set[str]] = defaultdict(set)
    most = 0
    for entry in sorted(entries, key=lambda entry: entry.version):
        if not entry.train:
            continue
        if entry.holds:
            holding[entry.job].add(entry.uid)
        else:
            holding[entry.job].discard(entry.uid)
        most = max(most, sum(bool(uids) for uids in holding.values()))
    return most


def _job_of(pod: Json) -> str:
    """By label: a pod whose Job was deleted without it has no owner any more."""
    return str((pod.get("labels") or {}).get(JOB_UID_LABEL) or pod["uid"])


def _has_ended(kind: str, body: Json) -> bool:
    status = body.get("status") or {}
    if kind == "Pod":
        return status.get("phase") in ("Succeeded", "Failed")
    conditions = status.get("conditions") or ()
    ended = any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions
    )
    return ended or bool(body["spec"].get("suspend"))


REFUSALS = set(RefusalReason.__members__.values())
ORDINARY = {
    "NotYetKnown",
    "PreparingData",
    "Training",
    "Searching",
    "Fitting",
    "Provisional",
    "NoResults",
    "Fitted",
    "Converging",
    "UpToDate",
    "NothingWrong",
    "NotSuspended",
    "DataPrepared",
    "Accepted",
    "Finished",
    "Evaluating",
    "Evaluated",
    "Predicted",
    "UpToDateWithSweep",
    "AnswerAwaited",
    "AnswerHolds",
    "NothingToFit",
    "PredictionNotReady",
    "SweepNotReady",
}
"""Reasons that an undisturbed sweep or prediction shows on its way."""


def is_trouble(condition: Json) -> bool:
    """Whether a condition tells of something that an undisturbed sweep does not tell.

    A refusal of the laws is none: while few points are done, the provisional laws may be refused.
    """
    return condition["reason"] not in ORDINARY | REFUSALS


def is_final(sweep: Json) -> bool:
    """Whether all points have their outcome and the laws, or their refusal, are those of all points."""
    reasons = {kind: each["reason"] for kind, each in _present(sweep).items()}
    return has_finished(sweep) and reasons.get("FitReady") in REFUSALS | {"Fitted"}


def has_finished(sweep: Json) -> bool:
    """Whether all points have their outcome and nothing is left to do, laws or none."""
    reasons = {kind: each["reason"] for kind, each in _present(sweep).items()}
    return reasons.get("Progressing") == "Finished" and reasons.get("Reconciling") == "UpToDate"


def is_judged(prediction: Json) -> bool:
    """Whether the answer of a prediction is that of its sweep's present laws, and is judged."""
    statuses = {kind: each["status"] for kind, each in _present(prediction).items()}
    wanted = {"Ready": "True", "Stale": "False", "Reconciling": "False"}
    return wanted.items() <= statuses.items() and statuses.get("Validated") in ("True", "False")


def _present(body: Json) -> dict[str, Json]:
    """The conditions of the present spec, by type."""
    generation = body["metadata"]["generation"]
    conditions = (body.get("status") or {}).get("conditions") or ()
    return {
        each["type"]: each for each in conditions if each.get("observedGeneration") == generation
    }
