"""The process: exit codes, termination messages, signals; real processes, killed at random moments."""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from isoloss_contract import layout, records
from isoloss_trainer import model
from isoloss_trainer.__main__ import ALLOCATOR, main
from isoloss_trainer.learner import Learner
from isoloss_trainer.log import Log
from isoloss_trainer.termination import Interruption, write_message
from isoloss_trainer.train import train
from tests.isoloss_trainer.builders import DEEPSEEK, prepare_task, quiet, uri
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.ranks import environment_of
from tests.support.warm_python import WarmProcess, WarmPython


@pytest.fixture
def termination_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination"
    monkeypatch.setenv("ISOLOSS_TERMINATION_LOG", str(path))
    return path


def call(task: object, command: str, tmp_path: Path) -> int:
    file = tmp_path / "task.json"
    file.write_text(task if isinstance(task, str) else task.model_dump_json())  # type: ignore[attr-defined]
    return main([command, "--task", str(file)])


def test_success_is_zero_with_a_summary(
    corpus: Path, tmp_path: Path, termination_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(prepare_task(uri(corpus), uri(tmp_path)), "prepare", tmp_path) == 0
    words = records.TerminationMessage.model_validate_json(termination_file.read_text())
    assert words.code == "Succeeded"
    assert "prose" in words.message
    for line in capsys.readouterr().out.splitlines():
        assert json.loads(line)["event"]


@pytest.mark.parametrize("given", [None, "max_split_size_mb:128"])
def test_allocations_grow_in_place_unless_the_pod_says_otherwise(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """As where speed and memory are measured (benchmarks/bench_trainer.py)."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", given or "")
    if given is None:
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    assert call(prepare_task(uri(corpus), uri(tmp_path)), "prepare", tmp_path) == 0
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == (given or ALLOCATOR)


@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("{", "prepare"),
        ('{"kind": "prepare"}', "prepare"),
        ('{"kind": "train", "tokens": "many"}', "prepare"),
        (None, "train"),
    ],
    ids=["no JSON", "no config", "no number", "another kind"],
)
def test_a_bad_task_is_a_bad_configuration(
    task: str | None, command: str, corpus: Path, tmp_path: Path, termination_file: Path
) -> None:
    of_prepare = prepare_task(uri(corpus), uri(tmp_path))
    assert call(task or of_prepare, command, tmp_path) == records.ExitCode.BAD_CONFIGURATION
    said = records.TerminationMessage.model_validate_json(termination_file.read_text())
    assert said.code == "BadTask"
    ending = f" (isoloss {version('isoloss')})" if task else "the task is of kind prepare"
    assert said.message.endswith(ending)


def test_what_is_missing_is_named(
    corpus: Path, tmp_path: Path, termination_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISOLOSS_TASK", raising=False)
    assert main(["prepare"]) == records.ExitCode.BAD_CONFIGURATION
    task = prepare_task(uri(corpus), uri(tmp_path), tokenizer="file:///nowhere")
    assert call(task, "prepare", tmp_path) == records.ExitCode.BAD_DATA
    words = records.TerminationMessage.model_validate_json(termination_file.read_text())
    assert (words.code, words.field) == ("TokenizerNotLoadable", "tokenizer")


def test_a_result_of_a_newer_contract_ends_the_task_and_stays(
    prepared: Prepared, tmp_path: Path, termination_file: Path
) -> None:
    task = prepared.train_task()
    store, path = prepared.store, layout.point_result(task.point.key)
    newer = b'{"contract_version": 2, "losses": []}'
    store.write(path, newer)
    assert call(task, "train", tmp_path) == records.ExitCode.BAD_CONFIGURATION
    said = records.TerminationMessage.model_validate_json(termination_file.read_bytes())
    assert said.code == "NewerRecord"
    assert "contract version 2" in said.message
    assert store.read(path) == newer


@pytest.mark.parametrize(
    "phase",
    [(Learner, "__init__"), (Learner, "on_host"), (Learner, "copied"), (model, "build_network")],
)
def test_memory_refused_outside_a_step_is_out_of_memory(
    prepared: Prepared,
    tmp_path: Path,
    termination_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: tuple[object, str],
) -> None:
    """While a run is built, finds room for its state in the host's memory, and copies it there."""

    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(*phase, refuse)
    code = call(prepared.train_task(), "train", tmp_path)
    assert code == records.ExitCode.OUT_OF_MEMORY
    words = records.TerminationMessage.model_validate_json(termination_file.read_text())
    assert words.code == "OutOfMemory"
    assert "2.00 GiB" in words.message


def test_a_termination_message_of_any_length_fits(termination_file: Path) -> None:
    write_message(records.TerminationMessage(code="X", message="ä\n" * 2000))
    content = termination_file.read_bytes()
    assert len(content) <= records.MAX_TERMINATION_BYTES
    assert records.TerminationMessage.model_validate_json(content).message


def test_a_message_that_cannot_be_written_changes_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISOLOSS_TERMINATION_LOG", str(tmp_path / "nowhere" / "message"))
    assert call("{", "prepare", tmp_path) == records.ExitCode.BAD_CONFIGURATION
    logged = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in logged] == ["end", "message-not-written"]
    assert "nowhere" in logged[-1]["reason"]


def test_a_terminal_gets_a_progress_bar_and_other_streams_json(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        log = Log(stream)
        log._terminal = True
        log.progress("train", 50, 100, loss=3.14159)
    assert "50.0%" in (tmp_path / "log").read_text()
    assert "loss 3.142" in (tmp_path / "log").read_text()


# ------------------------------------------------------------------------------- real processes


COMMAND = ("-m", "isoloss_trainer", "train")
HASTY = """
import sys
from isoloss_trainer import run
from isoloss_trainer.__main__ import main
run.Saving.save_if_due = lambda saving, state: saving.checkpoints.is_writing or saving.save(state)
sys.exit(main(["train"]))
"""
"""The same with a checkpoint as soon as the one before is written: a task has one a second at most."""


def start(
    python: WarmPython, task: records.TrainTask, folder: Path, arguments: Sequence[str] = COMMAND
) -> WarmProcess:
    environment = environment_of(task, folder)
    with (folder / "output").open("ab") as output:
        return python.start(arguments, environment=environment, output=output)


def wait_for_checkpoint(store: Path, more_than: int, process: WarmProcess) -> None:
    """Wait until there are checkpoints with a step above `more_than`, or the process ended."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        steps = [
            int(p.parent.name[5:]) for p in store.glob("points/*/checkpoints/*/manifest.json")
        ]
        if max(steps, default=0) > more_than:
            return
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_at_a_random_step_a_run_ends_with_the_same_bytes(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    """Killed soon after one of its checkpoints, of which many are being written."""
    task = prepared.train_task(
        tokens=16_000,
        model=DEEPSEEK,
        evaluation=records.EvaluationConfig(
            first_tokens=512, per_decade=8, sequences_per_domain=8
        ),
    )
    process, chance = start(python, task, tmp_path, ["-c", HASTY]), random.Random()
    wait_for_checkpoint(prepared.folder, chance.randrange(60), process)
    time.sleep(chance.random() / 10)
    process.send_signal(signal.SIGKILL)
    if process.wait(60) not in (-signal.SIGKILL, records.ExitCode.SUCCEEDED):
        pytest.fail((tmp_path / "output").read_text()[-3000:])
    later = {"claimant": records.Claimant(sweep_uid="sweep", attempt=2)}
    train(task.model_copy(update=later), tmp_path, Interruption(), quiet())
    store = prepared.store
    killed = store.read(layout.point_trajectory(task.point.key))
    store.remove(layout.point_folder(task.point.key))
    train(task, tmp_path, Interruption(), quiet())
    assert store.read(layout.point_trajectory(task.point.key)) == killed


@pytest.mark.slow
def test_a_stop_during_start_up_is_an_interruption(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    process = start(python, prepared.train_task(tokens=10**6), tmp_path)
    config = prepared.folder / layout.point_config(prepared.train_task(tokens=10**6).point.key)
    deadline = time.monotonic() + 60
    while not config.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == records.ExitCode.INTERRUPTED
    words = records.TerminationMessage.model_validate_json((tmp_path / "message").read_text())
    assert words.code == "Interrupted"


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "debug-the-trainer.md"


@pytest.mark.slow
def test_the_script_traces_the_steps_that_it_names(prepared: Prepared, tmp_path: Path) -> None:
    """With the variable of the page's first command, which torch accepts."""
    script = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert script is not None
    (tmp_path / "traced.py").write_text(script[1])
    task = prepared.train_task(tokens=24 * 128)
    assert task.tokens // (task.point.batch_size * task.point.sequence_length) >= 22
    (tmp_path / "train.json").write_text(task.model_dump_json())
    done = subprocess.run(
        [sys.executable, "traced.py", "train", "--task", "train.json"],
        cwd=tmp_path,
        env={**os.environ, "TORCH_LOGS": "recompiles"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    steps = {event["name"] for event in trace["traceEvents"] if "ProfilerStep" in event["name"]}
    assert len(steps) == 3
