#!/bin/sh
# Prints the path of uv; installs it into .tools where the machine has none.
# The only place that knows where uv is: scripts and devcluster ask here.
set -eu
cd "$(dirname "$0")/.."
uv_version=0.13.8

# Each candidate is run, because a version manager's shim can be on PATH without a uv behind it.
for uv in "$(command -v uv || true)" "${HOME:-}/.local/bin/uv" "$PWD/.tools/bin/uv"; do
    if "$uv" --version >/dev/null 2>&1; then
        echo "$uv"
        exit 0
    fi
done

python=$(./scripts/find-python.sh)
say_installing() { printf '==> Installing uv %s into .tools\n' "$uv_version" >&2; }
rm -rf .tools
# Debian's python3 has the venv module, but without python3-venv not the ensurepip that it calls.
if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    say_installing
    "$python" -m venv .tools >&2
    .tools/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version" >&2
elif "$python" -m pip --version >/dev/null 2>&1; then
    say_installing
    "$python" -m pip install --quiet --disable-pip-version-check --target .tools "uv==$uv_version" >&2
else
    echo "Install the package python3-venv (Debian, Ubuntu) or uv: $python has neither venv nor pip." >&2
    exit 1
fi
echo "$PWD/.tools/bin/uv"
