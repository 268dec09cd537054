"""The demo's report: the page that the operator drew of the prediction, fetched by the isoloss command line."""

import html
import subprocess
import sys
import time
from pathlib import Path

from demo import places
from demo.kubectl import Kubectl
from demo.watching import POLL_SECONDS, DemoFailed
from isoloss.status import VALIDATED, View

ARGUMENTS = (
    "open",
    f"hyperparamprediction/{places.PREDICTION}",
    f"--namespace={places.NAMESPACE}",
)
"""Of the command that opens the page."""
PAGE_SECONDS = 120.0
"""The operator draws a page after it has written the verdict, and without a new verdict once a minute."""


def fetch_report(kubectl: Kubectl, view: View, page: Path, patience: float = PAGE_SECONDS) -> None:
    """Fetch the page once it has the verdict of `view`, with the store's credentials from the environment.

    Raises DemoFailed with the command's message, or if the page has not got the verdict after `patience` seconds.
    """
    verdict = view.condition(view.prediction, VALIDATED).get("message", "")
    end = time.monotonic() + patience
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "isoloss", *ARGUMENTS, "--no-browser", f"--out={page}"],
            env=kubectl.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and verdict in html.unescape(page.read_text()):
            return
        if time.monotonic() > end:
            missing = f"the page has not got the verdict: {verdict}"
            raise DemoFailed(f"isoloss {' '.join(ARGUMENTS)}: {done.stderr.strip() or missing}")
        time.sleep(POLL_SECONDS)
