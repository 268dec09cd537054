"""Ledgers of a few points, and their files."""

import gzip
import json
from typing import Any

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointRecord, PointState, Spend
from isoloss_contract.ledger_files import decoded, encoded
from isoloss_contract.records import Claimant, PointProgress
from isoloss_contract.store import Store

UID = "0b6f6b3e-0000-4000-8000-000000000002"


def record(
    number: int, proxy: str = "tiny", batch: int = 8, rate: float = 1e-3, **changes: Any
) -> PointRecord:
    """A point that wants 1M tokens at 6e6 FLOPs each, and has not started."""
    fields: dict[str, Any] = {
        "key": f"{number:032x}",
        "name": f"{proxy}-b{batch}-{number}",
        "proxy": proxy,
        "batch_size": batch,
        "learning_rate": rate,
        "wanted_tokens": 1_000_000,
        "flops_per_token": 6e6,
    }
    return PointRecord(**{**fields, **changes})


def done(number: int, loss: float = 4.0, **changes: Any) -> PointRecord:
    """A point at its end."""
    reached: dict[str, Any] = {
        "state": PointState.SUCCEEDED,
        "tokens": 1_000_000,
        "trained_for": 1_000_000,
        "loss": loss + 0.01,
        "averaged_loss": loss,
        "reached_tokens": 1_000_000,
        "spent": Spend(6e12),
    }
    return record(number, **{**reached, **changes})


def ledger(*points: PointRecord, **changes: Any) -> Ledger:
    """A ledger of a prepared corpus with these points."""
    fields: dict[str, Any] = {
        "sweep": "dense",
        "namespace": "research",
        "uid": UID,
        "data_digest": "a" * 32,
    }
    return Ledger(**{**fields, **changes}, points=points)


def report(of: PointRecord, tokens: int, *, attempt: int = 1, uid: str = UID) -> PointProgress:
    """What a pod that trains the point wrote last."""
    return PointProgress(
        key=of.key,
        claimant=Claimant(sweep_uid=uid, attempt=attempt),
        tokens=tokens,
        wanted_tokens=of.wanted_tokens,
        loss=4.5,
        tokens_per_second=12_000.0,
        updated_at="2026-09-01T12:00:00Z",
    )


def read_back(ledger: Ledger) -> Ledger:
    """The ledger after a way through its file."""
    return decoded(encoded(ledger, epoch=1), "ledger.jsonl.gz")[0]


def write_ledger(store: Store, ledger: Ledger) -> None:
    """Put a ledger where the operator keeps it."""
    folder = layout.sweep_folder(ledger.sweep, ledger.uid)
    store.write(layout.ledger_in(folder), encoded(ledger, epoch=1))


def with_head(content: bytes, **fields: Any) -> bytes:
    """The file of a ledger with these fields in its head; those of None are left out."""
    head, _, points = gzip.decompress(content).partition(b"\n")
    changed = {
        name: value for name, value in (json.loads(head) | fields).items() if value is not None
    }
    return gzip.compress(json.dumps(changed).encode() + b"\n" + points)


def head_of(content: bytes) -> dict[str, Any]:
    """The head in the file of a ledger."""
    return dict(json.loads(gzip.decompress(content).partition(b"\n")[0]))
