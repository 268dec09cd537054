"""A Prometheus on this machine that scrapes an operator, and what it answers."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from devcluster.ports import free_ports
from isoloss.yaml_text import to_yaml
from tests.monitoring.rules import JOB, program, rule_file
from tests.support.cluster import wait_until

Json = dict[str, Any]


@dataclass(frozen=True)
class Prometheus:
    """A server on this machine."""

    url: str
    STEP: ClassVar[float] = 3.0
    """Seconds between scrapes."""

    def query(self, expression: str) -> list[Json]:
        """Samples that hold now."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success", answer
        found: list[Json] = answer["data"]["result"]
        return found

    def query_range(self, expression: str, start: float, end: float) -> list[Json]:
        """Series between two times, in seconds since the epoch."""
        times = {"start": f"{start}", "end": f"{end}", "step": f"{self.STEP}"}
        answer = self._get("query_range", query=expression, **times)
        assert answer["status"] == "success", answer
        found: list[Json] = answer["data"]["result"]
        return found

    def rules(self) -> list[Json]:
        """Every rule with its health."""
        groups = self._get("rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Json:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            found: Json = json.load(answer)
        return found

    def is_ready(self) -> bool:
        """Whether it serves."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus with the chart's rules that scrapes host:port, under the job that the chart's monitors set."""
    path = program("prometheus")
    configuration = {
        # A scrape may take as long as the interval: seconds, where the machine is busy.
        "global": {"scrape_interval": f"{Prometheus.STEP:g}s", "evaluation_interval": "1s"},
        "rule_files": [str(rule_file(folder))],
        "scrape_configs": [
            {
                "job_name": JOB,
                "honor_labels": True,
                "static_configs": [{"targets": [target], "labels": {"pod": "isoloss-operator"}}],
            }
        ],
    }
    file = folder / "prometheus.yaml"
    file.write_text(to_yaml(configuration))
    (port,) = free_ports(1)
    command = [path, f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        wait_until(server.is_ready, "Prometheus to be ready", 120)
        yield server
    finally:
        process.terminate()
        process.wait()
