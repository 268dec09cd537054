"""Jobs per second: the operator against a bare loop of the same API calls.

    python -m benchmarks.bench_operator [--points 500] [--parallelism 100] [--rounds 3]

Both drive the same 500 Jobs of a sweep on the same control plane, 16 calls at once, never more than
`parallelism` unfinished. The player of the fault matrix (tests/faults/player.py) ends every pod at once and writes
the point's result.
The bare loop knows the Jobs beforehand: it LISTs, creates what is missing, and LISTs again. The
operator besides finds out what to do, reads and checks every result, keeps the ledger in the store,
writes the status, and survives being killed anywhere. Timed from the start (of the loop, or the
sweep's creation) to the last Job's creation. The ratio is operator over bare loop, per round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config

from benchmarks.operator_figures import read_figures
from devcluster.control_plane import ControlPlane
from isoloss_operator.cluster.client import JOB, Cluster, Conflict, Unavailable
from isoloss_operator.planning.specs import parse_sweep_spec, prepare_config
from tests.support import planted_trainer
from tests.support.crds import install_crds
from tests.support.operator_process import OperatorProcess, User, apply_account, sweep_manifest

WRITERS = 16
SETTLE_SECONDS = 1.0
Json = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """One measurement: seconds from start to the last creation, and to the end of all Jobs."""

    created: float
    ended: float


class Creations:
    """Watches a namespace's train Jobs and notes when each appeared."""

    def __init__(self, cluster: Cluster, namespace: str, points: int) -> None:
        self._cluster, self._namespace, self._points = cluster, namespace, points

    def wait(self, started: float) -> Round:
        """Poll until all Jobs were made and have ended; the polls are the same for both rivals."""
        created = 0.0
        while True:
            jobs = train_jobs(self._cluster, self._namespace)
            if not created and len(jobs) >= self._points:
                created = time.monotonic() - started
            if created and sum(map(is_finished, jobs)) >= self._points:
                return Round(created, time.monotonic() - started)
            time.sleep(0.1)


def prepare(sweep: Json) -> None:
    """Write the manifest of a sweep's corpus where the operator looks for it."""
    spec = parse_sweep_spec(sweep["spec"])
    task = {"config": prepare_config(spec).model_dump(mode="json"), "kind": "prepare"}
    planted_trainer.prepare({**task, "store_uri": spec.storage.uri})


def train_jobs(cluster: Cluster, namespace: str) -> list[Json]:
    """The sweep's train Jobs."""
    return list(cluster.list(JOB, namespace, labels="isoloss.dev/task=train"))


def is_finished(job: Json) -> bool:
    """Whether a Job has ended."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def bare_loop(cluster: Cluster, namespace: str, bodies: list[Json], parallelism: int) -> None:
    """LIST, create up to the parallelism, until all are made: nothing else."""
    left = list(bodies)
    with ThreadPoolExecutor(WRITERS) as pool:
        while left:
            running = sum(not is_finished(job) for job in train_jobs(cluster, namespace))
            now, left = left[: parallelism - running], left[max(0, parallelism - running) :]
            list(pool.map(lambda body: _create(cluster, namespace, body), now))


def _create(cluster: Cluster, namespace: str, body: Json) -> None:
    """Create a Job; once more where the connection broke before the answer."""
    try:
        cluster.create(JOB, namespace, body)
    except Unavailable:
        with suppress(Conflict):
            cluster.create(JOB, namespace, body)


def manifest(points: int, uri: str, parallelism: int) -> Json:
    """A sweep of one small size with that many points."""
    batches = [2 * n for n in range(1, points // 20 + 1)]
    rates = [f"{n}e-4" for n in range(1, 21)]
    proxies = [{"name": "tiny", "model": {"preset": "dense-tiny"}, "tokens": 100_000_000}]
    return sweep_manifest(
        "bench",
        uri,
        grid={"batchSizes": batches, "learningRates": rates},
        proxies=proxies,
        parallelism=parallelism,
        storage={"uri": uri},
        evaluation={"firstTokens": 10_000_000, "perDecade": 4},
    )


class Bench:
    """A control plane, a simulated node and what is measured on them."""

    def __init__(self, folder: Path, points: int, parallelism: int) -> None:
        self.folder, self.points, self.parallelism = folder, points, parallelism
        self.plane = ControlPlane(folder / "plane")
        self.plane.start()
        self.client = self.plane.api_client()
        install_crds(self.client)
        self.cluster = self._cluster(self.plane.admin_kubeconfig)

    def _cluster(self, kubeconfig: Path) -> Cluster:
        configuration = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        configuration.connection_pool_maxsize = WRITERS + 4
        return Cluster(client.ApiClient(configuration))

    def operator_round(self, number: int) -> tuple[Round, list[Json]]:
        """The operator's time for a sweep, and the Jobs that it made."""
        namespace = f"operator-{number}"
        user = self._namespace(namespace)
        uri = f"file://{self.folder}/{namespace}"
        folder = self.folder / f"{namespace}-process"
        folder.mkdir()
        environment = {
            "ISOLOSS_ALLOWED_STORAGE": json.dumps({"*": [f"file://{self.folder}"]}),
            "ISOLOSS_MINIMUM_INTERVAL_SECONDS": "0.25",
            "ISOLOSS_JOB_WRITERS": str(WRITERS),
            "ISOLOSS_API_QPS": "0",
        }
        operator = OperatorProcess(self.plane, [namespace], folder, environment, fresh=True)
        operator.start()
        try:
            operator.url()
            # The corpus is prepared beforehand, so that only points are measured.
            sweep = manifest(self.points, uri, self.parallelism)
            user.apply_sweep({**sweep, "spec": {**sweep["spec"], "suspend": True}})
            prepare(sweep)
            time.sleep(SETTLE_SECONDS)
            with self._node(namespace):
                started = time.monotonic()
                user.apply_sweep(sweep)
                measured = Creations(self.cluster, namespace, self.points).wait(started)
                self._check(user)
                print(f"round {number + 1}: {work_done(operator, self.points)}", flush=True)
            return measured, train_jobs(self.cluster, namespace)
        finally:
            operator.stop()

    def bare_round(self, number: int, jobs: list[Json]) -> Round:
        """The bare loop's time for the same Jobs."""
        namespace = f"bare-{number}"
        user = self._namespace(namespace)
        owner = user.apply_sweep(manifest(self.points, f"file://{self.folder}/{namespace}", 1))
        bodies = [rival_body(job, owner, namespace) for job in jobs]
        cluster = self._cluster(self.plane.admin_kubeconfig)
        time.sleep(SETTLE_SECONDS)
        with self._node(namespace):
            started = time.monotonic()
            loop = threading.Thread(
                target=bare_loop, args=(cluster, namespace, bodies, self.parallelism)
            )
            loop.start()
            measured = Creations(self.cluster, namespace, self.points).wait(started)
            loop.join()
        return measured

    def _namespace(self, name: str) -> User:
        body: Any = {"metadata": {"name": name}}
        client.CoreV1Api(self.client).create_namespace(body)
        apply_account(self.client, name)
        return User(self.client, name)

    def _check(self, user: User) -> None:
        """No figure without a sweep that really is done."""
        deadline = time.monotonic() + 60
        while user.sweep("bench")["status"]["points"]["succeeded"] < self.points:
            if time.monotonic() > deadline:
                raise RuntimeError(json.dumps(user.sweep("bench")["status"], indent=1))
            time.sleep(0.2)

    @contextmanager
    def _node(self, namespace: str) -> Iterator[None]:
        log = str(self.folder / f"{namespace}.jsonl")
        arguments = [str(self.plane.admin_kubeconfig), namespace, f"node-{namespace}", log]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.player", *arguments],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        time.sleep(SETTLE_SECONDS)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def work_done(operator: OperatorProcess, points: int) -> str:
    """What the operator's own metrics say of its work."""
    figures = read_figures(operator)
    totals, passes = figures.totals, figures.passes
    seconds = totals["isoloss_reconcile_duration_seconds_sum"]
    return (
        f"{passes:.0f} passes of {seconds / passes:.2f} s, "
        f"{totals['isoloss_api_calls_total'] / points:.2f} API calls and "
        f"{totals['isoloss_store_duration_seconds_count'] / points:.2f} store calls a point, "
        f"{totals['isoloss_process_cpu_seconds_total'] / points * 1000:.0f} ms of CPU a point, "
        f"{totals['isoloss_process_resident_memory_bytes'] / 2**20:.0f} MiB"
    )


def rival_body(job: Json, owner: Json, namespace: str) -> Json:
    """The body that the operator sent, for the rival's namespace and owner."""
    metadata = job["metadata"]
    reference = {
        **metadata["ownerReferences"][0],
        "uid": owner["metadata"]["uid"],
        "name": owner["metadata"]["name"],
    }
    template = job["spec"]["template"]
    own = {k: v for k, v in template["metadata"]["labels"].items() if "isoloss" in k}
    text = json.dumps(
        {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "metadata": {
                "name": metadata["name"],
                "namespace": namespace,
                "labels": metadata["labels"],
                "annotations": metadata["annotations"],
                "ownerReferences": [reference],
            },
            "spec": {
                "backoffLimit": 0,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": job["spec"]["podFailurePolicy"],
                "template": {**template, "metadata": {"labels": own}},
            },
        }
    )
    body: Json = json.loads(text.replace(metadata["namespace"], namespace))
    return body


def report(name: str, points: int, operator: list[float], bare: list[float]) -> None:
    """One line: rates and their ratio with its spread over rounds."""
    ratios = sorted(b / o for o, b in zip(operator, bare, strict=True))
    rate: Callable[[list[float]], float] = lambda times: points / statistics.median(times)  # noqa: E731
    print(
        f"{name:<10} operator {rate(operator):6.1f}/s   bare loop {rate(bare):6.1f}/s   "
        f"ratio {statistics.median(ratios):.2f} (rounds: {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def main() -> None:
    """Run the rounds, rivals in turn, and print the medians."""
    parser = argparse.ArgumentParser(description="Jobs per second against a bare loop.")
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--parallelism", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `finally` is reached
    folder = Path(tempfile.mkdtemp(prefix="isoloss-bench-"))
    bench = Bench(folder, options.points, options.parallelism)
    operator, bare = [], []
    try:
        for number in range(options.rounds):
            measured, jobs = bench.operator_round(number)
            operator.append(measured)
            bare.append(bench.bare_round(number, jobs))
            print(f"round {number + 1}: operator {operator[-1]}, bare loop {bare[-1]}", flush=True)
    finally:
        bench.plane.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\n{options.points} points, parallelism {options.parallelism}, {os.cpu_count()} cores, "
        f"median of {options.rounds} rounds"
    )
    report("created", options.points, [r.created for r in operator], [r.created for r in bare])
    report("ended", options.points, [r.ended for r in operator], [r.ended for r in bare])


if __name__ == "__main__":
    main()
