"""Several processes: whom the launcher waits for, which exit code it reports, and that they agree."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

import isoloss_trainer.launch as launch
import isoloss_trainer.world as world
from isoloss_contract import layout
from isoloss_contract.records import (
    SCRATCH_VARIABLE,
    EvaluationConfig,
    ExitCode,
    Outcome,
    TerminationMessage,
    TrainTask,
)
from isoloss_trainer.launch import scratch_folder
from isoloss_trainer.termination import BadConfiguration, Interruption
from tests.isoloss_trainer.builders import DEEPSEEK, last_state, quiet
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.ranks import environment_of, run_ranks
from tests.support.warm_python import WarmPython

CHILD = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
end = time.monotonic() + 20
print("ready", flush=True)
while not asked and time.monotonic() < end:
    time.sleep(0.01)
time.sleep({seconds})
sys.exit({code})
"""


def child(code: int, seconds: float = 0.0) -> subprocess.Popen[bytes]:
    """A process that exits with `code`, `seconds` after SIGTERM."""
    script = CHILD.format(code=code, seconds=seconds)
    process = subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def dead(code: int) -> subprocess.Popen[bytes]:
    """A process that has ended by itself; a negative code: by that signal."""
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    process = subprocess.Popen([sys.executable, "-S", "-c", f"import os, sys; {end}"])
    process.wait()
    return process


OVER = launch.START_OVER


@pytest.mark.parametrize(
    ("start", "stop", "code"),
    [
        # Rank 0 may take its time to save, and is not said to have saved where that fails.
        pytest.param(lambda: [child(75, 1.5), child(75), child(75)], True, 75, id="saves"),
        pytest.param(lambda: [child(74, 0.5), child(75)], True, ExitCode.STORAGE, id="does not"),
        # One that dies ends the others after a grace period.
        pytest.param(lambda: [child(0), dead(44)], False, 44, id="dies"),
        pytest.param(lambda: [child(0), dead(-signal.SIGKILL)], False, 137, id="is killed"),
        pytest.param(lambda: [dead(75), child(0)], False, ExitCode.INTERRUPTED, id="is stopped"),
        # Others wait for what will not come.
        pytest.param(lambda: [child(0), dead(OVER)], False, OVER, id="starts over"),
        pytest.param(lambda: [dead(0), dead(OVER)], False, OVER, id="starts over, the last"),
    ],
)
def test_the_launcher_waits_for_whom_the_others_need(
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[], list[subprocess.Popen[bytes]]],
    stop: bool,
    code: int,
) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.3)
    interruption, children = Interruption(), start()
    interruption.requested = stop
    try:
        assert launch._wait(children, interruption) == code
        assert children[0].returncode == code or not stop, "it was killed"
    finally:
        for process in children:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("codes", "stopping", "code"),
    [
        ([0, 0], False, 0),
        ([42, 0], False, 42),
        ([1, -9], False, 137),
        ([1, 0], False, 1),
        ([None, 44], False, 44),
        ([-15, -15], True, 75),
        ([-9, 75], True, 137),
        ([-15, 0], False, 143),
        ([1, 45], False, 45),
        ([None, 0, 44], False, 44),
        ([0, 46], False, 0),
    ],
)
def test_exit_codes(codes: list[int | None], stopping: bool, code: int) -> None:
    assert launch._exit_code(codes, stopping=stopping) == code


@pytest.mark.parametrize(
    ("variable", "devices", "count"),
    [
        (None, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2),
        (None, ["null"], 0),
        ("", ["nvidia0"], 0),
        ("-1", ["nvidia0"], 0),
        ("0,2", ["nvidia0", "nvidia1", "nvidia2"], 2),
    ],
)
def test_accelerators_are_counted_and_never_silently_replaced_by_the_cpu(
    variable: str | None,
    devices: list[str],
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a driver that is too old for torch's CUDA."""
    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.setattr(world, "DEVICES", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert world.visible_accelerators() == count
    if count == 0:
        assert world.World().joined().on_cpu
        return
    too_old = "The NVIDIA driver on your system is too old (found version 12020)"

    def refuse() -> None:
        raise RuntimeError(too_old)

    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(BadConfiguration, match=re.escape(too_old) + ".*CUDA_VISIBLE_DEVICES"):
        world.World().joined()


# ------------------------------------------------------------------------------- real processes


RANK_1 = """
import os, sys
import isoloss_trainer.checkpoint as checkpoint
from isoloss_trainer.__main__ import main
if os.environ["RANK"] == "1":
    {patch}
sys.exit(main(["train"]))
"""
NO_READING = "checkpoint.Checkpoints._described = lambda *_: 1 / 0"
NO_MEMORY = """
import os, sys
import isoloss_trainer.model as model
from isoloss_trainer.__main__ import main
original = model.LanguageModel.hidden
def hidden(self, inputs):
    if os.environ["RANK"] == "1" and len(inputs) > {most}:
        raise RuntimeError("CUDA error: out of memory")
    return original(self, inputs)
model.LanguageModel.hidden = hidden
sys.argv = ["isoloss_trainer", "train"]
sys.exit(main(["train"]))
"""


NO_SHARD = """
import os, sys
import isoloss_trainer.shards as shards
from isoloss_trainer.__main__ import main
from isoloss_trainer.termination import BadData
original = shards.TrainingSequences.read
def read(self, first, count):
    if os.environ["RANK"] == "1" and first > 0:
        raise BadData("ShardCorrupt", "training-00003 differs from its SHA-256", "data")
    return original(self, first, count)
shards.TrainingSequences.read = read
sys.argv = ["isoloss_trainer", "train"]
sys.exit(main(["train"]))
"""


def evaluated_once(prepared: Prepared) -> TrainTask:
    """A short run whose one evaluation reads a sequence of each domain."""
    evaluation = EvaluationConfig(first_tokens=512, sequences_per_domain=1)
    return prepared.train_task(tokens=512, evaluation=evaluation)


def train_with(
    python: WarmPython, task: TrainTask, patch: str, folder: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Two processes, `patch` in the second."""
    return run_ranks(
        python,
        ["-c", RANK_1.format(patch=patch)],
        2,
        ISOLOSS_TASK=task.model_dump_json(),
        ISOLOSS_SCRATCH=str(folder),
    )


@pytest.mark.slow
def test_one_process_reads_a_checkpoint_for_all(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    first = prepared.train_task(model=DEEPSEEK, tokens=512)
    further = first.model_copy(update={"tokens": 1024})
    for task in (first, further):
        ends = train_with(python, task, NO_READING, tmp_path)
        assert [end.returncode for end in ends] == [0, 0], ends
    assert '"event": "resume", "tokens": 512' in ends[0].stdout
    store, path = prepared.store, layout.point_trajectory(first.point.key)
    resumed = store.read(path), last_state(store, first.point.key)
    store.remove(layout.point_folder(first.point.key))
    train_with(python, further, NO_READING, tmp_path)
    assert (store.read(path), last_state(store, first.point.key)) == resumed


@pytest.mark.slow
@pytest.mark.parametrize(("most", "outcome"), [(1, Outcome.SUCCEEDED), (0, Outcome.OUT_OF_MEMORY)])
def test_processes_start_over_with_less_at_once_where_one_is_refused_memory(
    prepared: Prepared, tmp_path: Path, python: WarmPython, most: int, outcome: Outcome
) -> None:
    """In an evaluation or a step; with two sequences each, with one, and with one computed twice."""
    task = evaluated_once(prepared)
    environment = environment_of(task, tmp_path, PROCESSES=2)
    done = python.run(["-c", NO_MEMORY.format(most=most)], environment=environment)
    wanted = ExitCode.SUCCEEDED if most else ExitCode.OUT_OF_MEMORY
    assert done.returncode == wanted, done.stderr[-2000:] + done.stdout[-2000:]
    result = prepared.result(task)
    assert (result.outcome, result.micro_batch) == (outcome, 1)


@pytest.mark.slow
def test_the_message_is_that_of_the_process_whose_exit_code_is_returned(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    """Rank 0 only finds out that the other has ended."""
    environment = environment_of(evaluated_once(prepared), tmp_path, PROCESSES=2)
    done = python.run(["-c", NO_SHARD], environment=environment)
    assert done.returncode == ExitCode.BAD_DATA, done.stderr[-2000:] + done.stdout[-2000:]
    words = TerminationMessage.model_validate_json((tmp_path / "message").read_text())
    assert (words.code, words.field) == ("ShardCorrupt", "data")
    assert "training-00003" in words.message
    logged = json.loads(done.stdout.splitlines()[-1])
    assert (logged["event"], logged["rank"], logged["exit_code"]) == ("end", 1, ExitCode.BAD_DATA)
    assert "training-00003" in logged["message"]


def test_what_an_earlier_attempt_left_in_the_scratch_folder_is_not_said_again(
    tmp_path: Path,
) -> None:
    """A container that restarts keeps it."""
    (tmp_path / "ending-0.json").write_text('{"code": "DiskFull", "message": "then"}')
    processes = launch.Processes(2)
    started = launch._start(processes, ["--help"], tmp_path, 0, 1)
    for process in started:
        process.wait(60)
    assert launch._last_words(processes, started, tmp_path, quiet()) is None


def test_nothing_else_gets_the_port_of_processes_that_have_yet_to_meet() -> None:
    """A connection of another program had it as its own by the time the first process came to listen there."""
    with launch.reserved_port() as port, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        store.set("met", "1")
        assert TCPStore("127.0.0.1", port).get("met") == b"1"


def test_a_number_of_processes_or_of_a_pod_that_is_none_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("ISOLOSS_PROCESSES", "two")
    with pytest.raises(BadConfiguration, match="ISOLOSS_PROCESSES is 'two'") as caught:
        launch.Processes.of(1)
    assert (caught.value.code, caught.value.field) == ("BadVariable", "podTemplate")
    monkeypatch.setenv("ISOLOSS_PROCESSES", "1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    with pytest.raises(BadConfiguration, match="is 2, but the task is for 2 pods"):
        launch.Processes.of(2)


@pytest.mark.parametrize(("rank", "refusals"), [(None, 0), (None, 2), ("1", 2)])
def test_a_process_alone_gives_its_place_to_one_that_knows_of_the_refusal(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, refusals: int
) -> None:
    """One of several ends, and the launcher starts all of them again."""
    started: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: started.append(call))
    monkeypatch.setenv("ISOLOSS_REFUSALS", str(refusals))
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
        assert launch.start_over(["train"]) == launch.START_OVER
        assert not started
        return
    launch.start_over(["train"])
    ((program, arguments, environment),) = started
    assert (program, arguments[1:]) == (sys.executable, ["-m", "isoloss_trainer", "train"])
    assert environment["ISOLOSS_REFUSALS"] == str(refusals + 1)


def _fail_in_scratch() -> None:
    with scratch_folder() as folder:
        (folder / "shard").write_bytes(b"tokens")
        raise ValueError("mid-task")


def test_a_temporary_folder_is_removed_even_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SCRATCH_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="mid-task"):
        _fail_in_scratch()
    assert not list(tmp_path.iterdir())


def test_a_given_folder_is_created_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, str(tmp_path / "given"))
    with scratch_folder() as folder:
        (folder / "shard").write_bytes(b"tokens")
    assert (tmp_path / "given" / "shard").exists()
