"""The demo's report, written by the isoloss command line: the laws and the prediction on them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.watching import DemoFailed

Resource = Mapping[str, Any]


def report_arguments(sweep: Resource, saved: Path) -> list[str]:
    """Arguments of `isoloss report` for the question that the prediction in the file `saved` asks."""
    return [
        "report",
        str(sweep["status"]["lawsUri"]).removesuffix("/laws.json"),
        f"--title={sweep['metadata']['name']}",
        f"--prediction={saved}",
    ]


def write_report(arguments: Sequence[str], page: Path) -> None:
    """Run the command line, with the store's credentials from the environment.

    Raises DemoFailed with the command's message.
    """
    done = subprocess.run(
        [sys.executable, "-m", "isoloss", *arguments, f"--out={page}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoFailed(f"isoloss report ended with {done.returncode}: {done.stderr.strip()}")
