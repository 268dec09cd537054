#!/bin/sh
# Makes .venv from the lock file. Idempotent: does nothing when .venv already matches.
set -eu
cd "$(dirname "$0")/.."

stamp=$(cat locks/dev.txt pyproject.toml scripts/setup.sh | sha256sum | cut -d ' ' -f 1)
# The stamp includes the path, because a virtual environment cannot be moved.
stamp="$stamp $PWD"
if [ -x .venv/bin/python ] && [ "$(cat .venv/isoloss-stamp 2>/dev/null)" = "$stamp" ]; then exit 0; fi

needed=${ISOLOSS_NEEDED_GB:-8}
free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
if ! [ -x .venv/bin/python ] && [ "$free" -lt "$needed" ]; then
    echo "This needs $needed GB of free disk in $PWD, which has $free: nothing was fetched." >&2
    exit 1
fi
uv=$(./scripts/find-uv.sh)
export UV_PYTHON_DOWNLOADS=never
if ! .venv/bin/python -c '' 2>/dev/null; then
    python=$(./scripts/find-python.sh)
    rm -rf .venv
    "$uv" venv --quiet --python "$python" .venv
fi
echo "==> Installing the locked environment into .venv (6 GB, mostly torch)"
rm -f .venv/isoloss-stamp
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes locks/dev.txt
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$stamp" >.venv/isoloss-stamp
echo "==> Environment ready: .venv"
