"""What a sweep costs from 100 to 10,000 points, on a real control plane with instantly finishing pods.

    python -m benchmarks.bench_scale [--cases 100,1000,10000,50x100] [--idle-seconds 120] [--rounds 5]

A kubelet (tests/faults/fake_kubelet.py) ends every pod at once and writes its result through S3; 20% of the
points diverge and 10% fail. The operator is its real process; its calls to API server and store go
through meters that count bytes on the wire. The rival is a bare loop of the same API calls:
it creates the same Jobs at the same parallelism, through the same meter, for the same kubelet.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks import bare_loop
from benchmarks.byte_meter import Meter
from benchmarks.scale_figures import Figures, Measured, over_rounds, read_figures, report
from tests.faults.harness import BUCKET, Harness, own_harness
from tests.support.models import example_model
from tests.support.operator_process import (
    OperatorProcess,
    User,
    apply_account,
    env_template,
    sweep_manifest,
)
from tests.support.proxy import wait_for

Json = dict[str, Any]
PARALLELISM = 1000
SHARES = {"diverged": 0.2, "failed": 0.1}
SETTLE_SECONDS = 2.0
LIMIT_SECONDS = 1800.0
GRIDS = {100: (5, 10), 1000: (20, 25), 10_000: (100, 50)}
"""Batch sizes and learning rates of each of two proxies, by points."""
ROUNDS = {100: 5, 1000: 3}
"""By the points of all sweeps: a second of creating Jobs says little once. Larger cases have one round."""


@dataclass(frozen=True)
class Case:
    """So many sweeps of so many points, applied at once."""

    sweeps: int
    points: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """From "1000" or "50x100"."""
        sweeps, _, points = text.rpartition("x")
        return cls(int(sweeps or 1), int(points))

    @property
    def total(self) -> int:
        """Points of all sweeps."""
        return self.sweeps * self.points


def manifest(name: str, points: int, uri: str, parallelism: int) -> Json:
    """A sweep of two sizes with that many points in all."""
    batches, rates = GRIDS[points]
    proxies = [
        {"name": "tiny", "model": {"config": example_model("dense-tiny")}, "tokens": 4_000_000},
        {"name": "small", "model": {"config": example_model("dense-small")}, "tokens": 8_000_000},
    ]
    return sweep_manifest(
        name,
        uri,
        grid={
            "batchSizes": [2 * n for n in range(1, batches + 1)],
            "learningRates": [f"{n}e-4" for n in range(10, 10 + rates)],
        },
        proxies=proxies,
        parallelism=parallelism,
        storage={"uri": uri},
        evaluation={"firstTokens": 1_000_000, "perDecade": 8},
        podTemplate=env_template(SYNTHETIC_SHARES=json.dumps(SHARES)),
        failurePolicy={"retriesPerPoint": 0, "maxFailedPoints": points},
        # The rival is given the very Jobs that the operator made.
        jobs={"ttlSecondsAfterFinished": {"succeeded": 86_400, "failed": 86_400}},
    )


class Bench:
    """Servers, kubelet and meters, and what is measured with them."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        os.environ.update(harness.storage.environment())

    def measure(self, case: Case, idle_seconds: float, rounds: int | None) -> Measured:
        """One case, so many times."""
        rounds = rounds or ROUNDS.get(case.total, 1)
        return over_rounds(
            [self._round(case, number, idle_seconds / rounds) for number in range(rounds)]
        )

    def _round(self, case: Case, number: int, idle_seconds: float) -> Measured:
        """Operator first."""
        namespace = self.harness.new_namespace(f"scale-{case.sweeps}x{case.points}-{number}")
        apply_account(self.harness.api_client, namespace)
        api, store = Meter(_port(self.harness.plane.url)), Meter(_port(self.harness.storage.url))
        try:
            operator = self._operator(namespace, api.port, store.port)
            try:
                return self._measure(case, namespace, operator, (api, store), idle_seconds)
            finally:
                if operator.is_running():
                    operator.stop()
        finally:
            api.stop()
            store.stop()

    def _operator(self, namespace: str, api_port: int, store_port: int) -> OperatorProcess:
        folder = self.harness.directory / namespace
        folder.mkdir()
        environment = {
            **self.harness.storage.environment(),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store_port}",
            "ISOLOSS_ALLOWED_STORAGE": json.dumps({"*": [f"s3://{BUCKET}"]}),
            "ISOLOSS_MINIMUM_INTERVAL_SECONDS": "0.25",
            "ISOLOSS_JOB_WRITERS": str(bare_loop.WRITERS),
            "ISOLOSS_API_QPS": "0",
            # A warm cache of fonts, as in an image that has drawn a figure before.
            "MPLCONFIGDIR": matplotlib.get_cachedir(),
            "ISOLOSS_LEASE_SECONDS": "15",
            "ISOLOSS_RENEW_DEADLINE_SECONDS": "10",
            "ISOLOSS_RENEW_PERIOD_SECONDS": "2",
        }
        operator = OperatorProcess(
            self.harness.plane, [namespace], folder, environment, fresh=True
        )
        operator.kubeconfig = _through(operator.log_in(), api_port, folder / "metered.json")
        return operator

    def _measure(
        self,
        case: Case,
        namespace: str,
        operator: OperatorProcess,
        meters: tuple[Meter, Meter],
        idle_seconds: float,
    ) -> Measured:
        journal, user = self.harness.journal, User(self.harness.api_client, namespace)
        names = [f"s{number:02}" for number in range(case.sweeps)]
        sweeps = [
            manifest(name, case.points, f"s3://{BUCKET}/{namespace}/{name}", PARALLELISM)
            for name in names
        ]
        operator.start()
        operator.url()
        for sweep in sweeps:
            # The corpus is prepared beforehand, so that only points are measured.
            bare_loop.prepare(
                user.apply_sweep({**sweep, "spec": {**sweep["spec"], "suspend": True}})
            )
        for name in names:
            user.wait_for(partial(user.sweep, name), "Suspended")
        time.sleep(SETTLE_SECONDS)
        started = time.monotonic()
        for sweep in sweeps:
            user.apply_sweep(sweep)
        _wait(lambda: len(journal.jobs_seen_at(namespace)) >= case.total, "all Jobs")
        made = max(journal.jobs_seen_at(namespace)) - started
        _wait(lambda: len(journal.jobs_ended_at(namespace)) >= case.total, "all Jobs to end")
        keys = [(namespace, name) for name in names]
        _wait(lambda: all(key in journal.fitted_at for key in keys), "the laws")
        lag = max(journal.fitted_at[key] for key in keys) - max(journal.jobs_ended_at(namespace))
        figures, (api, store) = read_figures(operator), (meter.read() for meter in meters)
        if (written := figures.totals["isoloss_job_writes_total"]) > case.total:
            raise RuntimeError(
                f"{written:.0f} Jobs for {case.total} points: not points alone were measured"
            )
        peak = operator.peak_bytes()
        print(f"  operator: {case.total / made:.1f} Jobs/s, laws after {lag:.1f} s", flush=True)
        _wait(
            lambda: all(user.sweep(name)["status"].get("reportUri") for name in names), "reports"
        )
        idle = self._idle(operator, idle_seconds) / case.sweeps
        restart = self._restart(operator, case.sweeps)
        operator.stop()
        rival = self._rival(case, namespace, sweeps, meters[0].port)
        totals = figures.totals
        return Measured(
            case=f"{case.sweeps} x {case.points}",
            jobs_per_second=case.total / made,
            rival_jobs_per_second=case.total / rival,
            api_calls_per_point=totals["isoloss_api_calls_total"] / case.total,
            api_bytes_per_point=api.total() / case.total,
            store_calls_per_point=totals["isoloss_store_duration_seconds_count"] / case.total,
            store_bytes_written_per_point=store["sent"] / case.total,
            store_bytes_read_per_point=store["received"] / case.total,
            cpu_ms_per_point=totals["isoloss_process_cpu_seconds_total"] / case.total * 1000,
            pass_p50_seconds=figures.pass_seconds(0.5),
            pass_p99_seconds=figures.pass_seconds(0.99),
            peak_mib=peak / 2**20,
            largest_status_bytes=journal.largest_status[namespace],
            laws_after_last_job_seconds=lag,
            idle_passes_per_sweep_in_10_minutes=idle,
            restart_seconds=restart,
        )

    def _idle(self, operator: OperatorProcess, seconds: float) -> float:
        """Passes in ten minutes over finished sweeps, from those seen in `seconds`."""
        time.sleep(SETTLE_SECONDS)
        before = read_figures(operator).passes
        time.sleep(seconds)
        return (read_figures(operator).passes - before) * 600 / seconds

    def _restart(self, operator: OperatorProcess, sweeps: int) -> float:
        """Seconds from a start until every sweep has been seen through and none waits."""
        operator.stop()
        started = time.monotonic()
        operator.start()
        operator.url()

        def is_through(figures: Figures) -> bool:
            waiting = figures.totals.get("isoloss_queue_ready", 0.0)
            return figures.passes >= sweeps and not waiting

        _wait(lambda: is_through(read_figures(operator)), "the first passes after a restart")
        return time.monotonic() - started

    def _rival(self, case: Case, namespace: str, sweeps: list[Json], port: int) -> float:
        """Seconds that the bare loop takes to create the same Jobs."""
        jobs = bare_loop.train_jobs(
            bare_loop.cluster_of(self.harness.plane.admin_kubeconfig), namespace
        )
        place = self.harness.new_namespace(f"rival-of-{namespace}")
        user = User(self.harness.api_client, place)
        owner = user.apply_sweep({**sweeps[0], "spec": {**sweeps[0]["spec"], "suspend": True}})
        bodies = [bare_loop.rival_body(job, owner, place) for job in jobs]
        metered = _through(
            self.harness.plane.admin_kubeconfig, port, self.harness.directory / f"{place}.json"
        )
        cluster = bare_loop.cluster_of(metered)
        journal = self.harness.journal
        time.sleep(SETTLE_SECONDS)
        started = time.monotonic()
        loop = threading.Thread(
            target=bare_loop.bare_loop, args=(cluster, place, bodies, PARALLELISM * case.sweeps)
        )
        loop.start()
        _wait(lambda: len(journal.jobs_seen_at(place)) >= len(bodies), "the rival's Jobs")
        loop.join()
        seconds = max(journal.jobs_seen_at(place)) - started
        print(f"  bare loop: {len(bodies) / seconds:.1f} Jobs/s", flush=True)
        _wait(lambda: len(journal.jobs_ended_at(place)) >= len(bodies), "them to end")
        return seconds


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _through(kubeconfig: Path, port: int, target: Path) -> Path:
    """A copy of a kubeconfig that leads through a meter."""
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    target.write_text(json.dumps(document))
    return target


def _wait(holds: Callable[[], bool], what: str) -> None:
    if not wait_for(holds, LIMIT_SECONDS):
        raise RuntimeError(f"waited {LIMIT_SECONDS:.0f} s for {what}")


def main() -> None:
    """Measure the cases in turn."""
    parser = argparse.ArgumentParser(description="Cost of a sweep from 100 to 10,000 points.")
    parser.add_argument("--cases", default="100,1000,10000,50x100")
    parser.add_argument("--idle-seconds", type=float, default=120)
    parser.add_argument(
        "--rounds", type=int, help=f"of each case; by default {ROUNDS} by points, else 1"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `finally` is reached
    found: list[Measured] = []
    with own_harness() as harness:
        for text in options.cases.split(","):
            print(f"{text} points", flush=True)
            found.append(
                Bench(harness).measure(Case.parse(text), options.idle_seconds, options.rounds)
            )
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    report(found)


if __name__ == "__main__":
    main()
