"""The processes of one task, as the launcher starts them, with a program of the test's own in each."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from isoloss_contract.records import TrainTask
from isoloss_trainer.launch import reserved_port
from tests.support.warm_python import WarmPython


def environment_of(task: TrainTask, folder: Path, **more: object) -> dict[str, str]:
    """Of a process that trains, with a scratch folder and its last message in `folder`."""
    own = {
        "TASK": task.model_dump_json(),
        "SCRATCH": folder / "scratch",
        "TERMINATION_LOG": folder / "message",
        **more,
    }
    return {**os.environ, **{f"ISOLOSS_{name}": str(value) for name, value in own.items()}}


def run_ranks(
    python: WarmPython, arguments: Sequence[str], processes: int, **environment: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run `python *arguments` once for each rank; their ends in the order of the ranks, errors with the output."""
    with ExitStack() as stack:
        shared = {
            **os.environ,
            **environment,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(stack.enter_context(reserved_port())),
            "WORLD_SIZE": str(processes),
        }
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(processes)]
        started = [
            python.start(
                arguments,
                environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                output=file,
            )
            for rank, file in enumerate(files)
        ]
        codes = [process.wait(500) for process in started]
        for file in files:
            file.seek(0)
        return [
            subprocess.CompletedProcess(list(arguments), code, file.read())
            for code, file in zip(codes, files, strict=True)
        ]
