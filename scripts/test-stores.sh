#!/bin/sh
# Asks S3 servers of others what docs/reference/support.md says of each. They are installed into a cache folder, rclone
# without all that is not its S3 server: minutes on two cores. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
export ISOLOSS_STORES="${ISOLOSS_STORES:-${XDG_CACHE_HOME:-$HOME/.cache}/isoloss/stores}"
go=$(.venv/bin/python -c 'from devcluster.build import find_go, print_note; print(find_go(print_note))')
mkdir -p "$ISOLOSS_STORES"
if [ ! -x "$ISOLOSS_STORES/gofakes3" ]; then
    GOBIN="$ISOLOSS_STORES" "$go" install github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0
fi
if [ ! -x "$ISOLOSS_STORES/rclone" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    cat >"$scratch/main.go" <<'PROGRAM'
package main

import (
	_ "github.com/rclone/rclone/backend/local"
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/serve/s3"
)

func main() { cmd.Main() }
PROGRAM
    printf 'module stores\ngo 1.26.0\nrequire github.com/rclone/rclone v1.76.0\n' >"$scratch/go.mod"
    (cd "$scratch" && "$go" build -mod=mod -o "$ISOLOSS_STORES/rclone" .)
fi
if [ ! -x "$ISOLOSS_STORES/moto/bin/moto_server" ]; then
    uv=$(./scripts/find-uv.sh)
    "$uv" venv --quiet --clear --python .venv/bin/python "$ISOLOSS_STORES/moto"
    "$uv" pip install --quiet --python "$ISOLOSS_STORES/moto/bin/python" 'moto[s3,server]==5.2.5'
fi
.venv/bin/python -m devcluster build versitygw fake-gcs-server
exec .venv/bin/python -m pytest -q tests/isoloss_contract/test_other_stores.py "$@"
