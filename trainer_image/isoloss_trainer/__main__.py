"""The process: reads the task, runs it, and ends with an exit code and a termination message.

`export` and `plan` are for people: the first takes arguments instead of a task, the second runs nothing.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from isoloss_contract import records
from isoloss_trainer import termination
from isoloss_trainer.launch import Processes, run_together, scratch_folder, start_over
from isoloss_trainer.log import Log
from isoloss_trainer.world import World

EXPORT, PLAN = "export", "plan"
ALLOCATOR = (
    "expandable_segments:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8"
)
"""torch's on an accelerator. Without the first, gaps between allocations of different sizes add up; with the others host
memory is pinned by several threads: 6 GiB in 1.2 s instead of 3.7 on an H200, of which a training state may have ten times
as much."""
AnyTask = records.PrepareTask | records.TrainTask | records.EvaluateTask
_TASK: TypeAdapter[AnyTask] = TypeAdapter(records.Task)


def main(arguments: list[str] | None = None) -> int:
    """Run one task; returns a records.ExitCode, or 1 for a bug."""
    options = _parse(arguments)
    interruption = termination.Interruption().listen()
    world = World.of_environment()
    log = Log(sys.stdout, people=sys.stderr) if world.is_first else Log(io.StringIO())
    try:
        if options.command == EXPORT:
            message = _export(options, log)
        elif options.command == PLAN:
            return _print_plan(_task(options))
        else:
            task = _task(options)
            if (processes := _processes(task)) is not None:
                if processes.node > 0:
                    log.event("node", number=processes.node, message="the first pod logs for all")
                end, words = run_together(processes, sys.argv[1:], interruption, log)
                if words is not None:
                    _leave(words, log)
                return end
            message = _run(task, interruption, log)
    except termination.MemoryRefused as error:
        log.event("start-over", message=str(error))
        if world.spans_pods:  # the attempt ends with it
            _leave(records.TerminationMessage(code="MemoryRefused", message=str(error)), log)
        return start_over(sys.argv[1:])
    except Exception as error:  # noqa: BLE001 (whatever it is, it gets an exit code)
        code, ending = termination.explain(error)
        if code == 1:
            (log if world.is_first else Log(sys.stderr)).failure(error)
    else:
        code, ending = (
            records.ExitCode.SUCCEEDED,
            records.TerminationMessage(code="Succeeded", message=message),
        )
    interruption.ignore()
    log.event("end", exit_code=int(code), code=ending.code, message=ending.message)
    if world.local_rank == 0 or termination.ENDING_VARIABLE in os.environ:
        _leave(ending, log)
    return int(code)


def _leave(message: records.TerminationMessage, log: Log) -> None:
    """Write the message where Kubernetes looks for it; the exit code says more than that it cannot be written."""
    try:
        termination.write_message(message)
    except OSError as error:
        log.event("message-not-written", reason=str(error))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="isoloss-trainer", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {kind: f"run a task of kind {kind}" for kind in ("prepare", "train", "evaluate")}
    for kind, words in {**helps, PLAN: "print the memory that a train task needs"}.items():
        command = commands.add_parser(kind, help=words)
        command.add_argument(
            "--task", type=Path, help=f"task file; default: ${records.TASK_VARIABLE}"
        )
    command = commands.add_parser(EXPORT, help="write a point as a Hugging Face directory")
    command.add_argument("store", help="URI of the sweep's store, as in spec.storage.uri")
    command.add_argument("key", help="the point's key: the name of its folder under points/")
    command.add_argument("folder", type=Path, help="where to write; must be empty or absent")
    command.add_argument("--weights", choices=["averaged", "raw"], default="averaged")
    command.add_argument("--tokenizer", help="URI of the sweep's tokenizer: its files are copied")
    return parser.parse_args(arguments)


def _export(options: argparse.Namespace, log: Log) -> str:
    from isoloss_trainer.export import export

    given = (options.store, options.key, options.folder, options.weights, options.tokenizer)
    return export(*given, log)


def _task(options: argparse.Namespace) -> AnyTask:
    try:
        text = (
            options.task.read_bytes()
            if options.task
            else os.environ[records.TASK_VARIABLE].encode()
        )
        task = _TASK.validate_json(text)
    except KeyError:
        raise termination.BadConfiguration(
            "NoTask", f"give --task or set ${records.TASK_VARIABLE}"
        ) from None
    except OSError as error:
        raise termination.BadConfiguration("NoTask", f"{options.task}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        message = f"{field}: {records.in_words(first)} (isoloss {version('isoloss')})"
        raise termination.BadConfiguration(records.BAD_TASK, message, field) from error
    if task.kind != ("train" if options.command == PLAN else options.command):
        raise termination.BadConfiguration(
            records.BAD_TASK, f"the task is of kind {task.kind}", "kind"
        )
    return task


def _processes(task: AnyTask) -> Processes | None:
    """Those to start for it; None if this process runs it."""
    if isinstance(task, records.PrepareTask):
        return None
    return Processes.of(task.nodes if isinstance(task, records.TrainTask) else 1)


def _print_plan(task: AnyTask) -> int:
    """Print which accelerators a train task fits on; nothing is run."""
    from isoloss_trainer.learner import plan

    assert isinstance(task, records.TrainTask)
    print(plan(task))
    return int(records.ExitCode.SUCCEEDED)


def _run(task: AnyTask, interruption: termination.Interruption, log: Log) -> str:
    """Run `task`. Imports are here because each command needs different ones, and torch takes seconds."""
    # More threads gain nothing on toy models and slow down neighbours on the machine, and sums over a
    # different number of threads round differently.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)
    with scratch_folder() as scratch:
        if isinstance(task, records.PrepareTask):
            from isoloss_trainer.prepare import prepare

            return prepare(task, scratch, interruption, log)
        if isinstance(task, records.TrainTask):
            from isoloss_trainer.train import train

            return train(task, scratch, interruption, log)
        from isoloss_trainer.evaluate import evaluate

        return evaluate(task, scratch, interruption, log)


if __name__ == "__main__":
    sys.exit(main())
