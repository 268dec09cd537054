#!/bin/sh
# Expected: each torch.compile(f, dynamic=False) compiles f for its own shapes, so that a process which goes through many
#   sizes, one compiled function each, runs all of them compiled.
# Seen: the eight variants that torch keeps are counted for f over all its torch.compile calls. The ninth shape and all after it
#   run uncompiled, at a warning in the log. With recompile_limit=64 all of them are compiled.
# With: torch 2.15.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
uv=$("$(dirname "$0")/../scripts/find-uv.sh")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$uv" venv --quiet --python 3.11 "$folder/python"
"$uv" pip install --quiet --python "$folder/python/bin/python" torch==2.15.0 numpy==2.4.6
cat >"$folder/program.py" <<'PROGRAM'
import sys

import torch

ran_uncompiled = 0


def loss(x):
    if not torch.compiler.is_compiling():
        count()
    return (x * x).sum()


@torch.compiler.disable
def count():
    global ran_uncompiled
    ran_uncompiled += 1


options = {"recompile_limit": int(sys.argv[1])} if len(sys.argv) > 1 else {}
for size in range(2, 14):
    torch.compile(loss, dynamic=False, backend="eager", **options)(torch.ones(size))
print(f"12 sizes, {options or 'as it comes'}: {ran_uncompiled} ran uncompiled")
raise SystemExit(ran_uncompiled)
PROGRAM
few=0 all=0
"$folder/python/bin/python" "$folder/program.py" 2>"$folder/log" || few=$?
"$folder/python/bin/python" "$folder/program.py" 64 2>"$folder/log" || all=$?
[ "$few" = 4 ] && [ "$all" = 0 ]
