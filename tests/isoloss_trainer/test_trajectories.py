"""Two sweeps that want different numbers of tokens of one point: each keeps the trajectory it has seen."""

import hashlib
import uuid

import pytest

from isoloss.stored_sweeps import open_sweep, sweep_runs
from isoloss_contract import layout
from isoloss_contract.ledger import Ledger, PointRecord, PointState
from isoloss_contract.records import PointResult, TrainTask
from isoloss_contract.store import BadRecord, Store
from isoloss_contract.trajectories import read_finished
from isoloss_trainer.termination import Interrupted
from tests.isoloss_trainer.builders import stop_during_step
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.trained import run
from tests.support.ledgers import write_ledger

SHORT_TOKENS, LONG_TOKENS = 1300, 2048
"""The first is no scheduled evaluation: its run ends with a row that the longer one lacks."""


def write_sweep(store: Store, task: TrainTask, result: PointResult, name: str) -> None:
    """The ledger of a sweep that recorded this result of its point."""
    record = PointRecord(
        key=task.point.key,
        name="tiny-b2-lr1e-3",
        proxy="tiny",
        batch_size=task.point.batch_size,
        learning_rate=task.point.learning_rate,
        wanted_tokens=task.tokens,
        state=PointState.SUCCEEDED,
        trained_for=task.tokens,
        tokens=result.tokens,
        trajectory_sha256=result.trajectory_sha256,
    )
    uid = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
    ledger = Ledger(
        sweep=name, namespace="research", uid=uid, data_digest="a" * 32, points=(record,)
    )
    write_ledger(store, ledger)


def test_a_longer_run_changes_nothing_of_what_a_shorter_ones_reader_sees(
    prepared: Prepared,
) -> None:
    store = prepared.store
    short = prepared.train_task(tokens=SHORT_TOKENS)
    first = run(short)
    write_sweep(store, short, first, "short")
    before = sweep_runs(open_sweep(f"{store.uri}/sweeps/short")).runs
    long = prepared.train_task(tokens=LONG_TOKENS)
    second = run(long)
    write_sweep(store, long, second, "long")

    assert first.trajectory_sha256 != second.trajectory_sha256
    assert first.tokens == 1408
    rows = read_finished(store, short.point.key, first.trajectory_sha256)
    longer = read_finished(store, long.point.key, second.trajectory_sha256)
    assert [row.tokens for row in rows] == [512, 1024, 1408]
    assert [row.tokens for row in longer] == [512, 1024, 1664, 2048]
    assert rows[:2] == longer[:2]
    after = sweep_runs(open_sweep(f"{store.uri}/sweeps/short"))
    assert after.warnings == ()
    assert [run.tokens.tolist() for run in after.runs] == [[1408.0]]  # after the warm-up
    assert after.runs[0].losses.tolist() == before[0].losses.tolist()
    (other,) = sweep_runs(open_sweep(f"{store.uri}/sweeps/long")).runs
    assert other.tokens.tolist() == [1664.0, 2048.0]


def test_while_the_longer_run_lasts_the_shorter_ones_reader_sees_its_own_rows(
    prepared: Prepared,
) -> None:
    short = prepared.train_task(tokens=SHORT_TOKENS)
    first = run(short)
    long = prepared.train_task(tokens=LONG_TOKENS)
    with stop_during_step(3) as interruption, pytest.raises(Interrupted):
        run(long, interruption)
    rows = read_finished(prepared.store, short.point.key, first.trajectory_sha256)
    assert rows[-1].tokens == first.tokens


def test_a_changed_trajectory_is_refused(prepared: Prepared) -> None:
    store = prepared.store
    task = prepared.train_task(tokens=512)
    result, key = run(task), task.point.key
    path = layout.finished_trajectory(key, result.trajectory_sha256)
    assert hashlib.sha256(store.read(path)).hexdigest() == result.trajectory_sha256
    store.write(path, store.read(path)[:-10])
    with pytest.raises(BadRecord, match="changed or truncated"):
        read_finished(store, key, result.trajectory_sha256)
