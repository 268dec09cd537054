#!/bin/sh
# Expected: a checkpoint of torch's own sharded format (DCP) is read by the same torch under another Python.
# Seen: one that Python 3.13.0 wrote is refused under 3.12: its metadata is a pickle with a path in it, whose class 3.13 keeps in a
#   module (pathlib._local) that 3.12 has not. The message ends with a file that would be of one process alone. The other way
#   round, 3.12's is read under 3.13.
# With: torch 2.15.0 in both, Python 3.13.0 and 3.12.1, on 2026-11-29. PYTHON13 and PYTHON12 name other interpreters of these.
# Fails if that is so no more.
set -eu
# pyenv puts only the selected versions on PATH unless PYENV_VERSION lists all.
if command -v pyenv >/dev/null; then
    PYENV_VERSION=$(pyenv versions --bare | sort -rV | paste -sd: -)
    export PYENV_VERSION
fi
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program.py" <<'PROGRAM'
import platform
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
verb, path = sys.argv[1:]
if verb == "write":
    dcp.save({"weight": torch.arange(4.0)}, checkpoint_id=path)
    sys.exit()
state = {"weight": torch.zeros(4)}
try:
    dcp.load(state, checkpoint_id=path)
except dcp.CheckpointException as error:
    print(f"Python {platform.python_version()} raises: {str(error).splitlines()[-1] or error}"[:400])
    sys.exit(4)
print(f"Python {platform.python_version()} reads {state['weight'].tolist()}")
PROGRAM
for version in 12 13; do
    eval "python=\${PYTHON$version:-python3.$version}"
    "$uv" venv --quiet --python "$(command -v "$python")" "$folder/$version"
    "$uv" pip install --quiet --python "$folder/$version/bin/python" torch==2.15.0 numpy==2.5.5
    "$folder/$version/bin/python" "$folder/program.py" write "$folder/of$version" 2>/dev/null
done
found=
for reader in 12 13; do
    for writer in 12 13; do
        echo "written under 3.$writer:"
        status=0
        "$folder/$reader/bin/python" "$folder/program.py" read "$folder/of$writer" 2>"$folder/log" || status=$?
        found="$found $status"
    done
done
[ "$found" = " 0 4 0 0" ]
