"""The runbook for failed passes finds their traces in a log as the operator writes it."""

import json
import logging
import re
import subprocess

from isoloss_operator.process.logs import JsonFormatter
from isoloss_operator.process.workqueue import Workers, WorkQueue
from tests.support.cluster import wait_until
from tests.support.pages import CHECKOUT

RUNBOOKS = CHECKOUT / "docs" / "guides" / "runbooks.md"


def log_of_a_failed_pass() -> str:
    """A line of JSON for each message, one of them about a pass that failed."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter().format(record))

    def reconcile(_: str) -> float | None:
        logging.getLogger("isoloss_operator").info("Serving /healthz")
        raise KeyError("uid")

    handler, root = Kept(), logging.getLogger()
    root.addHandler(handler)
    try:
        queue: WorkQueue[str] = WorkQueue(first_retry=60.0)
        workers = Workers(queue, reconcile, count=1)
        workers.start()
        queue.add("ScalingSweep research/dense")
        wait_until(lambda: "KeyError" in "".join(lines), "the pass to fail", 10)
        queue.close()
    finally:
        root.removeHandler(handler)
    return "".join(f"{line}\n" for line in lines)


def test_the_trace_of_a_failed_pass_is_found() -> None:
    section = RUNBOOKS.read_text().split("## ReconcileErrors")[1].split("\n## ")[0]
    (pattern,) = re.findall(r"\| grep '([^']+)'`", section)
    answer = subprocess.run(
        ["grep", pattern],
        input=log_of_a_failed_pass(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (line,) = map(json.loads, answer.stdout.splitlines())
    assert line["exception"].startswith("Traceback")
    assert "ScalingSweep research/dense" in line["message"]
