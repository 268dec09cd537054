#!/bin/sh
# Prints the path of uv; installs it into .tools where the machine has none.
set -eu
cd "$(dirname "$0")/.."
uv_version=0.13.8
if command -v uv; then exit 0; fi
if [ ! -x .tools/bin/uv ]; then
    python=$(./scripts/find-python.sh)
    printf '==> Installing uv %s into .tools\n' "$uv_version" >&2
    rm -rf .tools
    if "$python" -m venv .tools >/dev/null 2>&1; then
        .tools/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version" >&2
    elif rm -rf .tools && "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m pip install --quiet --disable-pip-version-check --target .tools "uv==$uv_version" >&2
    else
        echo "Neither uv, venv nor pip is available for $python: install one of them (Debian: python3-venv)." >&2
        exit 1
    fi
fi
echo "$PWD/.tools/bin/uv"
