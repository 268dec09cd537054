"""The demo's report, written by the isoloss command line: the laws and the prediction on them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.watching import DemoFailed
from isoloss_contract.records import EvaluationResult
from isoloss_contract.store import Store

Resource = Mapping[str, Any]


def report_arguments(
    sweep: Resource, prediction: Resource, evaluation: EvaluationResult, saved: Path
) -> list[str]:
    """Arguments of `isoloss report` for the question that the prediction resource asks.

    `saved` is the file that the resource is in, for its probes.
    """
    spec = prediction["spec"]
    return [
        "report",
        str(sweep["status"]["lawsUri"]).removesuffix("/laws.json"),
        f"--title={sweep['metadata']['name']}",
        f"--initial-loss={evaluation.loss:.6g}",
        f"--initial-loss-standard-error={evaluation.loss_standard_error:.4g}",
        f"--cpt-tokens={spec['budget']['tokens']}",
        f"--params={evaluation.parameters.active}",
        f"--pretraining-tokens={spec['pretrainingTokens']}",
        *([f"--prediction={saved}"] if spec.get("validation") else []),
    ]


def read_evaluation(store: Store, prediction: Resource) -> EvaluationResult:
    """The loss of the checkpoint, read from the location in the prediction's status."""
    key = str(prediction["status"]["evaluationUri"]).removeprefix(f"{store.uri}/")
    return store.read_record(key, EvaluationResult)


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
