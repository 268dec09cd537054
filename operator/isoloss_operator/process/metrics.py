"""The operator's own Prometheus metrics. Names are `isoloss_<what>_<unit>`; none names a point."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from isoloss_operator.process.status_metrics import StatusCollector

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FIT_SECONDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class Metrics:
    """All metrics of one operator, in a registry of their own. Thread-safe."""

    def __init__(self, *, per_object: bool = True) -> None:
        """`per_object` False leaves out the gauges that name a sweep or prediction."""
        registry = self.registry = CollectorRegistry()
        self.statuses = StatusCollector()
        if per_object:
            registry.register(self.statuses)
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        self._add_reconcile(registry)
        self._add_calls(registry)
        self.leader = Gauge(
            "isoloss_leader", "1 in the process that holds the lease.", registry=registry
        )
        build = Gauge("isoloss_build_info", "Always 1.", ("version",), registry=registry)
        build.labels(version("isoloss")).set(1)

    def _add_reconcile(self, registry: CollectorRegistry) -> None:
        self.reconcile_seconds = Histogram(
            "isoloss_reconcile_duration_seconds",
            "One pass over a resource.",
            ("kind",),
            buckets=SECONDS,
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "isoloss_reconcile_errors",
            "Passes that ended in an error.",
            ("kind", "error"),
            registry=registry,
        )
        self.queue_ready = Gauge(
            "isoloss_queue_ready", "Resources waiting for a worker.", registry=registry
        )
        self.queue_wait = Gauge(
            "isoloss_queue_longest_wait_seconds",
            "Longest that a resource now waits for a worker.",
            registry=registry,
        )
        self.watch_event = Gauge(
            "isoloss_watch_last_event_timestamp_seconds",
            "When a watch last delivered.",
            ("kind",),
            registry=registry,
        )
        self.watch_lag = Gauge(
            "isoloss_watch_lag_seconds",
            "How long the watches have not delivered what a live read has shown.",
            registry=registry,
        )

    def _add_calls(self, registry: CollectorRegistry) -> None:
        self.api_calls = Counter(
            "isoloss_api_calls",
            "Calls to the API server by HTTP method and status; 0: no answer.",
            ("method", "status"),
            registry=registry,
        )
        self.store_seconds = Histogram(
            "isoloss_store_duration_seconds",
            "Calls to object storage.",
            ("operation",),
            buckets=SECONDS,
            registry=registry,
        )
        self.store_errors = Counter(
            "isoloss_store_errors",
            "Calls that object storage did not answer.",
            ("operation",),
            registry=registry,
        )
        self.jobs = Counter(
            "isoloss_jobs", "Jobs created or deleted.", ("action", "task"), registry=registry
        )
        self.fit_seconds = Histogram(
            "isoloss_fit_duration_seconds",
            "Reading trajectories, fitting, writing laws and report.",
            buckets=FIT_SECONDS,
            registry=registry,
        )

    def page(self) -> bytes:
        """The exposition that Prometheus scrapes."""
        return generate_latest(self.registry)
