"""What an operator's own metrics and the kernel say of its work."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from tests.support.operator_process import OperatorProcess

PASSES = "isoloss_reconcile_duration_seconds"


@dataclass(frozen=True)
class Figures:
    """Sums over all labels, and the histogram of the passes' durations."""

    totals: dict[str, float]
    buckets: dict[float, float] = field(default_factory=dict)
    """Passes of at most so many seconds."""

    @property
    def passes(self) -> float:
        """Passes so far."""
        return self.totals.get(f"{PASSES}_count", 0.0)

    def pass_seconds(self, share: float) -> float:
        """Upper edge of the bucket in which this share of the passes ends."""
        wanted = share * self.passes
        edges = sorted(edge for edge, count in self.buckets.items() if count >= wanted)
        return edges[0] if edges else float("inf")


def read_figures(operator: OperatorProcess) -> Figures:
    """Scrape /metrics."""
    with urllib.request.urlopen(f"{operator.url()}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    totals: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
            if sample.name == f"{PASSES}_bucket":
                edge = float(sample.labels["le"])
                buckets[edge] = buckets.get(edge, 0.0) + sample.value
    return Figures(totals, buckets)
