"""One attempt at a point: its task and everything around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isoloss_contract.records import TrainTask
from isoloss_contract.store import Store
from isoloss_trainer.claim import Fence
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.world import World


@dataclass(frozen=True)
class Attempt:
    """What every part of a run may ask for."""

    task: TrainTask
    store: Store
    data: PreparedData
    scratch: Path
    fence: Fence
    world: World
    interruption: Interruption
    log: Log
