#!/bin/sh
# Expected: an index of an Indexed Job that has succeeded is done: it stays in completedIndexes, or is found again by its pod, where
#   the Job is lowered below it and raised again (a queue that has less room for a while does so).
# Seen: lowered from 4 to 2 while 0 and 1 run, index 3 leaves completedIndexes, and succeeded with it. Raised to 4, a second pod for
#   index 3 is made beside the one that succeeded, and the work is done twice.
# With: Kubernetes 1.37.2 (API server and controllers of the development cluster), on 2026-11-30.
# Fails if that is so no more.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD" "${DEVCLUSTER_PYTHON:-.venv/bin/python}" - <<'PROGRAM'
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from devcluster.build import kubectl_path
from devcluster.control_plane import ControlPlane

CONTAINER = {"name": "main", "image": "a"}
POD = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
SPEC = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": POD}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": SPEC}
INDEX = "batch.kubernetes.io/job-completion-index"


def kubectl(*words):
    command = [kubectl_path(), "--kubeconfig", plane.admin_kubeconfig, *words]
    return subprocess.run(command, input=json.dumps(JOB), capture_output=True, text=True, check=True).stdout


def pods():
    """Index and phase of each pod."""
    found = json.loads(kubectl("get", "pods", "-o", "json"))["items"]
    return sorted((each["metadata"]["annotations"][INDEX], each["status"]["phase"], each["metadata"]["name"]) for each in found)


def wait(what):
    for _ in range(300):
        if what():
            return
        time.sleep(0.2)
    sys.exit("waited for a minute")


def done():
    return json.loads(kubectl("get", "job", "a", "-o", "json"))["status"].get("completedIndexes", "none")


def resize(count):
    kubectl("patch", "job", "a", "--type=merge", "-p", json.dumps({"spec": {"parallelism": count, "completions": count}}))


with tempfile.TemporaryDirectory() as folder:
    plane = ControlPlane(Path(folder))
    plane.start()
    try:
        kubectl("create", "-f", "-")
        wait(lambda: len(pods()) == 4)
        for index, _, name in pods():
            phase = {"status": {"phase": "Succeeded" if index == "3" else "Running"}}
            kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(phase))
        wait(lambda: done() == "3")
        resize(2)
        wait(lambda: done() == "none")
        print("lowered to 2: completedIndexes", done())
        resize(4)
        wait(lambda: len(pods()) == 5)
        of_three = [phase for index, phase, _ in pods() if index == "3"]
        print(f"raised to 4: completedIndexes {done()}, pods of index 3: {of_three}")
    finally:
        plane.stop()
sys.exit(of_three != ["Pending", "Succeeded"])
PROGRAM
