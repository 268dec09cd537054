#!/bin/sh
# Resolves pyproject.toml into the lock files: exact versions with hashes, no download addresses
# (operator/DECISIONS.md says why). dev.txt comes first, because the images' locks are subsets of it.
set -eu
cd "$(dirname "$0")/.."
uv=$(./scripts/find-uv.sh)
compile() {
    "$uv" pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate "$@"
}
compile --all-extras -o locks/dev.txt
compile --extra operator -c locks/dev.txt -o locks/operator.txt
compile --extra trainer -c locks/dev.txt -o locks/trainer.txt
# For building the wheel in the images.
echo 'hatchling>=1.27' | "$uv" pip compile - --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate -c locks/dev.txt -o locks/build.txt
