#!/bin/sh
# Expected: a table that is made of a Trainer's log_history, a list of records, has a column for each name in them, and the numbers
#   that they hold, whichever record a name or a kind of number comes first in.
# Seen: pyarrow takes the names of the first record, Polars those of the first hundred, DuckDB those of the first lines of a file of
#   JSON lines: eval_loss is gone, without a word. Of a learning rate that is written as 0 for a hundred records Polars makes an
#   integer, and of 0.0003 behind them 0.
# With: pyarrow 26.0.1, Polars 2.1.0, DuckDB 2.0.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.0
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import json
import sys
from pathlib import Path

import duckdb
import polars
import pyarrow


def history(steps):
    logged = [{"step": step, "loss": 3.0 - step / steps} for step in range(1, steps)]
    return [*logged, {"step": steps, "eval_loss": 2.5}]


Path("log.jsonl").write_text("\n".join(map(json.dumps, history(30000))))
names = {
    "pyarrow.Table.from_pylist": pyarrow.Table.from_pylist(history(10)).column_names,
    "polars.DataFrame": polars.DataFrame(history(500)).columns,
    "polars.read_ndjson": polars.read_ndjson("log.jsonl").columns,
    "duckdb, of log.jsonl": duckdb.sql("from 'log.jsonl'").columns,
}
for name, found in names.items():
    print(f"{name}: columns {', '.join(found)}")
rates = [{"learning_rate": 0}] * 200 + [{"learning_rate": 0.0003}]
last = polars.DataFrame(rates)["learning_rate"][-1]
print(f"polars.DataFrame: a learning rate of 0.0003 behind 200 of 0 is {last!r}")
sys.exit(any(found != ["step", "loss"] for found in names.values()) or last != 0)
PROGRAM
