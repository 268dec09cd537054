#!/bin/sh
# Expected: if a chart's schema has propertyNames, Helm refuses a misspelt value under the value that has it: at '/beta'.
# Seen: it names beta, or one of its neighbours, alpha and gamma, by chance: twenty calls name all three. The same schema written
#   with additionalProperties: false names beta each time.
# With: Helm 4.3.1 (of the development cluster), on 2026-11-30.
# Fails if that is so no more.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD" "${DEVCLUSTER_PYTHON:-.venv/bin/python}" - <<'PROGRAM'
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from devcluster.build import tool_path

BY = {
    "propertyNames": {"propertyNames": {"enum": ["limits"]}},
    "additionalProperties": {"properties": {"limits": {}}, "additionalProperties": False},
}
CALLS = 20
named = {}
with tempfile.TemporaryDirectory() as folder:
    chart = Path(folder)
    (chart / "templates").mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: chart\nversion: 0.1.0\n")
    (chart / "values.yaml").write_text("alpha: {}\nbeta: {limits: 1}\ngamma: 3\n")
    for keyword, of_beta in BY.items():
        properties = {"alpha": {"type": "object"}, "beta": of_beta, "gamma": {"type": "integer"}}
        (chart / "values.schema.json").write_text(json.dumps({"properties": properties}))
        places = set()
        for _ in range(CALLS):
            command = [tool_path("helm"), "template", chart, "--set", "beta.request=1"]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            places |= set(re.findall(r"^- at '(.*?)'", answer.stderr, re.MULTILINE))
        named[keyword] = places
        print(f"{keyword}: {CALLS} calls name {', '.join(sorted(places))}")
sys.exit(not (named["additionalProperties"] == {"/beta"} and named["propertyNames"] - {"/beta"}))
PROGRAM
