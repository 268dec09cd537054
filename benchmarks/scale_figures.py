"""What bench_scale measures of a case, what of that the operator itself says, its goals, and the cases side by side."""

import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from statistics import median

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


@dataclass(frozen=True)
class Measured:
    """One case; per point means per point of all sweeps."""

    case: str
    jobs_per_second: float
    rival_jobs_per_second: float
    api_calls_per_point: float
    api_bytes_per_point: float
    store_calls_per_point: float
    store_bytes_written_per_point: float
    store_bytes_read_per_point: float
    cpu_ms_per_point: float
    pass_p50_seconds: float
    pass_p99_seconds: float
    peak_mib: float
    largest_status_bytes: int
    laws_after_last_job_seconds: float
    idle_passes_per_sweep_in_10_minutes: float
    restart_seconds: float
    ratios: tuple[float, ...] = ()
    """Operator over rival in each round; empty for a round itself."""

    @property
    def ratio(self) -> float:
        """Operator over rival, the median of the rounds."""
        return median(self.ratios or (self.jobs_per_second / self.rival_jobs_per_second,))


LARGEST = frozenset({"peak_mib", "largest_status_bytes", "restart_seconds", "pass_p99_seconds"})
"""Figures of which the worst round counts; of the others it is the median."""


def over_rounds(rounds: Sequence[Measured]) -> Measured:
    """One case measured several times."""
    figures = [each.name for each in fields(Measured) if each.name not in ("case", "ratios")]
    summed_up = {
        name: (max if name in LARGEST else median)([getattr(each, name) for each in rounds])
        for name in figures
    }
    return replace(rounds[0], **summed_up, ratios=tuple(each.ratio for each in rounds))


GOALS: tuple[tuple[str, str, float], ...] = (
    ("ratio", ">=", 0.7),
    ("idle_passes_per_sweep_in_10_minutes", "<=", 1),
    ("peak_mib", "<=", 300),
    ("restart_seconds", "<=", 10),
    ("largest_status_bytes", "<=", 32 * 2**10),
    ("laws_after_last_job_seconds", "<=", 3),
)
"""The last holds at 100 points: a fit of more takes longer by nature."""
FLAT = ("api_calls_per_point", "api_bytes_per_point", "store_bytes_written_per_point")
FLAT_WITHIN = 1.5


def report(found: list[Measured]) -> None:
    """The figures side by side, then the goals."""
    rows = [*(row for row in asdict(found[0]) if row != "ratios"), "ratio"]
    for row in rows:
        cells = [getattr(each, row) for each in found]
        shown = [f"{c:>14}" if isinstance(c, str | int) else f"{c:>14.3g}" for c in cells]
        print(f"{row:<38}{''.join(shown)}")
    spreads = "".join(f"{f'{min(e.ratios):.2f} to {max(e.ratios):.2f}':>14}" for e in found)
    print(f"{'ratio, lowest to highest round':<38}{spreads}\n")
    for each in found:
        for name, sign, goal in GOALS:
            if name.startswith("laws") and each.case != "1 x 100":
                continue
            value = getattr(each, name)
            met = value >= goal if sign == ">=" else value <= goal
            print(f"{each.case}: {name} {value:.3g} {sign} {goal:g}: {'yes' if met else 'NO'}")
    single = [each for each in found if each.case.startswith("1 x")]
    for name in (*FLAT, "cpu_ms_per_point") if len(single) > 1 else ():
        costs = [getattr(each, name) for each in single]
        growth = costs[-1] / costs[0]
        print(
            f"growth of {name} from {single[0].case} to {single[-1].case}: {growth:.2f} "
            f"(goal {FLAT_WITHIN}): {'yes' if growth <= FLAT_WITHIN else 'NO'}"
        )
