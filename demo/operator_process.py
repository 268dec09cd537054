"""The operator as a local process, with the rights of the chart's role and no others."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from demo import places
from devcluster.daemon import Daemon
from devcluster.ports import free_ports, start_on_free_ports

PASSES = "isoloss_reconcile_duration_seconds"
START_SECONDS = 60
STOP_SECONDS = 25
"""The operator finishes running passes first, within its drain time."""


class OperatorProcess:
    """A background process, identified by files under `folder`."""

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet."""
        self._folder = folder
        self._daemon = Daemon("operator", folder)

    @property
    def log(self) -> Path:
        """JSON lines."""
        return self._daemon.log

    @property
    def url(self) -> str:
        """Of /metrics, /healthz and /readyz."""
        return f"http://127.0.0.1:{(self._folder / 'port').read_text()}"

    def is_running(self) -> bool:
        """Whether it is running."""
        return self._daemon.pid() is not None

    def start(self, kubeconfig: Path, storage: Mapping[str, str]) -> None:
        """Restart it with a new token in `kubeconfig`; returns when it is ready.

        Raises RuntimeError with the end of its log if it does not become ready.
        """
        self.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        start_on_free_ports(lambda: self._start(kubeconfig, storage))

    def _start(self, kubeconfig: Path, storage: Mapping[str, str]) -> None:
        (self._folder / "port").write_text(str(free_ports(1)[0]))
        command = [sys.executable, "-m", "isoloss_operator"]
        self._daemon.start(command, self._environment(kubeconfig, storage))
        self._daemon.wait_until(self._is_ready, START_SECONDS)

    def wait_for_passes(self, *kinds: str) -> None:
        """Return once it has made a pass over a resource of each kind: until then statuses are of the process before it.

        Raises RuntimeError with the end of its log if it does not.
        """
        self._daemon.wait_until(
            lambda: set(kinds) <= kinds_seen(self._read("metrics")), START_SECONDS
        )

    def stop(self) -> None:
        """Stop it gracefully."""
        self._daemon.stop(STOP_SECONDS)

    def log_tail(self) -> str:
        """The end of its log."""
        return self._daemon.log_tail()

    def _environment(self, kubeconfig: Path, storage: Mapping[str, str]) -> dict[str, str]:
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
            "HOME": str(temporary),
            "TMPDIR": str(temporary),
            "MPLCONFIGDIR": str(temporary),
            "OMP_NUM_THREADS": "1",
            "KUBECONFIG": str(kubeconfig),
            **storage,
            "ISOLOSS_NAMESPACES": places.NAMESPACE,
            "ISOLOSS_ALLOWED_STORAGE": json.dumps({places.NAMESPACE: [places.STORE]}),
            # The process node runs commands, not images: this is never pulled.
            "ISOLOSS_TRAINER_IMAGE": "isoloss/trainer:dev",
            "ISOLOSS_LEASE_NAME": places.OPERATOR_ACCOUNT,
            "ISOLOSS_LEASE_NAMESPACE": places.OPERATOR_NAMESPACE,
            "ISOLOSS_HTTP_ADDRESS": "127.0.0.1",
            "ISOLOSS_HTTP_PORT": (self._folder / "port").read_text(),
            # A killed operator's lease stays held for this long, so a restart waits for it.
            "ISOLOSS_LEASE_SECONDS": "6",
            "ISOLOSS_RENEW_DEADLINE_SECONDS": "4",
            "ISOLOSS_RENEW_PERIOD_SECONDS": "1",
        }

    def _is_ready(self) -> bool:
        return bool(self._read("readyz"))

    def _read(self, page: str) -> str:
        """A page of its port; nothing unless it is answered with 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/{page}", timeout=2) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""


def kinds_seen(metrics: str) -> set[str]:
    """Kinds of resources over which the operator of these metrics has made a pass."""
    return {
        sample.labels["kind"]
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == f"{PASSES}_count" and sample.value > 0
    }
