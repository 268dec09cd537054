#!/bin/sh
# Expected: 64-bit hashes that name documents in JSON lines are read as integers, or refused.
# Seen: once one of them is above 2^63 - 1, and of random ones every second is, datasets and pyarrow read the whole column as floats,
#   without a word: neighbours within 2,048 become one id. pandas does so for any large id beside a missing one. Polars and DuckDB
#   keep them.
# With: datasets 5.2.0, pyarrow 26.0.1, pandas 3.1.1, Polars 2.1.0, DuckDB 2.0.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 duckdb==2.0.0
cd "$folder"
HF_HOME="$folder/cache" HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - <<'PROGRAM'
import json
import sys
from pathlib import Path

import datasets
import duckdb
import pandas
import polars
import pyarrow.json

IDS = [2**63 + 5000, 2**63 + 5001, 7]


def write(ids):
    lines = [json.dumps({"id": each, "text": "words"}) for each in ids]
    Path("corpus.jsonl").write_text("\n".join(lines))


write(IDS)
read = {
    "datasets": datasets.load_dataset("json", data_files="corpus.jsonl", split="train")["id"][:],
    "pyarrow": pyarrow.json.read_json("corpus.jsonl")["id"].to_pylist(),
    "pandas": pandas.read_json("corpus.jsonl", lines=True)["id"].tolist(),
    "Polars": polars.read_ndjson("corpus.jsonl")["id"].to_list(),
    "DuckDB": [each for (each,) in duckdb.sql("select id from 'corpus.jsonl'").fetchall()],
}
for name, found in read.items():
    print(f"{name}: {found}, {len(set(found))} different ones of {len(IDS)}")
write([2**62 + 1, None])
missing = pandas.read_json("corpus.jsonl", lines=True)["id"].tolist()
print(f"pandas, 2^62 + 1 beside a missing one: {missing[0]!r}")
different = {name: len(set(found)) for name, found in read.items()}
expected = {"datasets": 2, "pyarrow": 2, "pandas": 3, "Polars": 3, "DuckDB": 3}
sys.exit(different != expected or missing[0] == 2**62 + 1 and isinstance(missing[0], int))
PROGRAM
