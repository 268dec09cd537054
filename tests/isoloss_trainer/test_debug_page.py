"""The commands of docs/guides/debug-the-trainer.md do what it says."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.isoloss_trainer.conftest import Prepared

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "debug-the-trainer.md"


@pytest.mark.slow
def test_the_script_traces_the_steps_that_it_names(prepared: Prepared, tmp_path: Path) -> None:
    """With the variable of the page's first command, which torch accepts."""
    script = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert script is not None
    (tmp_path / "traced.py").write_text(script[1])
    task = prepared.train_task(tokens=24 * 128)
    assert task.tokens // (task.point.batch_size * task.point.sequence_length) >= 22
    (tmp_path / "train.json").write_text(task.model_dump_json())
    done = subprocess.run(
        [sys.executable, "traced.py", "train", "--task", "train.json"],
        cwd=tmp_path,
        env={**os.environ, "TORCH_LOGS": "recompiles"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    steps = {event["name"] for event in trace["traceEvents"] if "ProfilerStep" in event["name"]}
    assert len(steps) == 3
