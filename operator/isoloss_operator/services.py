"""What a pass over a resource works with, made once at start."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_operator.cluster import Cluster
from isoloss_operator.fitting import Fitter
from isoloss_operator.jobs import JobWriter
from isoloss_operator.metrics import Metrics
from isoloss_operator.resource_keys import ResourceKey
from isoloss_operator.settings import Settings
from isoloss_operator.storage import Storage
from isoloss_operator.watchdog import WatchDog
from isoloss_operator.workqueue import WorkQueue


@dataclass(frozen=True)
class Services:
    """Everything is thread-safe and shared by all workers."""

    settings: Settings
    cluster: Cluster
    storage: Storage
    jobs: JobWriter
    fitter: Fitter[ResourceKey]
    metrics: Metrics
    watchdog: WatchDog
    queue: WorkQueue[ResourceKey]
