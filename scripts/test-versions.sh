#!/bin/sh
# Runs the trainer's tests at the corners of the supported range of Python, torch and transformers.
# Each corner has its own environment in a cache folder (about 6 GB, most of it shared by hard
# links with uv's cache); the oldest corner takes the lowest version that pyproject.toml allows of
# every other direct dependency, too. Arguments go to pytest. TORCH_INDEX=... adds a package index,
# such as PyTorch's for wheels without CUDA.
set -eu
cd "$(dirname "$0")/.."

# Python, torch, transformers, resolution of everything else.
corners='3.11 2.11 5.17 lowest-direct
3.12 2.13 5.20 highest
3.13 2.15 5.24 highest'

cache=${ISOLOSS_VERSIONS:-${XDG_CACHE_HOME:-$HOME/.cache}/isoloss/versions}
uv=$(./scripts/find-uv.sh)
# pyenv puts only the selected versions on PATH unless PYENV_VERSION lists all.
if command -v pyenv >/dev/null; then
    PYENV_VERSION=$(pyenv versions --bare | sort -rV | paste -sd: -)
    export PYENV_VERSION
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONPATH="$PWD"

prepare() { # environment, Python, torch, transformers, resolution
    stamp=$(printf '%s ' "$PWD" "$@" | cat - pyproject.toml | sha256sum | cut -d ' ' -f 1)
    if [ "$(cat "$1/isoloss-stamp" 2>/dev/null)" = "$stamp" ]; then return; fi
    echo "==> Making $1"
    "$uv" venv --quiet --clear --python "$2" "$1"
    "$uv" pip install --quiet --python "$1/bin/python" --resolution "$5" \
        ${TORCH_INDEX:+--index "$TORCH_INDEX" --index-strategy unsafe-best-match} \
        --editable '.[operator,trainer,dev]' "torch==$3.*" "transformers==$4.*"
    echo "$stamp" >"$1/isoloss-stamp"
}

versions='
import platform
from importlib.metadata import version
names = ("torch", "transformers", "tokenizers", "datasets", "numpy", "pydantic", "pyarrow", "fsspec")
print(f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names), sep=", ")'

report=$(mktemp)
trap 'rm -f "$report"' EXIT
failed=0
while read -r python torch transformers resolution; do
    environment="$cache/python$python-torch$torch-transformers$transformers"
    prepare "$environment" "$python" "$torch" "$transformers" "$resolution" </dev/null
    found=$("$environment/bin/python" -c "$versions")
    echo "==> $found"
    outcome=passed
    "$environment/bin/python" -m pytest -q -p no:cacheprovider -m "not s3" tests/isoloss_trainer "$@" </dev/null || {
        outcome=FAILED
        failed=1
    }
    echo "$outcome: $found" >>"$report"
done <<END
$corners
END
echo
cat "$report"
exit "$failed"
