"""Trains one point: from a task to a result in the store, through any number of attempts.

The point's config is written first, then trajectory and checkpoints, the result last: what is there
is true. torch is imported only when there is something to train.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from isoloss_contract import layout
from isoloss_contract.records import GRACE_VARIABLE, Outcome, PointConfig, PointResult, TrainTask
from isoloss_contract.store import Store, StoreError
from isoloss_trainer import termination
from isoloss_trainer.attempt import Attempt, Fence, stored_result
from isoloss_trainer.log import Log
from isoloss_trainer.shards import PATIENT, PreparedData
from isoloss_trainer.world import FETCH_PATIENCE, World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

DECAY_BATCHES = 10
"""A time constant of the weights is at least so many batches."""


def train(task: TrainTask, scratch: Path, interruption: termination.Interruption, log: Log) -> str:
    """Train the point to `task.tokens`; returns a sentence for the termination message.

    Raises Diverged once the result of a diverged run is written, and Interrupted, OutOfMemory,
    BadData, BadConfiguration or StoreError as their names say.
    """
    store = Store(task.store_uri)
    result = existing_result(Store(task.store_uri, PATIENT), task)
    if result is None:
        data = PreparedData(task.data_uri, scratch)
        data.check_point(task.point)
        _check_decay(task.point)
        fence = Fence(store, task.point.key, task.claimant)
        world = World.of_environment()
        result = _claim_and_run(
            Attempt(
                task,
                store,
                data,
                scratch,
                fence,
                world,
                interruption,
                log,
                grace_seconds=float(os.environ.get(GRACE_VARIABLE) or 0),
            )
        )
    if result.outcome is Outcome.DIVERGED:
        raise termination.Diverged("Diverged", result.message)
    if result.outcome is Outcome.OUT_OF_MEMORY:
        raise termination.OutOfMemory("OutOfMemory", result.message)
    return result.message


def _claim_and_run(attempt: Attempt) -> PointResult:
    if not attempt.world.is_first:
        return _join_and_run(attempt)
    attempt.fence.acquire()
    try:
        point = attempt.task.point
        attempt.store.write_record(layout.point_config(point.key), point)
        return _join_and_run(attempt)
    finally:
        _release(attempt)


def _release(attempt: Attempt) -> None:
    """A claim that the store does not take back expires; how the run ended matters more."""
    try:
        attempt.fence.release()
    except StoreError as error:
        attempt.log.event("claim-not-released", reason=str(error)[:300])


def _join_and_run(attempt: Attempt) -> PointResult:
    if attempt.world.size == 1:
        attempt.interruption.check()
    from isoloss_trainer.attention import deterministic_kernels
    from isoloss_trainer.run import run_point

    fetches = attempt.task.point.initial_weights is not None
    world = attempt.world.joined(FETCH_PATIENCE if fetches else None, _meeting(attempt))
    try:
        # Checked together: one process that left alone would keep the others waiting for it.
        if world.any(attempt.interruption.requested):
            raise termination.Interrupted("Interrupted", "stop requested")
        with deterministic_kernels(attempt.task.deterministic):
            return run_point(replace(attempt, world=world))
    finally:
        world.leave()


def _meeting(attempt: Attempt) -> Callable[[], TCPStore] | None:
    if not attempt.world.spans_pods:
        return None
    from isoloss_trainer.rendezvous import meet

    return partial(meet, attempt)


def existing_result(store: Store, task: TrainTask) -> PointResult | None:
    """The result that makes training unnecessary: far enough, or diverged. A broken one is ignored.

    Raises NewerRecord: see stored_result.
    """
    result = stored_result(store, task.point.key)
    if result is None or result.outcome is Outcome.OUT_OF_MEMORY:
        return None
    reached = result.tokens >= task.tokens
    return result if reached or result.outcome is Outcome.DIVERGED else None


def _check_decay(point: PointConfig) -> None:
    """Weights that are forgotten within a few steps learn nothing, and the run would end like any other."""
    constant, batch = point.optimizer.weight_decay_tokens, point.batch_size * point.sequence_length
    if 0 < constant < DECAY_BATCHES * batch:
        raise termination.BadConfiguration(
            "WeightDecayTooFast",
            f"weights would be forgotten within {constant} tokens, but a batch has {batch}: raise weightDecayTokens to "
            f"at least {DECAY_BATCHES} of the grid's largest batches, or lower that",
            "optimizer.weightDecayTokens",
        )
