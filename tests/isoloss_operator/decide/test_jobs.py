"""The table of outcomes: every way in which a Job can end, and what it costs."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from isoloss_contract.records import ExitCode
from isoloss_operator.decide.jobs import (
    FailureClass,
    awaits_result,
    classify,
    spec_field,
    termination_message,
    waits_for,
)
from isoloss_operator.decide.observation import ObservedJob, ObservedPod
from isoloss_operator.decide.reasons import TRAINER_REASONS
from tests.support.builders import NOW, complete, failed, job, points, vanished, words

POINT = points()[0]
F = FailureClass

OUTCOMES: dict[tuple[FailureClass, bool], dict[str, ObservedJob]] = {
    (F.INTERRUPTED, False): {
        "preempted by the scheduler": failed(POINT, 137, pod_disruption="PreemptionByScheduler"),
        "drained from its node": failed(POINT, 143, pod_disruption="EvictionByEvictionAPI"),
        "a disruption outranks the exit code it led to": failed(
            POINT, 1, pod_disruption="DeletionByTaintManager"
        ),
        "evicted by kubelet": failed(
            POINT, None, pod_reason="Evicted", pod_disruption="TerminationByKubelet"
        ),
        "its node shut down": failed(POINT, None, pod_reason="Terminated"),
        "stopped in time at its pod's deadline": failed(
            POINT, ExitCode.INTERRUPTED, pod_reason="DeadlineExceeded"
        ),
        "asked to stop, and it did": failed(POINT, ExitCode.INTERRUPTED),
        "asked to stop before it could listen": failed(POINT, 143),
        "deleted, and killed after its grace period": failed(POINT, 137, pod_deleting=True),
        "deleted while it ran": failed(POINT, None, pod_deleting=True),
        "suspended by Kueue": failed(POINT, 1, suspended=True),
    },
    (F.NODE_FAILURE, False): {
        "kubelet had no device for it": failed(POINT, None, pod_reason="OutOfnvidia.com/gpu"),
        "kubelet refused it for the disk of its node": failed(POINT, None, pod_reason="Evicted"),
        "kubelet refused it": failed(POINT, None, pod_reason="TopologyAffinityError"),
        "the runtime could not start an init container": failed(
            POINT, 128, pod_reason="StartError", pod_init_container="fetch"
        ),
        "its node was rebooted": failed(POINT, 255, pod_reason="Unknown"),
        "its node lost track of it": failed(POINT, 137, pod_reason="ContainerStatusUnknown"),
        "the runtime could not start it": failed(POINT, 128, pod_reason="StartError"),
        "the runtime could not run it": failed(POINT, 127, pod_reason="ContainerCannotRun"),
    },
    (F.STORAGE, True): {
        "evicted for its own limit of disk": failed(POINT, 137, pod_reason="Evicted"),
        "storage failed": failed(POINT, ExitCode.STORAGE),
        "the store refused": failed(
            POINT, ExitCode.STORAGE, pod_termination_message=words("StoreRefused", "403")
        ),
    },
    (F.DEADLINE, True): {
        "too slow for its pod's deadline": failed(POINT, 143, pod_reason="DeadlineExceeded"),
        "too slow for the Job's deadline": failed(POINT, 143, reason="DeadlineExceeded"),
    },
    (F.CRASHED, True): {
        "failed in another cluster, where its pods cannot be seen": vanished(
            POINT, managed_externally=True
        ),
        "an init container failed with what would be a code of the trainer": failed(
            POINT, ExitCode.BAD_CONFIGURATION, pod_init_container="fetch"
        ),
        "an init container ran out of memory": failed(
            POINT, 137, pod_reason="OOMKilled", pod_init_container="fetch"
        ),
        "a crash that names the store": failed(
            POINT, 1, pod_termination_message=words("StoreUnavailable", "503")
        ),
        "killed for an unknown reason": failed(POINT, 137),
        "it exits with 255 itself": failed(POINT, 255),
        "an exception": failed(POINT, 1),
        "a command that is not there": failed(POINT, 127),
        "a termination message that is not ours": failed(
            POINT, 1, pod_termination_message="{oops"
        ),
    },
    (F.POD_VANISHED, False): {
        "gone with its node": vanished(POINT),
        "stopped without an exit code": failed(POINT, None, pod_reason=""),
    },
    (F.CLAIMED_ELSEWHERE, False): {
        "another attempt holds the point": failed(POINT, ExitCode.CLAIMED_ELSEWHERE)
    },
    (F.OUT_OF_MEMORY, True): {"no micro-batch fits": failed(POINT, ExitCode.OUT_OF_MEMORY)},
    (F.HOST_OUT_OF_MEMORY, True): {
        "killed by the host for its memory": failed(POINT, 137, pod_reason="OOMKilled")
    },
    (F.MEMORY_REFUSED, True): {
        "memory was refused to one of several pods": failed(POINT, ExitCode.MEMORY_REFUSED)
    },
    (F.BAD_CONFIGURATION, True): {"bad configuration": failed(POINT, ExitCode.BAD_CONFIGURATION)},
    (F.BAD_DATA, True): {"bad data": failed(POINT, ExitCode.BAD_DATA)},
    (F.STORE_UNAVAILABLE, False): {
        "the store did not answer": failed(
            POINT, ExitCode.STORAGE, pod_termination_message=words("StoreUnavailable", "503")
        )
    },
    (F.RESULT_MISSING, True): {
        "succeeded without a result": complete(POINT),
        "diverged without a result": failed(POINT, ExitCode.DIVERGED),
    },
}


@pytest.mark.parametrize(
    ("kind", "is_charged", "observed"),
    [
        pytest.param(*outcome, observed, id=name)
        for outcome, jobs in OUTCOMES.items()
        for name, observed in jobs.items()
    ],
)
def test_outcome(kind: FailureClass, is_charged: bool, observed: ObservedJob) -> None:
    """The class decides whether it is charged."""
    failure = classify(observed)
    assert (failure.kind, failure.is_charged) == (kind, is_charged)
    assert failure.message


def test_the_trainers_words_code_and_field_are_passed_on() -> None:
    """They lead people to the spec field."""
    bad = failed(POINT, 44, pod_termination_message=words("BadShape", "must divide", "proxies[0]"))
    failure = classify(bad)
    assert (failure.code, failure.message, failure.field) == (
        "BadShape",
        "must divide",
        "proxies[0]",
    )


LATE = {"reason": "DeadlineExceeded", "message": "Job was active longer than its deadline"}
LIMIT = "Job has reached the specified backoff limit"
CORDON = "If it goes on, cordon the node: kubectl cordon gpu-7"


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (failed(POINT, 3), "exit code 3, Error"),
        (
            failed(POINT, 139, message=LIMIT, pod_node="gpu-7"),
            "exit code 139, Error, on node gpu-7",
        ),
        (failed(POINT, 143, **LATE), f"exit code 143, Error, {LATE['message']}"),
        (vanished(POINT), "the Job failed (BackoffLimitExceeded) and its pod is gone"),
        (
            vanished(POINT, managed_externally=True, message="exit code 1"),
            "the Job failed elsewhere (BackoffLimitExceeded): exit code 1",
        ),
        (
            vanished(POINT, **LATE),
            f"the Job failed (DeadlineExceeded: {LATE['message']}) and its pod is gone",
        ),
        (
            failed(POINT, 1, pod_init_container="fetch", pod_termination_message="no route"),
            "init container fetch: exit code 1, Error, no route",
        ),
        (
            failed(
                POINT,
                None,
                pod_reason="UnexpectedAdmissionError",
                pod_message="Pod was rejected. ",
                pod_node="gpu-7",
            ),
            f"UnexpectedAdmissionError on node gpu-7: Pod was rejected. {CORDON}",
        ),
        (
            failed(
                POINT,
                128,
                pod_reason="StartError",
                pod_termination_message="unknown device",
                pod_node="gpu-7",
            ),
            f"StartError on node gpu-7 (exit code 128): unknown device. {CORDON}",
        ),
    ],
)
def test_without_words_of_the_trainer_the_facts_are_stated(
    ended: ObservedJob, message: str
) -> None:
    """Exit code and reasons, the container and the node, and what to do about that."""
    assert classify(ended).message == message


def test_only_memory_of_the_host_halves_the_micro_batch() -> None:
    """The device's own memory was the trainer's to save."""
    assert classify(failed(POINT, 137, pod_reason="OOMKilled")).halves_micro_batch
    assert classify(failed(POINT, ExitCode.MEMORY_REFUSED)).halves_micro_batch
    assert not classify(failed(POINT, ExitCode.OUT_OF_MEMORY)).halves_micro_batch


def test_a_termination_message_with_an_unknown_field_is_not_ours() -> None:
    """Pods may run anything."""
    pod = ObservedPod(termination_message='{"code": "A", "message": "b", "extra": 1}')
    assert termination_message(pod) is None
    assert termination_message(None) is None


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (ObservedPod(waiting_reason="CreateContainerConfigError"), "SecretMissing"),
        (ObservedPod(waiting_reason="ErrImagePull"), "ImagePullFailed"),
        (ObservedPod(waiting_reason="CrashLoopBackOff", waiting_message="x"), "PodWaiting"),
        (ObservedPod(unschedulable="0/3 nodes"), "Unschedulable"),
        (ObservedPod(waiting_reason="ContainerCreating"), None),
        (ObservedPod(phase="Running"), None),
        (ObservedPod(unschedulable="0/3 nodes", deleting=True), None),
    ],
)
def test_pods_that_cannot_start_say_why(pod: ObservedPod, reason: str | None) -> None:
    """Each recovers by itself once the cause is fixed."""
    wait = waits_for(job(POINT, pod=pod))
    assert (wait.reason if wait else None) == reason


def test_a_finished_job_waits_for_nothing() -> None:
    """It is past starting."""
    assert waits_for(replace(failed(POINT), pod=ObservedPod(unschedulable="x"))) is None


@pytest.mark.parametrize(
    ("ended", "seconds", "is_awaited"),
    [(complete(POINT), 59, True), (complete(POINT), 60, False), (failed(POINT, 1), 1, False)],
)
def test_a_result_may_come_a_minute_after_its_job_has_succeeded(
    ended: ObservedJob, seconds: float, is_awaited: bool
) -> None:
    at = NOW - timedelta(seconds=seconds)
    assert awaits_result(replace(ended, ended=at), NOW) is is_awaited
    assert not awaits_result(ended, NOW), "nobody knows when it ended"


def test_every_reason_that_is_a_code_of_the_trainer_is_one() -> None:
    """A code that the trainer renames would else become BadData without notice."""
    sources = Path(__file__).parents[3] / "trainer_image" / "isoloss_trainer"
    text = "".join(path.read_text() for path in sources.rglob("*.py"))
    assert [reason for reason in TRAINER_REASONS if f'"{reason}"' not in text] == []


# -------------------------------------------------------------------------------- which field


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("", ""),
        ("tokenizer", "spec.data.tokenizer"),
        ("domains.math.text_field", "spec.data.domains[1].textField"),
        ("domains.math", "spec.data.domains[1]"),
        ("mixture.general", "spec.data.domains[0]"),
        ("domains.unknown.uri", "domains.unknown.uri"),
        ("model.vocab_size", "spec.proxies[2].model.config.vocab_size"),
        ("model", "spec.proxies[2].model"),
        ("validation.sequences_per_domain", "spec.data.validation.sequencesPerDomain"),
        ("checkpoint.uri", "spec.checkpoint.uri"),
        ("something.else", "something.else"),
    ],
)
def test_field(field: str, expected: str) -> None:
    """What has no counterpart is passed on as it is."""
    assert spec_field(field, domains=["general", "math"], proxy=2) == expected


@pytest.mark.parametrize("field", ["initial_weights", "checkpoint.uri", "model.vocab_size"])
def test_whatever_a_continued_size_refuses_is_about_its_checkpoint(field: str) -> None:
    assert spec_field(field, proxy=2, model="checkpoint") == "spec.proxies[2].checkpoint"
