"""The process: reads the task, runs it, and ends with an exit code and a termination message."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from isoloss_contract.records import (
    TASK_VARIABLE,
    EvaluateTask,
    ExitCode,
    PrepareTask,
    Task,
    TerminationMessage,
    TrainTask,
)
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.launch import processes_to_start, run_together
from isoloss_trainer.log import Log
from isoloss_trainer.scratch import scratch_folder
from isoloss_trainer.termination import BadConfiguration, explain, write_message
from isoloss_trainer.world import World

_TASK: TypeAdapter[PrepareTask | TrainTask | EvaluateTask] = TypeAdapter(Task)


def main(arguments: list[str] | None = None) -> int:
    """Run one task; returns a records.ExitCode, or 1 for a bug."""
    options = _parse(arguments)
    interruption = Interruption().listen()
    world = World.of_environment()
    log = Log(sys.stdout if world.is_first else io.StringIO())
    try:
        task = _task(options)
        if options.command == "plan":
            return _print_plan(task)
        processes = 1 if isinstance(task, PrepareTask) else processes_to_start()
        if processes > 1:
            return run_together(processes, sys.argv[1:], interruption)
        message = _run(task, interruption, log)
    except Exception as error:  # noqa: BLE001 (whatever it is, it gets an exit code)
        code, ending = explain(error)
        if code == 1:
            log.failure(error)
    else:
        code, ending = ExitCode.SUCCEEDED, TerminationMessage(code="Succeeded", message=message)
    interruption.ignore()
    log.event("end", exit_code=int(code), code=ending.code, message=ending.message)
    if world.is_first:
        write_message(ending)
    return int(code)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="isoloss_trainer", description=__doc__)
    parser.add_argument("command", choices=["prepare", "train", "evaluate", "plan"])
    parser.add_argument("--task", type=Path, help=f"task file; default: ${TASK_VARIABLE}")
    return parser.parse_args(arguments)


def _task(options: argparse.Namespace) -> PrepareTask | TrainTask | EvaluateTask:
    try:
        text = options.task.read_bytes() if options.task else os.environ[TASK_VARIABLE].encode()
        task = _TASK.validate_json(text)
    except KeyError:
        raise BadConfiguration("NoTask", f"give --task or set ${TASK_VARIABLE}") from None
    except OSError as error:
        raise BadConfiguration("NoTask", f"{options.task}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadConfiguration("BadTask", f"{field}: {first['msg']}", field) from error
    if task.kind != ("train" if options.command == "plan" else options.command):
        raise BadConfiguration("BadTask", f"the task is of kind {task.kind}", "kind")
    return task


def _print_plan(task: PrepareTask | TrainTask | EvaluateTask) -> int:
    """Print which accelerators a train task fits on; nothing is run."""
    from isoloss_trainer.plan import plan

    assert isinstance(task, TrainTask)
    print(plan(task))
    return int(ExitCode.SUCCEEDED)


def _run(
    task: PrepareTask | TrainTask | EvaluateTask, interruption: Interruption, log: Log
) -> str:
    """Run `task`. Imports are here because each command needs different ones, and torch takes seconds."""
    # More threads gain nothing on toy models and slow down neighbours on the machine, and sums over a
    # different number of threads round differently.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with scratch_folder() as scratch:
        if isinstance(task, PrepareTask):
            from isoloss_trainer.prepare import prepare

            return prepare(task, scratch, interruption, log)
        if isinstance(task, TrainTask):
            from isoloss_trainer.train import train

            return train(task, scratch, interruption, log)
        from isoloss_trainer.evaluate import evaluate

        return evaluate(task, scratch, interruption, log)


if __name__ == "__main__":
    sys.exit(main())
