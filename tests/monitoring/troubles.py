"""What goes wrong with an installation, and what only looks like it, as Prometheus sees both over time."""

from dataclasses import dataclass

from isoloss_operator.decide.jobs import UNCHARGED
from tests.monitoring.rules import JOB

OPERATOR = f'job="{JOB}"'
SWEEP = f'{OPERATOR},namespace="research",name="dense"'


def metric(name: str, of: str = OPERATOR, **labels: str) -> str:
    pairs = ",".join([of, *(f'{label}="{value}"' for label, value in labels.items())])
    return f"isoloss_{name}{{{pairs}}}"


def of_sweep(name: str, **labels: str) -> str:
    return metric(f"scalingsweep_{name}", SWEEP, **labels)


SWEEP_CLOCK = of_sweep("last_progress_timestamp_seconds")


def condition(kind: str, condition: str, reason: str = "Any") -> str:
    return metric(f"{kind}_condition", SWEEP, condition=condition, reason=reason)


def sweep_ready(reason: str) -> str:
    return condition("scalingsweep", "Ready", reason)


def prediction_ready(reason: str) -> str:
    return condition("hyperparamprediction", "Ready", reason)


def jobs(state: str) -> str:
    return of_sweep("jobs", state=state)


def attempts(kind: str) -> str:
    return metric("attempts_ended_total", namespace="research", **{"class": kind})


CRASH_LOOP = "".join(f"{360 * start} stale _ _ _ _ " for start in range(10))
"""Values of one minute in six, for an hour: Kubernetes waits five minutes between the starts."""


@dataclass(frozen=True)
class Row:
    """A trouble that begins at minute 0 or 10 and ends later; one value a minute, in promtool's notation."""

    alert: str
    series: dict[str, str]
    fires: int = 30
    """Minute."""
    clears: int = 100
    """Minute."""
    quiet: int = 0
    """Minute at which nothing fires yet."""


ROWS: dict[str, Row] = {
    "nobody leads": Row("OperatorDown", {metric("leader"): "1x10 0x59 1x80"}),
    "no operator is there to scrape": Row("OperatorDown", {metric("leader"): "1x10 _x59 1x80"}),
    "the operator runs for a minute, ends, and is started again after five": Row(
        "OperatorDown",
        {
            metric("leader"): "1 stale _ _ _ _ " * 10 + "1x80",
            metric("process_start_time_seconds"): CRASH_LOOP + "3600x80",
        },
    ),
    "two processes lead": Row(
        "TwoLeaders",
        {
            metric("leader", pod="a"): "1x140",
            metric("leader", pod="b"): "1x60 0x80",
        },
    ),
    "two processes lead that are scraped without a pod's name": Row(
        "TwoLeaders",
        {
            metric("leader", instance="10.0.0.1:8080"): "1x140",
            metric("leader", instance="10.0.0.2:8080"): "1x60 0x80",
        },
    ),
    "two releases serve one sweep": Row(
        "TwoLeaders",
        {
            metric("leader"): "1x140",
            of_sweep("progress_ratio"): "0x140",
            'isoloss_scalingsweep_progress_ratio{job="other",namespace="research",name="dense"}': "0x60",
        },
    ),
    "passes fail": Row(
        "ReconcileErrors",
        {metric("reconcile_errors_total", kind="ScalingSweep", error="KeyError"): "0+6x60 360x80"},
    ),
    "a resource waits for a worker": Row(
        "QueueStuck", {metric("queue_longest_wait_seconds"): "400x60 0x80"}
    ),
    "a watch is silent": Row("WatchStale", {metric("watch_lag_seconds"): "100x60 0x80"}),
    "a watched namespace is deleted": Row(
        "WatchRefused",
        {
            metric("watch_refused", namespace="research"): "1x60 0x80",
            metric("watch_refused", namespace="physics"): "0x140",
        },
    ),
    "one store call in ten fails": Row(
        "StoreErrors",
        {
            metric("store_errors_total", operation="read"): "0+1x60 60x80",
            metric("store_duration_seconds_count", operation="read"): "0+10x140",
        },
    ),
    "one request in ten fails": Row(
        "APIErrors",
        {
            metric("api_calls_total", method="GET", status="503"): "0+1x60 60x80",
            metric("api_calls_total", method="GET", status="200"): "0+9x140",
        },
    ),
    "a training attempt crashes every minute": Row(
        "AttemptsFailing",
        {attempts("Crashed"): "0+1x60 60x180"},
        clears=150,
    ),
    "twenty attempts crashed while the operator was away": Row(
        "AttemptsFailing",
        {attempts("Crashed"): "_x10 20x180"},
        quiet=10,
    ),
    "twenty attempts crash at once after a quiet start": Row(
        "AttemptsFailing",
        {attempts("Crashed"): "0x10 20x180"},
        quiet=10,
    ),
    "a sweep stalls": Row(
        "SweepStalled",
        {
            condition("scalingsweep", "Stalled", "BadData"): "1x60",
            condition("scalingsweep", "Stalled", "NothingWrong"): "_x61 0x80",
        },
    ),
    "a prediction stalls": Row(
        "PredictionStalled",
        {
            condition("hyperparamprediction", "Stalled", "ConfigMapTaken"): "1x60",
            condition("hyperparamprediction", "Stalled", "NothingWrong"): "_x61 0x80",
        },
    ),
    "pods wait for a Secret": Row(
        "PodsBlocked", {jobs("blocked"): "2x60 0x80", jobs("running"): "4x140"}
    ),
    "no node has room for any pod": Row(
        "PodsBlocked", {jobs("unschedulable"): "9x60 5x80", jobs("running"): "0x60 4x80"}
    ),
    "the pod that measures a checkpoint waits for a Secret": Row(
        "PodsBlocked", {prediction_ready("SecretMissing"): "0x60"}
    ),
    "no node has room for the pod that measures a checkpoint": Row(
        "PodsBlocked", {prediction_ready("Unschedulable"): "0x60"}
    ),
    "all Jobs are queued": Row(
        "QueuedLong",
        {jobs("queued"): "3x200", jobs("running"): "0x100 1x100"},
        fires=90,
        clears=150,
    ),
    "the Job that measures a checkpoint is queued": Row(
        "QueuedLong",
        {prediction_ready("Queued"): "0x100", prediction_ready("Evaluating"): "_x101 0x100"},
        fires=90,
        clears=150,
    ),
    "points train and none advances": Row(
        "NoProgress",
        {
            SWEEP_CLOCK: "0x180 10860+60x80",
            sweep_ready("Training"): "0x260",
            condition("scalingsweep", "Stalled", "NothingWrong"): "0x260",
        },
        quiet=140,
        fires=170,
        clears=200,
    ),
    "points crash and are retried for ever": Row(
        "NoProgress",
        {
            SWEEP_CLOCK: "0x180 10860+60x80",
            sweep_ready("Training"): "0 0 0 0 0 _ _ _ _ _ " * 26,
            sweep_ready("WaitingToRetry"): "_ _ _ _ _ 0 0 0 0 0 " * 26,
        },
        fires=170,
        clears=200,
    ),
    "a quota refuses every Job of a sweep": Row(
        "NoProgress",
        {
            SWEEP_CLOCK: "0x180 10860+60x80",
            sweep_ready("JobRefused"): "0x180",
            sweep_ready("Training"): "_x181 0x80",
        },
        fires=170,
        clears=200,
    ),
    "a quota refuses the Job that measures a checkpoint": Row(
        "NoProgress",
        {
            prediction_ready("JobRefused"): "0x180",
            prediction_ready("Evaluating"): "_x181 0x5",
            prediction_ready("Predicted"): "_x187 1x80",
        },
        quiet=110,
        fires=130,
        clears=200,
    ),
    "a checkpoint is measured for hours": Row(
        "NoProgress",
        {prediction_ready("Evaluating"): "0x180", prediction_ready("Predicted"): "_x181 1x80"},
        fires=130,
        clears=200,
    ),
    "a prediction names no sweep and then one that trains": Row(
        "NoProgress",
        {
            prediction_ready("SweepNotFound"): "0x180",
            prediction_ready("SweepNotReady"): "_x181 0x80",
        },
        fires=130,
        clears=200,
    ),
    "a prepare Job hangs for a day": Row(
        "PreparationLong",
        {
            SWEEP_CLOCK: "0x1600",
            sweep_ready("PreparingData"): "0x1500",
            sweep_ready("Training"): "_x1501 0x100",
        },
        quiet=1430,
        fires=1450,
        clears=1550,
    ),
    "passes fail that take two minutes each": Row(
        "ReconcileErrors",
        {metric("reconcile_errors_total", kind="ScalingSweep", error="Timeout"): "0+0.4x60 24x80"},
        fires=40,
    ),
    "one point is silent": Row(
        "PointHung",
        {of_sweep("oldest_progress_timestamp_seconds"): "0x60 3660+60x80"},
        fires=40,
    ),
    "a point failed for good": Row(
        "PointsFailed", {of_sweep("points", state="failed"): "1x60 0x80"}
    ),
    "the budget burns and is then raised": Row(
        "BudgetNear",
        {
            of_sweep("budget_used_ratio", limit="acceleratorHours"): "0+0.01x110 0.6x80",
            sweep_ready("Training"): "0x110 0x80",
        },
        quiet=85,
        fires=100,
        clears=130,
    ),
    "the budget is nearly spent and then raised": Row(
        "BudgetNear",
        {
            of_sweep("budget_used_ratio", limit="flops"): "0.95x60 0.5x80",
            condition("scalingsweep", "Ready", "Training"): "0x140",
        },
    ),
    "the budget is nearly spent by a sweep that is then ready": Row(
        "BudgetNear",
        {
            of_sweep("budget_used_ratio", limit="flops"): "0.95x140",
            condition("scalingsweep", "Ready", "Fitted"): "_x60 1x80",
        },
    ),
    "a fit cannot run": Row(
        "FitFailing", {condition("scalingsweep", "FitReady", "FitFailed"): "0x60"}
    ),
    "an answer is stale": Row(
        "PredictionStale",
        {condition("hyperparamprediction", "Stale", "SweepNotReady"): "1x100 0x80"},
        fires=80,
        clears=150,
    ),
    "a validation contradicts an answer and then another one holds": Row(
        "AnswerDoesNotHold",
        {
            condition("hyperparamprediction", "Validated", "BetterAnswerNearby"): "0x60",
            condition("hyperparamprediction", "Validated", "AnswerHolds"): "_x61 1x80",
        },
    ),
    "training at an answer diverges and its validation is then removed": Row(
        "AnswerDoesNotHold",
        {condition("hyperparamprediction", "Validated", "AnswerDiverged"): "0x60"},
    ),
}


FALSE_ALARMS: dict[str, dict[str, str]] = {
    **{
        f"twelve attempts an hour end as {kind}, which is not charged": {
            attempts(kind): "0+0.2x1600"
        }
        for kind in sorted(UNCHARGED)
    },
    "four of nine pods train on a full cluster": {
        jobs("running"): "4x1600",
        jobs("unschedulable"): "5x1600",
        sweep_ready("Training"): "0x1600",
        SWEEP_CLOCK: "0+60x1600",
    },
    "a quota lets four Jobs through, which train": {
        jobs("running"): "4x1600",
        sweep_ready("JobRefused"): "0x1600",
        SWEEP_CLOCK: "0+60x1600",
    },
    "a corpus is prepared for ten hours, then points train": {
        sweep_ready("PreparingData"): "0x600",
        sweep_ready("Training"): "_x601 0x1000",
        SWEEP_CLOCK: "0x620 37260+60x980",
    },
    "a sweep that was ready for half a day is edited": {
        sweep_ready("Fitted"): "1x720",
        sweep_ready("Training"): "_x721 0x880",
        SWEEP_CLOCK: "0x760 45660+60x840",
    },
    "a sweep has its laws without a point that failed": {
        sweep_ready("Fitted"): "1x1600",
        of_sweep("points", state="failed"): "1x1600",
    },
    "a sweep is suspended for half a day and resumed": {
        sweep_ready("Suspended"): "0x720",
        sweep_ready("Training"): "_x721 0x880",
        SWEEP_CLOCK: "0x760 45660+60x840",
    },
    "a prediction follows a sweep that trains for a day": {
        prediction_ready("SweepNotReady"): "0x800",
        prediction_ready("Provisional"): "_x801 0x800",
    },
    "a search waits for the laws of another sweep": {
        sweep_ready("SweepNotReady"): "0x1600",
        SWEEP_CLOCK: "0x1600",
    },
    "five attempts crashed while the operator was away, and no more": {
        attempts("Crashed"): "_x10 5x1590",
    },
    "the operator is started again twice within half an hour": {
        metric("process_start_time_seconds"): "0x100 6000x10 6600x1490",
    },
    "a prediction is suspended": {prediction_ready("Suspended"): "0x1600"},
    "one pod is scraped by way of its Service, too": {
        metric("leader", pod="a", instance="10.0.0.1:8080", endpoint="http"): "1x1600",
        metric("leader", pod="a", instance="10.0.0.1:8080", service="s"): "1x1600",
    },
}
"""What is as it should be, for a day."""
