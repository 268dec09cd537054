"""A sweep of synthetic runs in a store, as operator and trainer leave it."""

import hashlib
from collections.abc import Sequence

from isoloss.laws import Run
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointRecord, PointState
from isoloss_contract.records import (
    OptimizerConfig,
    Outcome,
    ParameterCounts,
    PointConfig,
    PointResult,
    TrajectoryRow,
)
from isoloss_contract.store import Store
from isoloss_contract.trajectories import write_finished
from tests.support.ledgers import write_ledger
from tests.support.synthetic_runs import synthetic_runs

UID = "0b6f6b3e-0000-4000-8000-000000000001"


def write_sweep(
    store: Store,
    name: str = "dense",
    uid: str = UID,
    digest: str = "a",
    runs: Sequence[Run] | None = None,
) -> Ledger:
    """A sweep of synthetic runs, or of these, as operator and trainer leave it."""
    records = [_write_point(store, run) for run in (synthetic_runs() if runs is None else runs)]
    ledger = Ledger(
        sweep=name, namespace="research", uid=uid, data_digest=digest * 32, points=tuple(records)
    )
    write_ledger(store, ledger)
    return ledger


def _write_point(store: Store, run: Run) -> PointRecord:
    config = PointConfig(
        data_digest="a" * 32,
        mixture={"general": 1.0},
        model={"model_type": "llama", "hidden_size": int(run.params)},
        optimizer=OptimizerConfig(),
        learning_rate=run.learning_rate,
        batch_size=int(run.batch_size),
        sequence_length=run.sequence_length,
        initial_weights="s3://models/dense" if run.started_from == "Checkpoints" else None,
    )
    rows = [
        TrajectoryRow(step=i, tokens=int(tokens), loss=loss + 0.01, averaged_loss=loss)
        for i, (tokens, loss) in enumerate(zip(run.tokens, run.losses.tolist(), strict=True))
    ]
    content = b"".join(row.model_dump_json().encode() + b"\n" for row in rows)
    store.write_record(layout.point_config(config.key), config)
    store.write(layout.point_trajectory(config.key), content)
    state = PointState.DIVERGED if run.diverged else PointState.SUCCEEDED
    if not run.finished:
        state = PointState.PENDING
    else:
        write_finished(store, config.key, content)
        store.write_record(layout.point_result(config.key), _result(config, run, content))
    return PointRecord(
        key=config.key,
        name=run.name,
        proxy=f"n{run.params / 1e6:.0f}m",
        batch_size=int(run.batch_size),
        learning_rate=run.learning_rate,
        wanted_tokens=int(run.tokens[-1]),
        state=state,
        trained_for=0 if state is PointState.PENDING else int(run.tokens[-1]),
    )


def _result(config: PointConfig, run: Run, trajectory: bytes) -> PointResult:
    return PointResult(
        key=config.key,
        outcome=Outcome.DIVERGED if run.diverged else Outcome.SUCCEEDED,
        tokens=int(run.tokens[-1]),
        wanted_tokens=int(run.tokens[-1]),
        steps=100,
        parameters=ParameterCounts(
            body_active=int(run.params), body_total=int(run.params), head=0, embedding=0
        ),
        bytes_per_token=4.2,
        trajectory_sha256=hashlib.sha256(trajectory).hexdigest(),
        evaluations=run.tokens.size,
        accelerator_seconds=1.0,
        accelerators=1,
        micro_batch=1,
        attempts=1,
    )
