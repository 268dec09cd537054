#!/bin/sh
# Expected: prometheus_client's parser gives the samples of a page of metrics under the names that they have on the page.
# Seen: a counter whose name does not end in _total, which Prometheus and its clients for other languages allow, comes out with that
#   ending, and is written so again. Who looks for it by its name on the page finds no sample.
# With: prometheus_client 0.26.0, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check prometheus_client==0.26.0
"$folder/venv/bin/python" - <<'PROGRAM'
import sys

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

PAGE = """# HELP requests Requests that were answered.
# TYPE requests counter
requests 5
# HELP queue Requests that wait.
# TYPE queue gauge
queue 2
"""


class Page:
    def collect(self):
        return list(text_string_to_metric_families(PAGE))


registry = CollectorRegistry()
registry.register(Page())
parsed = [sample.name for family in Page().collect() for sample in family.samples]
lines = generate_latest(registry).decode().splitlines()
written = [line.split()[0] for line in lines if not line.startswith("#")]
print(f"on the page: requests, queue; parsed: {', '.join(parsed)}; written again: {', '.join(written)}")
sys.exit(not (parsed == written == ["requests_total", "queue"]))
PROGRAM
