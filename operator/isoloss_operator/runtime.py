"""One operator process: wires the parts, acquires the lease, watches, works, and shuts down in order."""

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import kopf
from kubernetes.client import ApiClient

from isoloss_operator.api import GROUP, VERSION
from isoloss_operator.cluster import client
from isoloss_operator.cluster.client import Cluster, ResourceKey
from isoloss_operator.cluster.job_watch import JobWatch
from isoloss_operator.cluster.jobs import JobWriter
from isoloss_operator.cluster.live_jobs import JobReader
from isoloss_operator.cluster.rate_limit import RateLimit
from isoloss_operator.cluster.transport import within
from isoloss_operator.cluster.workloads import WorkloadReader
from isoloss_operator.fitting.fit_jobs import FitEnd, fit_result
from isoloss_operator.fitting.fitter import Fitter, run_in_process, start_ahead
from isoloss_operator.handlers import EventRouter, build_registry, kopf_settings
from isoloss_operator.process import logs
from isoloss_operator.process.health import HealthServer
from isoloss_operator.process.leader import Elector, Terms
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.process.refused_watches import RefusedWatches
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.process.workqueue import Workers, WorkQueue
from isoloss_operator.reconcile.prediction import PredictionSteps
from isoloss_operator.reconcile.reconciler import Reconciler
from isoloss_operator.reconcile.resource import Services
from isoloss_operator.reconcile.sweep import SweepSteps
from isoloss_operator.settings import Settings
from isoloss_operator.store.ledgers import Ledgers, NotLeading
from isoloss_operator.store.storage import Storage

KINDS = frozenset({client.SWEEP.plural, client.PREDICTION.plural})
START_RETRY_SECONDS = 2.0
PATIENCE_SECONDS = 8.0
"""For an API server that answers without our CRDs or roles."""
LEASE_CONNECTIONS = 2
"""Connections of the lease's own client: the renewal, and a worker that outranks an epoch."""
LONGEST_WAIT_SECONDS = 30.0
"""After which a resource that is due has every other turn of its namespace, whatever was edited since."""
BEAT_SECONDS = 1.0
LOOP_STUCK_SECONDS = 60.0
DRAIN_SECONDS = 20.0
"""Time for running passes to end. The Deployment's grace period is 30 s."""

logger = logging.getLogger(__name__)


class NotInstalled(RuntimeError):
    """The CRDs are missing; the message says what to do."""


class Operator:
    """The operator's process without its command line."""

    def __init__(self, settings: Settings) -> None:
        """Raises kubernetes.config.ConfigException if no cluster is configured."""
        self.settings = settings
        self.metrics = Metrics(per_object=settings.per_sweep_metrics)
        self.cluster = self._connect()
        self.queue: WorkQueue[ResourceKey] = WorkQueue(
            minimum_interval=settings.minimum_interval_seconds,
            group_of=lambda key: key.namespace,
            most_of_group=max(1, settings.workers - 1),
            longest_wait=LONGEST_WAIT_SECONDS,
        )
        self.watchdog = WatchDog()
        self.elector = self._elector()
        self.services = self._services()
        self.health = HealthServer(
            settings.http_address,
            settings.http_port,
            healthy=self.what_is_wrong,
            ready=self.why_not_ready,
            metrics=self._metrics_page,
        )
        self._serving = threading.Event()
        """Set while kopf watches."""
        self._waiting = False
        self._last_beat = time.monotonic()

    def run(self) -> None:
        """Serve until SIGTERM. Raises NotInstalled, ClusterError, or what ended the watches."""
        self.health.start()
        logger.info("Serving /healthz, /readyz and /metrics on port %d", self.health.port)
        self._await_installed()
        self._waiting = True
        self.elector.acquire()
        self.elector.keep(self._lost_lease)
        self.metrics.leader.set(1)
        logger.info("Leading as %s", self.settings.identity)
        workers = self._workers()
        workers.start()
        threading.Thread(target=start_ahead, name="fit-start", daemon=True).start()
        try:
            asyncio.run(self._watch())
        finally:
            self._end(workers)

    def what_is_wrong(self) -> str:
        """For /healthz: a problem that a restart would solve; empty: none."""
        settings = self.settings
        if not self._serving.is_set():
            return ""
        if time.monotonic() - self._last_beat > LOOP_STUCK_SECONDS:
            return f"the event loop has not turned for {LOOP_STUCK_SECONDS:.0f} s"
        if (lag := self.watchdog.lag()) > settings.watch_stale_seconds:
            return f"a watch has not delivered for {lag:.0f} s what a live read returned"
        if (seconds := self.queue.longest_run()) > settings.stuck_seconds:
            return f"one pass has taken {seconds:.0f} s"
        if (seconds := self.queue.stalled_seconds()) > settings.stuck_seconds:
            return f"no worker has taken a resource for {seconds:.0f} s, and some wait"
        return ""

    def why_not_ready(self) -> str:
        """For /readyz: leading and watching, or waiting for another's lease."""
        if self._serving.is_set() or (self._waiting and not self.elector.is_leader):
            return ""
        return "starting"

    # ------------------------------------------------------------------------------- the parts

    def _connect(self) -> Cluster:
        settings = self.settings
        configuration = client.load_configuration(settings.workers + settings.job_writers + 4)
        limit = RateLimit(settings.api_qps, settings.api_burst)
        return Cluster(ApiClient(configuration), limit=limit, on_call=self._count_call)

    def _count_call(self, method: str, status: int, seconds: float) -> None:
        self.metrics.api_calls.labels(method, str(status)).inc()
        self.metrics.api_seconds.labels(method).observe(seconds)

    def _elector(self) -> Elector:
        """With a client of its own, which waits behind no other call and gives up in time.

        However long an overloaded server tells clients to stay away, a leader asks it before the lease is lost.
        """
        settings = self.settings
        terms = Terms(
            settings.lease_seconds,
            settings.renew_deadline_seconds,
            settings.renew_period_seconds,
        )
        own_client = ApiClient(client.load_configuration(LEASE_CONNECTIONS))
        return Elector(
            Cluster(
                own_client,
                call_seconds=terms.call_seconds,
                limit=RateLimit(longest_pause=terms.period),
                on_call=self._count_call,
            ),
            settings.lease_namespace,
            settings.lease_name,
            settings.identity,
            terms,
        )

    def _services(self) -> Services:
        settings, metrics = self.settings, self.metrics

        def store_called(operation: str, seconds: float, answered: bool) -> None:
            metrics.store_seconds.labels(operation).observe(seconds)
            if not answered:
                metrics.store_errors.labels(operation).inc()

        def fitted(key: ResourceKey, seconds: float, end: FitEnd) -> None:
            result = fit_result(end)
            metrics.fits.labels(result).inc()
            if result != "drawn":
                metrics.fit_seconds.observe(seconds)
            # A fit that could not run is requested again by a pass after the retry delay.
            self.queue.add(key)
            kind = "Page" if result == "drawn" else "Fit"
            logger.info("%s of %s ended after %.1f s: %s", kind, key, seconds, result)

        storage = Storage(
            readers=settings.store_readers,
            prefixes=settings.every_storage_prefix(),
            on_call=store_called,
        )
        return Services(
            settings=settings,
            cluster=self.cluster,
            storage=storage,
            ledgers=Ledgers(storage, self.elector, check_seconds=settings.resync_seconds),
            jobs=JobWriter(
                self.cluster,
                settings,
                writers=settings.job_writers,
                on_write=lambda action, task: metrics.jobs.labels(action, task).inc(),
            ),
            job_reader=JobReader(
                self.cluster,
                lost_seconds=settings.pod_lost_seconds,
                starting_seconds=settings.pod_starting_seconds,
                workloads=WorkloadReader(self.cluster) if settings.kueue else None,
            ),
            fitter=Fitter(
                processes=settings.fits,
                timeout_seconds=settings.fit_timeout_seconds,
                run=partial(
                    run_in_process,
                    memory_mib=settings.fit_memory_mib,
                    on_start=partial(logs.configure, settings.log_level),
                ),
                group_of=lambda key: key.namespace,
                on_done=fitted,
                on_laws=self.queue.add,
            ),
            metrics=metrics,
            watchdog=self.watchdog,
            queue=self.queue,
        )

    def _workers(self) -> Workers[ResourceKey]:
        reconcile: dict[str, Callable[[ResourceKey], float | None]] = {
            client.SWEEP.kind: Reconciler(self.services, SweepSteps(self.services)),
            client.PREDICTION.kind: Reconciler(self.services, PredictionSteps(self.services)),
        }

        def done(key: ResourceKey, seconds: float, error: BaseException | None) -> None:
            self.metrics.reconcile_seconds.labels(key.kind.kind).observe(seconds)
            if error is not None:
                self.metrics.reconcile_errors.labels(key.kind.kind, type(error).__name__).inc()
            if isinstance(error, NotLeading):
                self._lost_lease()

        def pass_over(key: ResourceKey) -> float | None:
            with within(self.settings.pass_seconds):
                return reconcile[key.kind.kind](key)

        return Workers(
            self.queue,
            pass_over,
            count=self.settings.workers,
            on_done=done,
        )

    def _metrics_page(self) -> bytes:
        self.metrics.queue_ready.set(self.queue.ready())
        self.metrics.queue_wait.set(self.queue.longest_wait())
        self.metrics.watch_lag.set(self.watchdog.lag())
        return self.metrics.page()

    # ---------------------------------------------------------------------------------- running

    def _await_installed(self) -> None:
        """Wait for the API server, however long it is unavailable.

        Raises NotInstalled if it answers without our kinds, and ClusterError if it refuses, for longer than
        PATIENCE_SECONDS: an API server that has just started knows neither custom resources nor roles yet.
        """
        answers_since = math.inf
        while True:
            problem = self._why_not_installed()
            if problem is None:
                return
            if isinstance(problem, client.Unavailable):
                answers_since = math.inf
            else:
                answers_since = min(answers_since, time.monotonic())
            if time.monotonic() - answers_since >= PATIENCE_SECONDS:
                raise problem
            logger.warning("Waiting for the API server: %s", problem)
            time.sleep(START_RETRY_SECONDS)

    def _why_not_installed(self) -> NotInstalled | client.ClusterError | None:
        try:
            missing = KINDS - self.cluster.served_kinds(GROUP, VERSION)
        except client.ClusterError as error:
            return error
        if not missing:
            return None
        names = ", ".join(f"{name}.{GROUP}" for name in sorted(missing))
        return NotInstalled(
            f"the API server does not serve {names} {VERSION}: install the CRDs "
            "(kubectl apply --server-side -f crds/, or the chart with crds.install=true)"
        )

    async def _watch(self) -> None:
        beat = asyncio.create_task(self._beat())
        router = EventRouter(self.queue, self.watchdog, self.metrics)
        namespaces, seconds = self.settings.namespaces, self.settings.watch_seconds
        refused = RefusedWatches(self.metrics.watch_refused, namespaces)
        of_watches = ApiClient(client.load_configuration(max(1, len(namespaces))))
        watches = [
            JobWatch(
                of_watches, each, router.job, on_answer=refused.answered, server_seconds=seconds
            )
            for each in namespaces or ("",)
        ]
        for watch in watches:
            watch.start()
        try:
            await kopf.operator(
                registry=build_registry(router, refused.answered),
                settings=kopf_settings(seconds),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                ready_flag=self._serving,
            )
        finally:
            for watch in watches:
                watch.stop()
            beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beat

    async def _beat(self) -> None:
        while True:
            self._last_beat = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def _lost_lease(self) -> None:
        """Another process may lead now: write nothing more, not even from the running passes."""
        logger.critical("Lost the lease; exiting")
        self.cluster.stop()
        os._exit(1)

    def _end(self, workers: Workers[ResourceKey]) -> None:
        """Let running passes end, then release the lease: never in the other order."""
        logger.info("Shutting down")
        self.queue.close()
        if not workers.join(DRAIN_SECONDS):
            logger.warning("A pass did not end within %.0f s", DRAIN_SECONDS)
            self.cluster.stop()
        for part in (self.services.jobs, self.services.fitter, self.services.storage):
            part.close()
        self.elector.stop()
        self.metrics.leader.set(0)
        self.health.stop()
