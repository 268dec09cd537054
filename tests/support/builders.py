"""Small worlds for tests of the pure core: specs, manifests, Jobs, pods, results, observations."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from isoloss_contract import records
from isoloss_contract.ledger import Ledger
from isoloss_contract.reading import timestamp
from isoloss_contract.records import Claimant as _Claimant
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.decide.jobs import job_name, store_label
from isoloss_operator.decide.observation import ObservedJob, ObservedPod, ObservedSweep
from isoloss_operator.decide.plans import SweepPlan
from isoloss_operator.planning.points import PlannedPoint, place_sizes, plan_points, prepare_config
from isoloss_operator.planning.specs import InvalidSpec, parse_sweep_spec
from tests.support.ledgers import read_back
from tests.support.models import two_domains, two_sizes

NOW = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
STORE = "s3://bucket/sweeps"
UID = "0c4a3ab1-0000-4000-8000-000000000001"
VOCABULARY = 1024


def sweep_spec(**changes: Any) -> dict[str, Any]:
    """Two toy sizes, 2 x 2 grid: eight points. `changes` replace top-level fields."""
    spec: dict[str, Any] = {
        "storage": {"uri": STORE, "secretName": "sweep-s3"},
        "data": {
            "tokenizer": f"{STORE}/tokenizer",
            "sequenceLength": 128,
            "domains": two_domains(f"{STORE}/corpus"),
        },
        "proxies": two_sizes(1_000_000),
        "grid": {"batchSizes": [8, 16], "learningRates": ["1e-3", "2e-3"]},
        "evaluation": {"firstTokens": 10_000},
        "parallelism": 3,
        "design": "Unchecked",
    }
    return {**spec, **changes}


def parsed(raw: Mapping[str, Any]) -> ScalingSweepSpec | InvalidSpec:
    """A spec as the shell hands it to the decision."""
    try:
        return parse_sweep_spec(raw)
    except InvalidSpec as error:
        return error


def domain(name: str, **changes: Any) -> records.DomainData:
    """A domain with plenty of tokens."""
    shard = records.HashedShard(
        path=f"{name}/0.bin", tokens=9_000_000, sha256="a" * 64, windows_sha256="b" * 64
    )
    lengths = records.Shard(path=f"{name}/lengths.bin", tokens=90_000, sha256="c" * 64)
    fields: dict[str, Any] = {
        "name": name,
        "training": (shard,),
        "training_documents": 1000,
        "training_tokens": 9_000_000,
        "training_bytes": 36_000_000,
        "validation": records.Shard(path=shard.path, tokens=shard.tokens, sha256=shard.sha256),
        "validation_documents": 50,
        "validation_tokens": 90_000,
        "validation_bytes": 360_000,
        "validation_lengths": lengths,
    }
    return records.DomainData(**{**fields, **changes})


def manifest(spec: Mapping[str, Any] | None = None, **changes: Any) -> records.DataManifest:
    """The tokenised corpus that a spec asks for."""
    config = prepare_config(parse_sweep_spec(spec or sweep_spec()))
    fields: dict[str, Any] = {
        "prepare_key": config.key,
        "digest": "d" * 32,
        "tokenizer_digest": "e" * 32,
        "vocabulary_size": VOCABULARY,
        "end_token": 0,
        "sequence_length": config.sequence_length,
        "domains": tuple(domain(source.name) for source in config.domains),
    }
    return records.DataManifest(**{**fields, **changes})


def placed(raw: Mapping[str, Any]) -> ScalingSweepSpec:
    """A valid spec in which every size has a grid."""
    spec = parse_sweep_spec(raw)
    return place_sizes(spec).spec


def points(spec: Mapping[str, Any] | None = None) -> tuple[PlannedPoint, ...]:
    """The planned points of a spec, with keys."""
    raw = spec or sweep_spec()
    return plan_points(placed(raw), manifest(raw))


def observed(spec: Mapping[str, Any] | None = None, **changes: Any) -> ObservedSweep:
    """A sweep whose corpus is prepared and of which nothing else is known yet."""
    raw = sweep_spec() if spec is None else dict(spec)
    fields: dict[str, Any] = {
        "name": "demo",
        "namespace": "research",
        "uid": UID,
        "generation": 1,
        "now": NOW,
        "spec": parsed(raw),
    }
    if "manifest" not in changes:
        fields["manifest"] = manifest(raw)
    return ObservedSweep(**{**fields, **changes})


def after(world: ObservedSweep, plan: SweepPlan, **changes: Any) -> ObservedSweep:
    """The same sweep once the plan's ledger and status are written; `changes` on top."""
    status = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    ledger = world.ledger if plan.ledger is None else read_back(plan.ledger)
    return replace(world, **{"status": status, "ledger": ledger, **changes})


def job(point: PlannedPoint | str, **changes: Any) -> ObservedJob:
    """An active train Job of a point; a string makes a prepare Job of that key."""
    is_prepare = isinstance(point, str)
    key = point if isinstance(point, str) else point.key
    attempt = changes.get("attempt", 1)
    what = "prepare" if isinstance(point, str) else point.name
    name = job_name("demo", what, [UID, STORE, key], attempt)
    fields: dict[str, Any] = {
        "name": name,
        "uid": f"uid-of-{name}",
        "kind": "prepare" if is_prepare else "train",
        "key": key,
        "attempt": attempt,
        "store": store_label(STORE),
        "created": NOW - timedelta(seconds=100),
        "started": NOW - timedelta(seconds=90),
        "unfinished_pods": 1,
        "pod": ObservedPod(phase="Running"),
    }
    return ObservedJob(**{**fields, **changes})


def complete(point: PlannedPoint | str, **changes: Any) -> ObservedJob:
    """A Job that succeeded; succeeded pods are not observed."""
    return job(point, **{"complete": True, "unfinished_pods": 0, "pod": None, **changes})


def failed(point: PlannedPoint | str, exit_code: int | None = 1, **changes: Any) -> ObservedJob:
    """A Job whose pod ended with an exit code; `pod` fields go by their own names with pod_."""
    pod = {
        name.removeprefix("pod_"): changes.pop(name)
        for name in list(changes)
        if name.startswith("pod_")
    }
    fields: dict[str, Any] = {
        "failed": True,
        "reason": "BackoffLimitExceeded",
        "unfinished_pods": 0,
        "pod": ObservedPod(
            **{"phase": "Failed", "exit_code": exit_code, "reason": "Error", **pod}
        ),
    }
    return job(point, **{**fields, **changes})


def vanished(point: PlannedPoint | str, **changes: Any) -> ObservedJob:
    """A failed Job without its pod."""
    return failed(point, **{"pod": None, **changes})


def words(code: str, message: str, field: str = "") -> str:
    """A termination message as the trainer writes it."""
    return records.TerminationMessage(code=code, message=message, field=field).model_dump_json()


def result(point: PlannedPoint, **changes: Any) -> records.PointResult:
    """A point trained to its tokens."""
    fields: dict[str, Any] = {
        "key": point.key,
        "outcome": records.Outcome.SUCCEEDED,
        "tokens": point.tokens,
        "wanted_tokens": point.proxy.tokens,
        "steps": point.tokens // (point.batch_size * 128),
        "parameters": point.proxy.parameters,
        "bytes_per_token": 4.0,
        "loss": 4.25,
        "averaged_loss": 4.2,
        "trajectory_sha256": hashlib.sha256(point.key.encode()).hexdigest(),
        "evaluations": 20,
        "accelerator_seconds": 60.0,
        "accelerators": 1,
        "micro_batch": 4,
        "attempts": 1,
    }
    return records.PointResult(**{**fields, **changes})


def progress(
    point: PlannedPoint, tokens: int, tokens_per_second: float = 1000.0
) -> records.PointProgress:
    """What a training point reports."""
    return records.PointProgress(
        key=point.key,
        claimant=_Claimant(sweep_uid=UID, attempt=1),
        tokens=tokens,
        wanted_tokens=point.proxy.tokens,
        loss=5.0,
        tokens_per_second=tokens_per_second,
        updated_at="2026-09-01T12:00:00Z",
    )


def stated(
    kind: str, status: str, reason: str, message: str = "", **changes: Any
) -> dict[str, Any]:
    """A condition of a status as the API server has it, since eleven o'clock."""
    when = {"observedGeneration": 1, "lastTransitionTime": timestamp(NOW - timedelta(hours=1))}
    return {
        "type": kind, "status": status, "reason": reason, "message": message, **when, **changes
    }  # fmt: skip


def condition(plan_or_status: Any, kind: str) -> tuple[str, str, str]:
    """(status, reason, message) of a condition."""
    status = getattr(plan_or_status, "status", plan_or_status)
    found = {c.type: c for c in status.conditions}
    return found[kind].status, found[kind].reason, found[kind].message


def names(requests: Sequence[Any]) -> list[str]:
    """Names of Job requests or deletions."""
    return [request.name for request in requests]


def ledger_of(found: Any) -> Ledger:
    """What a plan writes, or a world has stored; fails where there is none."""
    assert isinstance(found.ledger, Ledger)
    return found.ledger
