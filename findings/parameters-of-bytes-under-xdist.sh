#!/bin/sh
# Expected: a parametrized test whose parameters are bytes runs under pytest-xdist as it runs in one process.
# Seen: pytest makes the ids of such parameters of their content. gzip.compress at import has the time in its header, each
#   worker imports the file at its own time, and the run ends before its first test: the workers collected different tests.
# With: pytest 9.1.1, pytest-xdist 3.8.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pytest==9.1.1 pytest-xdist==3.8.0
cat >"$folder/test_bytes.py" <<'PROGRAM'
import gzip
import os
import time

import pytest

# Workers of a busy machine import a file seconds apart; two of a quiet one do so here.
time.sleep(1.1 * (os.environ.get("PYTEST_XDIST_WORKER") == "gw1"))


@pytest.mark.parametrize("packed", [gzip.compress(b"one"), gzip.compress(b"two")])
def test_unpacks(packed):
    assert len(gzip.decompress(packed)) == 3
PROGRAM
cd "$folder"
alone=$("$folder/venv/bin/python" -m pytest -q -p no:cacheprovider test_bytes.py | tail -n 1)
two=$("$folder/venv/bin/python" -m pytest -q -p no:cacheprovider -n 2 test_bytes.py || true)
echo "in one process: $alone"
echo "in two workers: $(echo "$two" | grep -m 1 'Different tests' || echo "$two" | tail -n 1)"
echo "$alone" | grep -q '2 passed' && echo "$two" | grep -q 'Different tests were collected'
