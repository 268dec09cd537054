#!/bin/sh
# Expected: who scales a Deployment by hand owns its replicas, so that a server-side apply of another number (Helm 4's upgrade)
#   conflicts, whatever they scaled it to.
# Seen: scaled to 2 it conflicts, and names kubectl. Scaled to 0 nobody owns the replicas, and the apply starts it again without a
#   word: 0 is left out of a Scale, and what is left out has no owner.
# With: Kubernetes 1.37.2 and 1.31.0 (API server and kubectl of the development cluster), on 2026-11-29.
# Fails if that is so no more.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD" "${DEVCLUSTER_PYTHON:-.venv/bin/python}" - <<'PROGRAM'
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from devcluster.build import kubectl_path
from devcluster.control_plane import ControlPlane

LABELS = {"app": "a"}
CONTAINER = {"name": "main", "image": "a"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [CONTAINER]}}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "a", "namespace": "default"},
    "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
}


def kubectl(*words):
    command = [kubectl_path(), "--kubeconfig", plane.admin_kubeconfig, *words]
    answer = subprocess.run(command, input=json.dumps(DEPLOYMENT), capture_output=True, text=True, check=False)
    return answer.stdout + answer.stderr


with tempfile.TemporaryDirectory() as folder:
    plane = ControlPlane(Path(folder))
    plane.start()
    try:
        answers = {}
        apply = ("apply", "--server-side", "--field-manager=helm", "-f", "-")
        kubectl(*apply)
        for replicas in (2, 0):
            kubectl("scale", "deployment/a", f"--replicas={replicas}")
            said = kubectl(*apply).splitlines()[0]
            answers[replicas] = said, kubectl("get", "deployment/a", "-o", "jsonpath={.spec.replicas}")
            print(f"scaled to {replicas}, then applied: {said}; replicas: {answers[replicas][1]}")
            kubectl(*apply, "--force-conflicts")
    finally:
        plane.stop()
sys.exit(not ('conflict with "kubectl" with subresource "scale"' in answers[2][0] and answers[2][1] == "2" and answers[0][1] == "1"))
PROGRAM
