"""Several processes that SIGTERM stops at random moments end with the very bits of an undisturbed run."""

import json
import os
import random
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from isoloss_contract import layout
from isoloss_contract.records import (
    EvaluationConfig,
    ExitCode,
    PointResult,
    TrainTask,
)
from isoloss_contract.store import Store, StoreRefused
from isoloss_trainer.checkpoint import CheckpointManifest, persist
from tests.isoloss_trainer.builders import DEEPSEEK, LLAMA, last_state
from tests.isoloss_trainer.conftest import Prepared
from tests.support.warm_python import WarmProcess, WarmPython

SEED = 7
"""Of the moments: shares of the time that the undisturbed run took."""
OF_THE_ATTEMPTS = {"attempts", "accelerator_seconds"}
"""All that tells a run that was stopped from one that was not."""


class Attempts:
    """Runs the trainer in several processes, with everything it logs in one file."""

    def __init__(self, python: WarmPython, task: TrainTask, processes: int, folder: Path) -> None:
        self._python = python
        self._task, self._processes, self._folder = task, processes, folder
        self._output = folder / "output"

    def start(self) -> WarmProcess:
        environment = {
            **os.environ,
            "ISOLOSS_TASK": self._task.model_dump_json(),
            "ISOLOSS_SCRATCH": str(self._folder / "scratch"),
            "ISOLOSS_PROCESSES": str(self._processes),
        }
        arguments = ["-m", "isoloss_trainer", "train"]
        with self._output.open("ab") as output:
            return self._python.start(arguments, environment=environment, output=output)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What the log has of these events so far."""
        lines = self._output.read_text().splitlines() if self._output.exists() else []
        found = [json.loads(line) for line in lines if line.startswith('{"time"')]
        return [event for event in found if event["event"] in names]

    def finish(self) -> float:
        """Run to the end; returns the seconds from the first step on."""
        assert self.start().wait(300) == 0, self._output.read_text()[-3000:]
        first, last = self.events("start", "resume")[-1], self.events("end")[-1]
        times = [datetime.fromisoformat(event["time"]) for event in (first, last)]
        return (times[1] - times[0]).total_seconds()

    def stop_after(self, seconds: float) -> None:
        """Start, and send SIGTERM `seconds` after training began."""
        before = len(self.events("start", "resume"))
        process = self.start()
        while process.poll() is None and len(self.events("start", "resume")) == before:
            time.sleep(0.02)
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        code = process.wait(300)
        assert code in (ExitCode.INTERRUPTED, 0), self._output.read_text()[-3000:]


def everything(store: Store, key: str) -> dict[str, Any]:
    """What a finished point leaves: its trajectory, its result, and the last state with the SHA-256 of
    weights, average and moments."""
    folder = layout.point_checkpoints(key)
    newest = f"{folder}/{store.names(folder)[-1]}/manifest.json"
    manifest = store.read_record(newest, CheckpointManifest)
    state = last_state(store, key)
    parts = {name.partition(".")[0] for name in state}
    assert {"weights", "averaged_weights", "first_moment", "second_moment"} < parts
    result = store.read_record(layout.point_result(key), PointResult)
    return {
        "trajectory": store.read(layout.point_trajectory(key)),
        "result": result.model_dump(exclude=OF_THE_ATTEMPTS),
        "state": manifest.state.model_dump(exclude=OF_THE_ATTEMPTS),
        "tensors": state,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "model", "stops", "tokens"),
    [
        pytest.param(2, DEEPSEEK, 2, 4_000, id="2, MoE"),
        pytest.param(2, DEEPSEEK, 3, 8_000, id="2, MoE, thrice", marks=pytest.mark.whole),
        pytest.param(4, LLAMA, 2, 8_000, id="4, dense", marks=pytest.mark.whole),
    ],
)
def test_a_run_that_is_stopped_again_and_again_ends_with_the_bits_of_an_undisturbed_one(
    prepared: Prepared,
    tmp_path: Path,
    python: WarmPython,
    processes: int,
    model: dict[str, Any],
    stops: int,
    tokens: int,
) -> None:
    task = prepared.train_task(
        tokens=tokens,
        model=model,
        evaluation=EvaluationConfig(first_tokens=512, per_decade=8, sequences_per_domain=8),
        task={"checkpoint_seconds": 1},
    )
    store, attempts = prepared.store, Attempts(python, task, processes, tmp_path)
    seconds = attempts.finish()
    undisturbed = everything(store, task.point.key)
    store.remove(layout.point_folder(task.point.key))
    moments = random.Random(SEED)
    for _ in range(stops):
        attempts.stop_after(moments.uniform(0.1, 0.9) * seconds / stops)
    attempts.finish()
    assert attempts.events("resume"), "no stop came between two steps"
    assert everything(store, task.point.key) == undisturbed


def test_a_write_that_the_store_refuses_is_not_repeated() -> None:
    """Waiting for five minutes would only delay what the user has to read."""
    writes = []

    def denied() -> None:
        writes.append(1)
        raise StoreRefused("s3://lab/a: access denied")

    with pytest.raises(StoreRefused, match="access denied"):
        persist(denied)
    assert writes == [1]
