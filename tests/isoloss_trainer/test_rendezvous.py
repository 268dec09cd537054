"""The processes of several pods: they meet through the store, train as those of one pod, and end together."""

import json
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import isoloss_trainer.rendezvous as rendezvous_module
from isoloss_contract import layout
from isoloss_contract.records import (
    Claimant,
    ExitCode,
    PointResult,
    TerminationMessage,
    TrainTask,
)
from isoloss_contract.store import Store, StoreRefused
from isoloss_trainer.attempt import Attempt
from isoloss_trainer.rendezvous import ALL_ARE_HERE, Meeting, meet
from isoloss_trainer.termination import Interrupted
from isoloss_trainer.world import World
from tests.isoloss_trainer.builders import attempt
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.ranks import environment_of
from tests.isoloss_trainer.test_launch import NO_MEMORY, evaluated_once
from tests.support.warm_python import WarmProcess, WarmPython

RUN = ["-m", "isoloss_trainer", "train"]
ADDRESS = "127.0.0.1"


@dataclass
class Pods:
    """The pods of one Job: each starts its own processes, and shares nothing with the others but the store."""

    python: WarmPython
    task: TrainTask
    folder: Path
    processes: int = 1

    def start(self, index: int, program: list[str] = RUN) -> WarmProcess:
        pod = self.folder / f"pod-{index}"
        pod.mkdir(exist_ok=True)
        given = {"PROCESSES": self.processes, "POD_ADDRESS": ADDRESS}
        environment = environment_of(self.task, pod, **given)
        environment["JOB_COMPLETION_INDEX"] = str(index)
        with (pod / "output").open("ab") as output:
            return self.python.start(program, environment=environment, output=output)

    def output(self, index: int) -> str:
        return (self.folder / f"pod-{index}" / "output").read_text()

    def message(self, index: int) -> TerminationMessage:
        text = (self.folder / f"pod-{index}" / "message").read_text()
        return TerminationMessage.model_validate_json(text)

    def wait_for(self, event: str, index: int = 0) -> None:
        """Until a pod has logged it."""
        end = time.monotonic() + 100
        while f'"event": "{event}"' not in self.output(index):
            assert time.monotonic() < end, self.output(index)[-3000:]
            time.sleep(0.02)

    def run(self, program: list[str] = RUN) -> list[int]:
        """All of them; their exit codes."""
        started = [self.start(index, program) for index in range(self.task.nodes)]
        return [process.wait(300) for process in started]


def of_nodes(task: TrainTask, nodes: int) -> TrainTask:
    return task.model_copy(update={"nodes": nodes})


def result_of(prepared: Prepared, task: TrainTask) -> PointResult:
    return prepared.result(task)


def losses(prepared: Prepared, task: TrainTask) -> list[float]:
    text = prepared.store.read(layout.point_trajectory(task.point.key)).decode()
    return [json.loads(line)["loss"] for line in text.splitlines()]


def test_two_pods_of_two_processes_train_as_one_pod_of_four_does(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    task = prepared.train_task(tokens=1024)
    pods = Pods(python, of_nodes(task, 2), tmp_path, processes=2)
    assert pods.run() == [0, 0], pods.output(0)[-3000:] + pods.output(1)[-3000:]
    assert pods.message(0).code == pods.message(1).code == "Succeeded"
    of_two, found = result_of(prepared, task), losses(prepared, task)
    store = prepared.store
    assert not [n for n in store.names(layout.point_folder(task.point.key)) if "rendezvous" in n]
    store.remove(layout.point_folder(task.point.key))
    alone = Pods(python, task, tmp_path, processes=4)
    assert alone.run() == [0]
    assert losses(prepared, task) == found
    assert result_of(prepared, task).tokens == of_two.tokens


def test_a_run_of_two_pods_goes_on_in_one_after_one_of_them_was_to_stop(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    """The request reaches the second pod alone; both save together and end as interrupted."""
    task = prepared.train_task(tokens=64_000)
    pods = Pods(python, of_nodes(task, 2), tmp_path)
    first, second = pods.start(0), pods.start(1)
    pods.wait_for("start")
    second.send_signal(signal.SIGTERM)
    assert [first.wait(100), second.wait(100)] == [ExitCode.INTERRUPTED] * 2
    saved = re.match(r"stop requested; saved at ([\d,]+) tokens", pods.message(0).message)
    assert saved, pods.message(0).message
    shorter = task.model_copy(update={"tokens": int(saved[1].replace(",", "")) + 512})
    alone = Pods(python, shorter, tmp_path)
    assert alone.run() == [0]
    assert '"event": "resume"' in alone.output(0)


def test_a_pod_waits_for_the_others_until_it_is_to_stop(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    pods = Pods(python, of_nodes(prepared.train_task(tokens=512), 2), tmp_path)
    for index in (0, 1):
        waiting = pods.start(index)
        pods.wait_for("meet" if index == 0 else "node", index)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(100) == ExitCode.INTERRUPTED, pods.output(index)
        path = layout.point_rendezvous(pods.task.point.key)
        assert not prepared.store.exists(path)


def test_pods_that_were_interrupted_meet_again_and_no_old_address_misleads_them(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    """The first pod of an earlier meeting was killed, so that its address is still there."""
    pods = Pods(python, of_nodes(prepared.train_task(tokens=512), 2), tmp_path)
    path = layout.point_rendezvous(pods.task.point.key)
    gone = Meeting(claimant=pods.task.claimant, address=ADDRESS, port=1, processes=2)
    other = gone.model_copy(update={"claimant": Claimant(sweep_uid="another", attempt=1)})
    store = prepared.store
    for record in (other, gone):
        store.write_record(path, record)
        second = pods.start(1)
        time.sleep(0.2)
        assert [pods.start(0).wait(100), second.wait(100)] == [0, 0], pods.output(1)
        store.remove(layout.point_result(pods.task.point.key))


def of_rank(prepared: Prepared, rank: int) -> Attempt:
    """The attempt as one of two processes in two pods has it."""
    task = of_nodes(prepared.train_task(tokens=512), 2)
    data = prepared.data
    return replace(attempt(task, data), world=World(rank=rank, size=2))


def test_a_superseded_attempt_leaves_the_address_at_which_its_successor_waits(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the successor's pods would wait for one another for ever."""
    first, store = of_rank(prepared, 0), prepared.store
    path = layout.point_rendezvous(first.task.point.key)
    later = Claimant(sweep_uid="sweep", attempt=2)
    theirs = Meeting(claimant=later, address=ADDRESS, port=1, processes=2)

    def superseded(_: Attempt) -> None:
        store.write_record(path, theirs)
        raise Interrupted("Superseded", "attempt 2 took over")

    monkeypatch.setenv("ISOLOSS_POD_ADDRESS", ADDRESS)
    monkeypatch.setattr(rendezvous_module, "_pause", superseded)
    with pytest.raises(Interrupted):
        meet(first)
    assert store.read_record(path, Meeting) == theirs


def test_pods_meet_through_a_store_that_deletes_nothing(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_store: Store, path: str) -> None:
        raise StoreRefused(f"{path}: AccessDenied")

    monkeypatch.setenv("ISOLOSS_POD_ADDRESS", ADDRESS)
    monkeypatch.setattr(rendezvous_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(Store, "remove", refused)
    second = of_rank(prepared, 1)
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(meet, second)
        try:
            shared = meet(of_rank(prepared, 0))  # for as long as it is kept
            assert joined.result(60).check([ALL_ARE_HERE])
        finally:
            second.interruption.requested = True
        assert shared.check([ALL_ARE_HERE])


def test_pods_with_different_numbers_of_accelerators_are_refused(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    task = of_nodes(prepared.train_task(tokens=512), 2)
    first = Pods(python, task, tmp_path).start(0)
    several = Pods(python, task, tmp_path, processes=2)
    assert several.start(1).wait(100) == ExitCode.BAD_CONFIGURATION
    assert several.message(1).code == "NodesDiffer"
    assert several.message(1).field == "nodes"
    first.send_signal(signal.SIGTERM)
    assert first.wait(100) == ExitCode.INTERRUPTED


@pytest.mark.slow
def test_refused_memory_in_one_of_several_pods_ends_the_attempt_with_a_code_of_its_own(
    prepared: Prepared, tmp_path: Path, python: WarmPython
) -> None:
    """The next attempt has half the micro-batch; the other pod cannot be called back, and is ended by its Job."""
    pods = Pods(python, of_nodes(evaluated_once(prepared), 2), tmp_path)
    program = ["-c", NO_MEMORY.format(most=1)]
    first, second = pods.start(0, program), pods.start(1, program)
    assert second.wait(100) == ExitCode.MEMORY_REFUSED, pods.output(1)
    assert pods.message(1).code == "MemoryRefused"
    first.send_signal(signal.SIGTERM)
    assert first.wait(100) != 0
