"""What a trainer leaves in the store: one test for the real one and for the doubles of the operator's tests."""

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from isoloss_contract import layout, records
from isoloss_contract.store import Store, parse_record_lines
from isoloss_trainer.attempt import Fence, Reporter
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.ranks import environment_of
from tests.support.warm_python import WarmPython

REPOSITORY = Path(__file__).parents[2]
TRAINERS = {
    "real": ["-m", "isoloss_trainer"],
    "synthetic": ["-S", str(REPOSITORY / "tests/support/synthetic_trainer.py")],
    "played": ["-m", "tests.faults.fake_kubelet"],
}


@pytest.fixture(params=TRAINERS)
def trained(
    request: pytest.FixtureRequest, prepared: Prepared, tmp_path: Path, python: WarmPython
) -> records.TrainTask:
    """A task that one of the trainers has run."""
    return run(request.param, prepared.train_task(), tmp_path, python)


def run(
    trainer: str, task: records.TrainTask, tmp_path: Path, python: WarmPython
) -> records.TrainTask:
    environment = environment_of(task, tmp_path)
    arguments = [*TRAINERS[trainer], "train"]
    if trainer == "real":
        done = python.run(arguments, environment=environment)
    else:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return task


def test_a_finished_point_has_a_result_that_agrees_with_its_trajectory(
    trained: records.TrainTask,
) -> None:
    store, key = Store(trained.store_uri), trained.point.key
    result = store.read_record(layout.point_result(key), records.PointResult)
    text = store.read(layout.point_trajectory(key))
    rows = parse_record_lines(text, records.TrajectoryRow, "trajectory")
    assert store.read_record(layout.point_config(key), records.PointConfig) == trained.point
    assert (result.key, result.outcome) == (key, records.Outcome.SUCCEEDED)
    assert result.trajectory_sha256 == hashlib.sha256(text).hexdigest()
    assert (result.evaluations, result.tokens, result.steps) == (
        len(rows),
        rows[-1].tokens,
        rows[-1].step,
    )
    assert result.tokens >= result.wanted_tokens == trained.tokens
    assert result.loss is not None
    assert (result.loss, result.averaged_loss) == (rows[-1].loss, rows[-1].averaged_loss)
    assert result.attempts == trained.claimant.attempt
    assert result.versions


def test_evaluations_come_at_the_counts_of_the_contract(trained: records.TrainTask) -> None:
    text = Store(trained.store_uri).read(layout.point_trajectory(trained.point.key))
    rows = parse_record_lines(text, records.TrajectoryRow, "trajectory")
    assert [row.tokens for row in rows] == [512, 1024, 1664, 2048]
    for row in rows:
        assert row.tokens == row.step * trained.point.batch_size * trained.point.sequence_length


KEY = "a" * 32


def reported(
    store: Store, claimant: records.Claimant, began: int, tokens: int
) -> records.PointProgress:
    """What stands in the store after a round of a pod that began and came so far."""
    fence = Fence(store, KEY, claimant)
    fence.acquire()
    task = SimpleNamespace(point=SimpleNamespace(key=KEY), claimant=claimant, tokens=1000)
    world = SimpleNamespace(is_first=True)
    attempt = SimpleNamespace(store=store, task=task, fence=fence, log=None, world=world)
    reporter = Reporter(attempt)  # type: ignore[arg-type]
    reporter.begin(began, ())
    reporter.note(tokens)
    reporter._round()
    fence.release()
    return store.read_record(layout.point_progress(KEY), records.PointProgress)


def test_reports_say_where_the_attempt_began_whichever_of_its_pods_writes_them(
    tmp_path: Path,
) -> None:
    """Kueue evicts a Job and admits it again as the same attempt: the cost of its first pod must not be forgotten."""
    store, first = Store(f"file://{tmp_path}"), records.Claimant(sweep_uid="sweep", attempt=1)
    assert reported(store, first, 0, 400).began_tokens == 0
    assert reported(store, first, 300, 700).began_tokens == 0
    second = records.Claimant(sweep_uid="sweep", attempt=2)
    assert reported(store, second, 600, 800).began_tokens == 600
    store.write(layout.point_progress(KEY), b"{")
    assert reported(store, second, 700, 900).began_tokens == 700
