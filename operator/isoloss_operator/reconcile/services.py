"""What a pass over a resource works with, made once at start."""

from __future__ import annotations

from dataclasses import dataclass

from isoloss_operator.cluster.client import Cluster
from isoloss_operator.cluster.jobs import JobWriter
from isoloss_operator.cluster.live_jobs import JobReader
from isoloss_operator.cluster.resource_keys import ResourceKey
from isoloss_operator.fitting.fitter import Fitter
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.process.workqueue import WorkQueue
from isoloss_operator.settings import Settings
from isoloss_operator.store.ledgers import Ledgers
from isoloss_operator.store.storage import Storage


@dataclass(frozen=True)
class Services:
    """Everything is thread-safe and shared by all workers."""

    settings: Settings
    cluster: Cluster
    storage: Storage
    ledgers: Ledgers
    jobs: JobWriter
    job_reader: JobReader
    fitter: Fitter[ResourceKey]
    metrics: Metrics
    watchdog: WatchDog
    queue: WorkQueue[ResourceKey]
