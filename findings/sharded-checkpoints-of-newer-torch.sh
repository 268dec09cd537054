#!/bin/sh
# Expected: torch 2.11 reads a sharded checkpoint of four float32 numbers that 2.15 wrote, or says that it is of a newer version.
# Seen: its metadata is a pickle of the properties of a tensor, to which 2.15 has added one: 2.11 ends with "metadata is None", and
#   names no version. The other way round 2.15 reads it.
# With: torch 2.15.0 and 2.11.0, Python 3.11 in both, on 2026-11-30.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import sys

import torch
import torch.distributed.checkpoint as dcp

verb, path = sys.argv[1:]
if verb == "write":
    dcp.save({"weight": torch.arange(4.0)}, checkpoint_id=path)
    sys.exit()
state = {"weight": torch.zeros(4)}
try:
    dcp.load(state, checkpoint_id=path)
except dcp.CheckpointException as error:
    print(f"torch {torch.__version__} raises: {str(error).splitlines()[-1]}"[:200])
    sys.exit(4)
print(f"torch {torch.__version__} reads {state['weight'].tolist()}")
PROGRAM
for version in 2.11.0 2.15.0; do
    "$uv" venv --quiet --python 3.11 "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" "torch==$version" numpy==2.4.6
    "$folder/$version/bin/python" -W ignore "$folder/program.py" write "$folder/of$version" 2>/dev/null
done
found=
for reader in 2.11.0 2.15.0; do
    for writer in 2.11.0 2.15.0; do
        echo "written by $writer:"
        status=0
        "$folder/$reader/bin/python" -W ignore "$folder/program.py" read "$folder/of$writer" 2>"$folder/log" || status=$?
        found="$found $status"
    done
done
[ "$found" = " 0 4 0 0" ]
