#!/bin/sh
# Prints the path of the first Python 3.11 to 3.13 among PYTHON=... and the usual names.
for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
    [ -n "$candidate" ] || continue
    "$candidate" -c '
import sys
sys.exit(1) if not (3, 11) <= sys.version_info[:2] < (3, 14) else print(sys.executable)' 2>/dev/null && exit 0
done
echo "Install Python 3.11, 3.12 or 3.13 (Debian, Ubuntu: python3 and python3-venv), or name one by PYTHON=...; none is on PATH." >&2
exit 1
