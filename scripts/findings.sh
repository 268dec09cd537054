#!/bin/sh
# Runs the scripts of findings/, all or those that are named; fails if one of them does.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
for script in findings/*.sh; do
    name=$(basename "$script" .sh)
    case " ${*:-$name} " in *" $name "*) ;; *) continue ;; esac
    echo "== $name"
    "$script" || { echo "$name: no longer as findings/README.md says"; status=1; }
done
exit $status
