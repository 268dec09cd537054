"""The process node treats pods as a kubelet does, as the real controllers and scheduler see it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from devcluster.build import kubectl_path
from devcluster.control_plane import ControlPlane
from devcluster.process_node import ProcessNode
from tests.support.cluster import NodeFactory, wait_until
from tests.support.pods import Workload, pod_spec, terminated

pytestmark = pytest.mark.cluster

FOREVER = "while :; do sleep 0.05; done"


def writing_pod(script: str, folder: Path) -> dict[str, Any]:
    """A pod whose variable OUT is a file of this folder."""
    container = {
        "env": [{"name": "OUT", "value": "/out/file"}],
        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
    }
    volumes = [{"name": "out", "hostPath": {"path": str(folder)}}]
    return pod_spec(script, container, volumes=volumes)


@pytest.fixture
def workload(api_client: Any, namespace: str, process_node: ProcessNode) -> Workload:
    """The test's namespace, with a node for its pods."""
    assert process_node.is_running()
    return Workload(api_client, namespace)


def test_a_job_runs_to_completion_with_its_environment_and_volumes(
    workload: Workload, tmp_path: Path
) -> None:
    workload.core.create_namespaced_config_map(
        workload.namespace, {"metadata": {"name": "settings"}, "data": {"COLOUR": "red"}}
    )
    container = {
        "env": [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "GREETING", "value": "hello $(COLOUR)"},
            {"name": "OUT", "value": "/host/out"},
            {"name": "SETTINGS", "value": "/settings"},
        ],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "volumeMounts": [
            {"name": "host", "mountPath": "/host"},
            {"name": "settings", "mountPath": "/settings"},
        ],
    }
    volumes = [
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
        {"name": "settings", "configMap": {"name": "settings"}},
    ]
    script = 'echo "$NAME $GREETING $(cat $SETTINGS/COLOUR)" > $OUT'
    workload.create_job(pod_spec(script, container, volumes=volumes))
    wait_until(lambda: "Complete" in workload.conditions(), "the Job to complete")
    (pod,) = workload.pods()
    assert pod.status.phase == "Succeeded"
    assert terminated(pod).reason == "Completed"
    assert (tmp_path / "out").read_text() == f"{pod.metadata.name} hello red red\n"


NOTE = {"env": [{"name": "MESSAGE", "value": "/dev/termination-log"}]}
FAILURES: dict[str, tuple[Any, int, str, str]] = {
    "a message": (pod_spec("printf 'loss is nan' > $MESSAGE; exit 42", NOTE), 42, "Error", "loss is nan"),
    "a long one is cut": (
        pod_spec("head -c 9000 /dev/zero | tr '\\0' x > $MESSAGE; exit 1", NOTE), 1, "Error", "x" * 4096,
    ),
    "a missing one is the log's": (
        pod_spec("echo what went wrong; exit 1", {"terminationMessagePolicy": "FallbackToLogsOnError"}),
        1, "Error", "what went wrong\n",
    ),
    "no such command": (pod_spec("", {"command": ["no-such-program"]}), 128, "StartError", "no-such-program"),
    "a deadline": (pod_spec(FOREVER, activeDeadlineSeconds=1), 143, "Error", ""),
}  # fmt: skip
"""Pods with their exit code, reason and message."""


def test_a_failure_shows_its_exit_code_reason_and_message(workload: Workload) -> None:
    for number, (spec, *_) in enumerate(FAILURES.values()):
        workload.create_pod(spec, name=f"pod-{number}")
    for number, (_, code, reason, message) in enumerate(FAILURES.values()):
        pod = workload.wait_for_phase("Failed", f"pod-{number}")
        end = terminated(pod)
        assert (end.exit_code, end.reason) == (code, reason)
        assert (message in (end.message or "")) if code == 128 else (end.message or "") == message
        assert code == 128 or end.finished_at >= end.started_at >= pod.status.start_time
    assert (
        workload.pod(f"pod-{[*FAILURES].index('a deadline')}").status.reason == "DeadlineExceeded"
    )
    workload.create_job(pod_spec("exit 1"))
    wait_until(lambda: "Failed" in workload.conditions(), "the Job to fail")
    assert workload.conditions()["Failed"] == "BackoffLimitExceeded"


def test_a_deleted_pod_may_clean_up_and_is_replaced_only_when_it_has_ended(
    workload: Workload, tmp_path: Path
) -> None:
    script = "echo start >> $OUT\ntrap 'sleep 1; echo end >> $OUT; exit 75' TERM\n" + FOREVER
    workload.create_job(writing_pod(script, tmp_path), backoffLimit=3)
    events = tmp_path / "file"
    wait_until(events.exists, "the first pod to start")
    (first,) = workload.pods()
    workload.core.delete_namespaced_pod(first.metadata.name, workload.namespace)
    wait_until(lambda: events.read_text().count("start") == 2, "the second pod to start")
    kinds = [line.split()[0] for line in events.read_text().splitlines()]
    assert kinds == ["start", "end", "start"]
    assert first.metadata.uid not in {pod.metadata.uid for pod in workload.pods()}
    status = workload.batch.read_namespaced_job("job", workload.namespace).status
    assert status.failed == 1


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(workload: Workload) -> None:
    spec = pod_spec(f"trap '' TERM; {FOREVER}", terminationGracePeriodSeconds=1)
    workload.create_pod(spec, finalizers=["isoloss.dev/test"])  # so that its end can be read
    workload.wait_for_phase("Running")
    workload.core.delete_namespaced_pod("pod", workload.namespace)
    end = terminated(workload.wait_for_phase("Failed"))
    assert (end.exit_code, end.reason) == (137, "Error")
    workload.core.patch_namespaced_pod(
        "pod", workload.namespace, {"metadata": {"finalizers": None}}
    )
    wait_until(lambda: not workload.pods(), "the pod to go")


@pytest.mark.whole
@pytest.mark.parametrize(
    "container",
    [
        {"envFrom": [{"secretRef": {"name": "keys"}}]},
        {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "K"}}}]},
    ],
)
def test_a_missing_secret_holds_the_pod_until_it_appears(
    workload: Workload, container: dict[str, Any]
) -> None:
    workload.create_pod(pod_spec('test "$K" = value', container))
    waiting = workload.wait_for_waiting("CreateContainerConfigError")
    assert waiting.message == 'secret "keys" not found'
    assert workload.pod().status.phase == "Pending"
    workload.core.create_namespaced_secret(
        workload.namespace, {"metadata": {"name": "keys"}, "stringData": {"K": "value"}}
    )
    workload.wait_for_phase("Succeeded")


@pytest.mark.whole
def test_a_missing_volume_source_holds_the_pod_and_it_can_still_be_deleted(
    workload: Workload,
) -> None:
    volumes = [{"name": "v", "configMap": {"name": "nowhere"}}]
    workload.create_pod(pod_spec("true", volumes=volumes))
    assert "nowhere" in workload.wait_for_waiting("ContainerCreating").message
    workload.core.delete_namespaced_pod("pod", workload.namespace)
    wait_until(lambda: not workload.pods(), "the pod to go")


def test_secrets_are_mounted_by_key_and_path(workload: Workload, tmp_path: Path) -> None:
    keys = {"metadata": {"name": "keys"}, "stringData": {"a": "A", "b": "B"}}
    workload.core.create_namespaced_secret(workload.namespace, keys)
    items = [{"key": "b", "path": "deep/b"}]
    volumes = [
        {"name": "keys", "secret": {"secretName": "keys", "items": items}},
        {"name": "none", "secret": {"secretName": "nowhere", "optional": True}},
        {"name": "out", "hostPath": {"path": str(tmp_path)}},
    ]
    container = {
        "env": [{"name": "KEYS", "value": "/keys"}, {"name": "OUT", "value": "/out/file"}],
        "volumeMounts": [
            {"name": "keys", "mountPath": "/keys"},
            {"name": "out", "mountPath": "/out", "subPath": "below"},
        ],
    }
    script = "cd $KEYS; find -L . -type f > $OUT; cat deep/b >> $OUT"
    workload.create_pod(pod_spec(script, container, volumes=volumes))
    workload.wait_for_phase("Succeeded")
    assert (tmp_path / "below" / "file").read_text() == "./deep/b\nB"


@pytest.mark.whole
@pytest.mark.parametrize(
    "asked",
    [{"restartPolicy": "OnFailure"}, {"initContainers": [{"name": "first", "image": "none"}]}],
)
def test_what_it_cannot_run_waits_and_says_so(workload: Workload, asked: dict[str, Any]) -> None:
    workload.create_pod(pod_spec("true") | asked)
    message = workload.wait_for_waiting("CreateContainerError").message
    assert "restartPolicy Never and no init containers" in message


@pytest.mark.whole
def test_gpus_are_slots(api_client: Any, namespace: str, make_node: NodeFactory) -> None:
    make_node(gpus=1)
    workload = Workload(api_client, namespace)
    one = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    workload.create_pod(pod_spec(FOREVER, one), name="first")
    workload.wait_for_phase("Running", "first")
    workload.create_pod(pod_spec("true", one), name="second")

    def is_refused() -> bool:
        listed = workload.pod("second").status.conditions or []
        return any(entry.reason == "Unschedulable" for entry in listed)

    wait_until(is_refused, "the scheduler to find no GPU")
    workload.core.delete_namespaced_pod("first", namespace, grace_period_seconds=1)
    workload.wait_for_phase("Succeeded", "second")


@pytest.mark.whole
def test_kubectl_reads_the_log(workload: Workload, control_plane: ControlPlane) -> None:
    workload.create_pod(pod_spec("echo one; echo two; echo three >&2"))
    workload.wait_for_phase("Succeeded")
    command = [str(kubectl_path()), "--kubeconfig", str(control_plane.admin_kubeconfig)]
    command += ["--namespace", workload.namespace, "logs", "pod", "--tail=2"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "two\nthree\n"


def counting_pod(tmp_path: Path, seconds: float) -> dict[str, Any]:
    """A pod that writes one line per run."""
    return writing_pod(f"echo start >> $OUT; sleep {seconds}; exit 7", tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("seconds", [0.5, 4])
def test_a_restarted_agent_adopts_running_processes(
    workload: Workload, process_node: ProcessNode, tmp_path: Path, seconds: float
) -> None:
    """It also finds the exit code of a process that ended while no agent was running."""
    workload.create_pod(counting_pod(tmp_path, seconds))
    wait_until((tmp_path / "file").exists, "the pod to start")
    process_node.kill_agent()
    if seconds < 1:
        uid = workload.pod().metadata.uid
        ended = process_node.directory / "pods" / uid / "containers" / "main" / "exit"
        wait_until(ended.exists, "the process to end")
    process_node.start()
    assert terminated(workload.wait_for_phase("Failed")).exit_code == 7
    assert (tmp_path / "file").read_text() == "start\n"


@pytest.mark.whole
def test_a_crashed_node_reports_its_pods_killed_when_it_is_back(
    workload: Workload, process_node: ProcessNode, tmp_path: Path
) -> None:
    workload.create_pod(counting_pod(tmp_path, 600))
    workload.wait_for_phase("Running")
    process_node.crash()
    process_node.start()
    assert terminated(workload.wait_for_phase("Failed")).exit_code == 137
    assert (tmp_path / "file").read_text() == "start\n"


@pytest.mark.whole
def test_pods_removed_while_the_agent_was_down_are_killed(
    workload: Workload, process_node: ProcessNode, tmp_path: Path
) -> None:
    workload.create_pod(writing_pod(f"echo $$$$ > $OUT; {FOREVER}", tmp_path))
    workload.wait_for_phase("Running")
    wait_until((tmp_path / "file").exists, "the process to write its pid")
    process = Path("/proc", (tmp_path / "file").read_text().strip())
    process_node.kill_agent()
    workload.core.delete_namespaced_pod("pod", workload.namespace, grace_period_seconds=0)
    assert process.exists()
    process_node.start()
    wait_until(lambda: not process.exists(), "the process to be killed")


@pytest.mark.whole
def test_a_node_that_is_shut_down_disrupts_its_pods(
    workload: Workload, process_node: ProcessNode
) -> None:
    workload.create_pod(pod_spec(FOREVER))
    workload.wait_for_phase("Running")
    process_node.stop()
    pod = workload.pod()
    reasons = {entry.type: entry.reason for entry in pod.status.conditions}
    assert pod.status.phase == "Failed"
    assert reasons["DisruptionTarget"] == "TerminationByKubelet"
