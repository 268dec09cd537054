"""Traces and memory snapshots of chosen steps: where they go, and that they change nothing."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isoloss_contract import layout
from isoloss_contract.records import TrainTask
from isoloss_contract.store import Store
from isoloss_trainer.log import Log
from isoloss_trainer.profiling import MEMORY_VARIABLE, TRACE_VARIABLE, memory_snapshot, steps_of
from isoloss_trainer.termination import BadConfiguration, Interruption
from isoloss_trainer.train import train
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import train_task
from tests.isoloss_trainer.conftest import Prepared
from tests.support.pages import CHECKOUT
from tests.support.walk import Walk


@pytest.mark.parametrize(
    ("text", "steps"), [("", None), (" ", None), ("20", (20, 20)), ("20-22", (20, 22))]
)
def test_steps_are_one_or_a_range(
    text: str, steps: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACE_VARIABLE, text)
    assert steps_of(TRACE_VARIABLE) == steps


@pytest.mark.parametrize("text", ["0", "5-3", "first", "1-2-3", "-4"])
def test_steps_that_are_none_are_refused_by_the_variables_name(
    text: str, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACE_VARIABLE, text)
    with pytest.raises(BadConfiguration, match=TRACE_VARIABLE):
        run(train_task(prepared.manifest, prepared.uri), tmp_path)


def run(task: TrainTask, scratch: Path) -> list[dict[str, Any]]:
    """The events of a run."""
    stream = io.StringIO()
    train(task, scratch, Interruption(), Log(stream))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def trajectory(task: TrainTask) -> bytes:
    return Store(task.store_uri).read(layout.point_trajectory(task.point.key))


def recordings(prepared: Prepared, task: TrainTask) -> list[str]:
    folder = prepared.folder / layout.point_recordings(task.point.key)
    return sorted(path.name for path in folder.glob("*"))


def test_a_trace_of_the_steps_is_in_the_points_folder_and_the_run_is_the_same(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = train_task(prepared.manifest, prepared.uri, tokens=1024)
    run(task, tmp_path)
    without = trajectory(task)
    assert recordings(prepared, task) == []
    Store(task.store_uri).remove(layout.point_folder(task.point.key))
    monkeypatch.setenv(TRACE_VARIABLE, "3-4")
    events = run(task, tmp_path)
    assert trajectory(task) == without
    assert recordings(prepared, task) == ["attempt-1-steps-3-4.trace.json.gz"]
    (written,) = [event["written"] for event in events if event["event"] == "recording"]
    content = gzip.decompress(Path(written.removeprefix("file://")).read_bytes())
    kernels = [found.get("name") for found in json.loads(content)["traceEvents"]]
    assert kernels.count("aten::_fused_adamw_") == 2, "one for each of two steps"


def test_a_run_that_ends_before_the_last_of_the_steps_writes_those_that_it_made(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = train_task(prepared.manifest, prepared.uri, tokens=1024)
    monkeypatch.setenv(TRACE_VARIABLE, "7-100")
    run(task, tmp_path)
    assert recordings(prepared, task) == ["attempt-1-steps-7-8.trace.json.gz"]


def test_a_memory_snapshot_on_a_cpu_is_said_once_and_changes_nothing(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "2-4")
    events = run(train_task(prepared.manifest, prepared.uri, tokens=1024), tmp_path)
    (failed,) = [event for event in events if event["event"] == "recording-failed"]
    assert "CUDA" in failed["reason"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_memory_snapshot_names_allocations(tmp_path: Path) -> None:
    file = tmp_path / "found.memory.pickle.gz"
    with memory_snapshot(file, World(device="cuda:0")):
        torch.empty(1000, device="cuda")
    assert gzip.decompress(file.read_bytes())


def test_the_command_of_the_page_about_debugging_leaves_the_trace_that_it_names(
    prepared: Prepared, tmp_path: Path
) -> None:
    task = train_task(prepared.manifest, prepared.uri, tokens=3072)
    (tmp_path / "train.json").write_text(task.model_dump_json())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    walk = Walk(tmp_path, {**os.environ, "PATH": path})
    walk.open(CHECKOUT / "docs" / "guides" / "debug-the-trainer.md", "ISOLOSS_TRACE_STEPS")
    walk.step("ISOLOSS_TRACE_STEPS=20-22 isoloss-trainer train --task train.json")
    assert walk.left == []
    assert recordings(prepared, task) == ["attempt-1-steps-20-22.trace.json.gz"]
