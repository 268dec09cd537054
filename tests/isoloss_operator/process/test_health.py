"""Probes and metrics: a stuck watch, a busy process, a resource that is gone."""

import json
import logging
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isoloss_operator.api import statuses
from isoloss_operator.process.health import HealthServer
from isoloss_operator.process.logs import JsonFormatter
from isoloss_operator.process.metrics import Metrics
from isoloss_operator.process.sweep_load import SweepLoad
from isoloss_operator.process.watchdog import WatchDog
from isoloss_operator.settings import Settings
from tests.support.chance import Clock

ORDER = ("namespace", "name", "state", "kind", "condition", "reason", "size", "bound")


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_watch_that_delivers_what_was_read_or_a_newer_one_has_no_lag(version: str) -> None:
    clock = Clock()
    dog = WatchDog(clock)
    dog.read("sweep", {"uid": "1"})
    clock.now += 1
    dog.delivered("uid", version)
    clock.now += 1000
    assert dog.lag() == 0
    dog.read("sweep", {"uid": version})
    assert dog.lag() == 0


def test_a_watch_that_stays_silent_lags_from_the_first_read_on() -> None:
    clock = Clock()
    dog = WatchDog(clock)
    dog.delivered("uid", "1")
    dog.read("sweep", {"uid": "2"})
    clock.now += 100
    dog.read("sweep", {"uid": "3"})
    assert dog.lag() == 100


def test_what_is_gone_is_awaited_no_longer() -> None:
    clock = Clock()
    dog = WatchDog(clock)
    dog.read("jobs", {"a": "1", "b": "1"})
    clock.now += 100
    dog.read("jobs", {"b": "1"})
    dog.delivered("b", "1", gone=True)
    assert dog.lag() == 0
    dog.read("jobs", {"c": "1"})
    dog.forget("jobs")
    clock.now += 100
    assert dog.lag() == 0


def ask(server: HealthServer, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_answer_with_what_is_wrong() -> None:
    problems = {"healthy": "", "ready": "starting"}
    server = HealthServer(
        "127.0.0.1",
        0,
        healthy=lambda: problems["healthy"],
        ready=lambda: problems["ready"],
        metrics=lambda: b"x 1\n",
    )
    server.start()
    try:
        assert ask(server, "/healthz") == (200, "ok\n")
        assert ask(server, "/readyz") == (500, "starting\n")
        assert ask(server, "/metrics?x=1") == (200, "x 1\n")
        assert ask(server, "/else")[0] == 404
        problems["healthy"] = "stuck"
        assert ask(server, "/healthz") == (500, "stuck\n")
    finally:
        server.stop()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_probes_are_answered_over_ipv4_and_over_ipv6() -> None:
    """By default, as a cluster has one of them or both."""
    address = Settings(trainer_image="trainer:1").http_address
    nothing = lambda: ""  # noqa: E731
    server = HealthServer(address, 0, healthy=nothing, ready=nothing, metrics=lambda: b"")
    server.start()
    try:
        assert ask(server, "/healthz", "127.0.0.1") == (200, "ok\n")
        assert ask(server, "/healthz", "[::1]") == (200, "ok\n")
    finally:
        server.stop()


def status(done: int) -> statuses.ScalingSweepStatus:
    condition = statuses.Condition(
        type="Ready",
        status="False",
        reason="Training",
        message="m",
        last_transition_time="2026-01-01T00:00:00Z",
    )
    return statuses.ScalingSweepStatus(
        points=statuses.PointCounts(total=10, succeeded=done, pending=10 - done),
        planned_flops="2.5e14",
        accelerator_hours="0.50",
        estimated_completion="2026-01-01T00:00:10Z",
        conditions=(condition,),
    )


def page(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            labels = [sample.labels[name] for name in ORDER if name in sample.labels]
            found.setdefault(sample.name, {})[tuple(labels)] = sample.value
    return found


def test_a_sweeps_gauges_come_from_its_status_and_go_with_it() -> None:
    metrics = Metrics()
    load = SweepLoad(lowest_losses={"tiny": 4.1, "small": 3.7})
    metrics.statuses.show_sweep(("ns", "dense"), status(2), load, now=100.0)
    metrics.statuses.show_sweep(("ns", "dense"), status(4), load, now=200.0)
    metrics.statuses.show_sweep(("ns", "dense"), status(4), load, now=300.0)
    shown = page(metrics)
    assert shown["isoloss_scalingsweep_lowest_loss"] == {
        ("ns", "dense", "tiny"): 4.1,
        ("ns", "dense", "small"): 3.7,
    }
    assert shown["isoloss_scalingsweep_points"]["ns", "dense", "succeeded"] == 4
    assert shown["isoloss_scalingsweep_progress_ratio"]["ns", "dense"] == 0.4
    assert shown["isoloss_scalingsweep_last_progress_timestamp_seconds"]["ns", "dense"] == 200.0
    assert shown["isoloss_scalingsweep_compute_flops"]["ns", "dense", "planned"] == 2.5e14
    assert shown["isoloss_scalingsweep_accelerator_seconds"]["ns", "dense"] == 1800
    assert shown["isoloss_scalingsweep_condition"]["ns", "dense", "Ready", "Training"] == 0
    metrics.statuses.drop_sweep(("ns", "dense"))
    assert "isoloss_scalingsweep_points" not in page(metrics)


def test_a_sweep_whose_attempts_never_get_further_makes_no_progress() -> None:
    """As where pods are preempted again and again before they have written a checkpoint."""
    metrics, name = Metrics(), ("ns", "dense")

    def show(now: float, spent: str, *active: statuses.ActivePoint) -> float:
        shown = status(2).model_copy(update={"active": active, "spent_flops": spent})
        metrics.statuses.show_sweep(name, shown, SweepLoad(), now)
        return page(metrics)["isoloss_scalingsweep_last_progress_timestamp_seconds"][name]

    assert show(100.0, "1e13", statuses.ActivePoint(name="p", tokens=500)) == 100.0
    assert show(200.0, "1e13") == 100.0
    assert show(300.0, "1e13", statuses.ActivePoint(name="p-a2", tokens=20)) == 100.0
    assert show(400.0, "1.1e13", statuses.ActivePoint(name="p-a2", tokens=550)) == 400.0


def test_every_metric_begins_with_isoloss_and_none_tells_when_it_was_created() -> None:
    metrics = Metrics()
    metrics.statuses.show_sweep(("ns", "dense"), status(2), SweepLoad(), now=100.0)
    metrics.statuses.show_prediction(("ns", "answer"), prediction_status())
    metrics.reconcile_errors.labels("ScalingSweep", "ValueError").inc()
    metrics.jobs.labels("create", "train").inc()
    metrics.store_seconds.labels("read").observe(0.1)
    names = page(metrics).keys()
    assert [name for name in names if not name.startswith("isoloss_")] == []
    assert [name for name in names if name.endswith("_created")] == []
    assert "isoloss_process_resident_memory_bytes" in names


def test_an_answer_its_interval_and_its_extrapolation_are_numbers() -> None:
    metrics = Metrics()
    metrics.statuses.show_prediction(("ns", "answer"), prediction_status())
    ratio = "isoloss_hyperparamprediction_extrapolation_ratio"
    assert page(metrics)[ratio]["ns", "answer"] == 4.27134
    rate = statuses.IntervalStatus(value="3e-4", low="2e-4", high="5e-4")
    answered = statuses.HyperparamPredictionStatus(
        learning_rate=rate, initial_loss=statuses.IntervalStatus(value="2.1")
    )
    metrics.statuses.show_prediction(("ns", "answer"), answered)
    shown = page(metrics)
    rates = shown["isoloss_hyperparamprediction_learning_rate"]
    assert {bound: rates["ns", "answer", bound] for bound in ("value", "low", "high")} == {
        "value": 3e-4,
        "low": 2e-4,
        "high": 5e-4,
    }
    assert shown["isoloss_hyperparamprediction_initial_loss"] == {("ns", "answer", "value"): 2.1}
    assert "isoloss_hyperparamprediction_batch_size" not in shown
    assert ratio not in shown


def prediction_status() -> statuses.HyperparamPredictionStatus:
    far = statuses.ExtrapolationStatus(compute_factor="4.27134")
    return statuses.HyperparamPredictionStatus(extrapolation=far)


def test_gauges_that_name_resources_can_be_left_out() -> None:
    metrics = Metrics(per_object=False)
    metrics.statuses.show_sweep(("ns", "dense"), status(2), SweepLoad(), now=100.0)
    assert "isoloss_scalingsweep_points" not in page(metrics)
    assert "isoloss_build_info" in page(metrics)


def test_log_lines_are_json_with_the_traceback_inside() -> None:
    logger = logging.Logger("x")
    try:
        raise ValueError("no")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logger.makeRecord("x", logging.ERROR, "f", 1, "said %s", ("ü\n",), info)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    document = json.loads(line)
    assert document["message"] == "said ü\n"
    assert "ValueError: no" in document["exception"]
