"""Trains one point: from a task to a result in the store, through any number of attempts.

The order of writes is the order of trust: config first, then trajectory and checkpoints, the result
last. torch is imported only when there is something to train.
"""

from __future__ import annotations

import os
from pathlib import Path

from isoloss_contract import layout
from isoloss_contract.records import Outcome, PointResult, TrainTask
from isoloss_contract.store import BadRecord, NotFound, Store
from isoloss_trainer.claim import Fence
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import BadConfiguration, BadData, Diverged, OutOfMemory


def train(task: TrainTask, scratch: Path, interruption: Interruption, log: Log) -> str:
    """Bring the point to `task.tokens`; returns a sentence for the termination message.

    Raises Diverged once the result of a diverged run is written, and Interrupted, OutOfMemory,
    BadData, BadConfiguration or StoreError as their names say.
    """
    store = Store(task.store_uri)
    finished = existing_result(store, task)
    if finished is None:
        data = PreparedData(task.data_uri, scratch)
        _check_data(task, data)
        fence = Fence(store, task.point.key, task.claimant)
        speaks = os.environ.get("RANK", "0") == "0"
        if speaks:
            fence.acquire()
        try:
            if speaks:
                store.write_record(layout.point_config(task.point.key), task.point)
            finished = _run(store, task, data, scratch, fence, interruption, log)
        finally:
            if speaks:
                fence.release()
    if finished.outcome is Outcome.DIVERGED:
        raise Diverged("Diverged", finished.message)
    if finished.outcome is Outcome.OUT_OF_MEMORY:
        raise OutOfMemory("OutOfMemory", finished.message)
    return finished.message


def _run(
    store: Store,
    task: TrainTask,
    data: PreparedData,
    scratch: Path,
    fence: Fence,
    interruption: Interruption,
    log: Log,
) -> PointResult:
    interruption.check()
    from isoloss_trainer.attention import preferred_kernels
    from isoloss_trainer.run import run_point
    from isoloss_trainer.world import join

    world = join()
    try:
        with preferred_kernels(world.device):
            return run_point(store, task, data, scratch, fence, world, interruption, log)
    finally:
        world.leave()


def existing_result(store: Store, task: TrainTask) -> PointResult | None:
    """The result that makes training needless: far enough, or diverged. A broken one does not count."""
    try:
        result = store.read_record(layout.point_result(task.point.key), PointResult)
    except (NotFound, BadRecord):
        return None
    if result.key != task.point.key or result.outcome is Outcome.OUT_OF_MEMORY:
        return None
    reached = result.tokens >= task.tokens
    return result if reached or result.outcome is Outcome.DIVERGED else None


def _check_data(task: TrainTask, data: PreparedData) -> None:
    """The prepared data must be those that the point's key stands for."""
    manifest, point = data.manifest, task.point
    if manifest.digest != point.data_digest:
        raise BadData(
            "DataChanged",
            f"{task.data_uri}: digest {manifest.digest} is not the point's {point.data_digest}",
            "data",
        )
    if manifest.sequence_length != point.sequence_length:
        raise BadConfiguration(
            "SequenceLengthDiffers",
            f"the data are prepared for sequences of {manifest.sequence_length}, "
            f"not {point.sequence_length}",
            "sequence_length",
        )
    for name in point.mixture:
        data.domain(name)
