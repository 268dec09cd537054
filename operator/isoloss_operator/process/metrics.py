"""The operator's Prometheus metrics, all named `isoloss_<what>_<unit>`. No label names a point."""

from functools import partial
from importlib.metadata import version

import prometheus_client

from isoloss_operator.decide.jobs import FailureClass
from isoloss_operator.process.status_metrics import StatusCollector
from isoloss_operator.process.sweep_load import SUCCEEDED

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FIT_RESULTS = ("fitted", "refused", "failed")
FIT_SECONDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


# A `_created` series per counter and label set doubles their number and tells nothing about the cluster.
prometheus_client.disable_created_metrics()


class Metrics:
    """All metrics of one operator, in a registry of their own. Thread-safe."""

    def __init__(self, *, per_object: bool = True) -> None:
        """Without `per_object` there are no gauges of single sweeps and predictions."""
        registry = self.registry = prometheus_client.CollectorRegistry()
        self.statuses = StatusCollector()
        if per_object:
            registry.register(self.statuses)
        prometheus_client.ProcessCollector(namespace="isoloss", registry=registry)
        gauge = partial(prometheus_client.Gauge, registry=registry)
        counter = partial(prometheus_client.Counter, registry=registry)
        histogram = partial(prometheus_client.Histogram, registry=registry)
        self.leader = gauge("isoloss_leader", "1 if this process leads, else 0.")
        self.build = gauge(
            "isoloss_build_info", "Version of the operator; always 1.", ("version",)
        )
        self.build.labels(version("isoloss")).set(1)
        self.reconcile_seconds = histogram(
            "isoloss_reconcile_duration_seconds",
            "Duration of one pass over a resource.",
            ("kind",),
            buckets=SECONDS,
        )
        self.reconcile_errors = counter(
            "isoloss_reconcile_errors",
            "Passes that ended with an exception, by its class.",
            ("kind", "error"),
        )
        self.queue_ready = gauge(
            "isoloss_queue_ready", "Resources that are due and wait for a worker."
        )
        self.queue_wait = gauge(
            "isoloss_queue_longest_wait_seconds",
            "Longest time that a resource has been waiting for a worker.",
        )
        self.watch_event = gauge(
            "isoloss_watch_last_event_timestamp_seconds",
            "Time of the last watch event.",
            ("kind",),
        )
        self.watch_refused = gauge(
            "isoloss_watch_refused",
            'The API server refuses (1) or allows (0) the watches of a watched namespace; "*": of all.',
            ("namespace",),
        )
        self.watch_lag = gauge(
            "isoloss_watch_lag_seconds",
            "Time for which a watch has not delivered what a live read returned.",
        )
        self.api_calls = counter(
            "isoloss_api_calls",
            "Requests to the API server by HTTP method and status; status 0: no response.",
            ("method", "status"),
        )
        self.api_seconds = histogram(
            "isoloss_api_duration_seconds",
            "Duration of requests to the API server, answered or not.",
            ("method",),
            buckets=SECONDS,
        )
        self.store_seconds = histogram(
            "isoloss_store_duration_seconds",
            "Duration of calls to object storage.",
            ("operation",),
            buckets=SECONDS,
        )
        self.store_errors = counter(
            "isoloss_store_errors",
            "Calls that object storage did not answer, after retries.",
            ("operation",),
        )
        self.jobs = counter(
            "isoloss_job_writes",
            "Jobs created or deleted; task is empty for deletions.",
            ("action", "task"),
        )
        self.attempts = counter(
            "isoloss_attempts_ended",
            "Attempts that ended, by class: Succeeded, or a class of failures (reasons.md).",
            ("namespace", "class"),
        )
        self.fits = counter(
            "isoloss_fits",
            "Fits that ended: fitted, refused, drawn (a page only) or failed.",
            ("result",),
        )
        for result in FIT_RESULTS:
            self.fits.labels(result)
        self.fit_seconds = histogram(
            "isoloss_fit_duration_seconds",
            "Duration of a fit, from reading trajectories to writing the report.",
            buckets=FIT_SECONDS,
        )

    def saw_namespace(self, namespace: str) -> None:
        """Count its attempts of every class from 0: a series that begins with a burst hides it from rate()."""
        for kind in (*FailureClass, SUCCEEDED):
            self.attempts.labels(namespace, kind)

    def page(self) -> bytes:
        """The page that Prometheus scrapes."""
        return prometheus_client.generate_latest(self.registry)
