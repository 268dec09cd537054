"""A simulated node for benchmarks: every pod of a namespace ends at once, its result written.

    python -m benchmarks.instant_node KUBECONFIG NAMESPACE

It stands between no measurement: both rivals have the same one.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kubernetes import client, config, watch

from tests.support import planted_trainer

PREPARE_KIND = "prepare"
ENDED = {
    "phase": "Succeeded",
    "containerStatuses": [
        {
            "name": "trainer",
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {
                "terminated": {
                    "exitCode": 0,
                    "startedAt": "2026-01-01T00:00:00Z",
                    "finishedAt": "2026-01-01T00:00:01Z",
                }
            },
        }
    ],
}


def end_pod(api: client.CoreV1Api, namespace: str, pod: dict[str, Any]) -> None:
    """Write the result that the pod's task asks for, then report the pod as succeeded."""
    container = pod["spec"]["containers"][0]
    text = next(each["value"] for each in container["env"] if each["name"] == "ISOLOSS_TASK")
    task = json.loads(text)
    planted_trainer.finish(task)
    api.patch_namespaced_pod_status(
        pod["metadata"]["name"], namespace, {"status": ENDED}, _preload_content=False
    )


def main() -> None:
    """End pods until terminated."""
    configuration = client.Configuration()
    config.load_kube_config(sys.argv[1], client_configuration=configuration)
    configuration.connection_pool_maxsize = 10
    namespace, api = sys.argv[2], client.CoreV1Api(client.ApiClient(configuration))
    pool = ThreadPoolExecutor(4)

    def end(pod: dict[str, Any]) -> None:
        try:
            end_pod(api, namespace, pod)
        except Exception:  # noqa: BLE001
            # A pool would keep it to itself, and the benchmark would wait for ever.
            traceback.print_exc()
            os._exit(1)

    pods: Any = watch.Watch()
    for event in pods.stream(api.list_namespaced_pod, namespace):
        if event["type"] == "ADDED" and event["raw_object"]["status"].get("phase") == "Pending":
            pool.submit(end, event["raw_object"])


if __name__ == "__main__":
    main()
