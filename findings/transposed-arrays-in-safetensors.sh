#!/bin/sh
# Expected: safetensors.numpy.save_file writes the array that it is given, or refuses it.
# Seen: of a transposed array, or one in Fortran's order, 0.8.0 writes numbers in another order under the right shape,
#   without a word. 0.7.0 writes them as they are. A matrix that was turned around for another framework becomes another matrix.
# With: safetensors 0.8.0 and 0.7.0, numpy 2.4.6, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 0.7.0 0.8.0; do
    "${PYTHON:-python3}" -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check "safetensors==$version" numpy==2.4.6
done
cat >"$folder/saves.py" <<'PROGRAM'
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

matrix = np.arange(6.0).reshape(2, 3)
cases = {
    "as it is": matrix,
    "transposed": matrix.T,
    "Fortran's order": np.asfortranarray(matrix),
}
kept = []
for name, array in cases.items():
    save_file({"weight": array}, sys.argv[1])
    found = load_file(sys.argv[1])["weight"]
    kept.append(found.shape == array.shape and bool((found == array).all()))
    print(f"  {name}: {array.tolist()} is read back as {found.tolist()}")
sys.exit(kept != [True] + [sys.argv[2] == "kept"] * 2)
PROGRAM
for version in 0.7.0 0.8.0; do
    echo "safetensors $version"
    told=kept
    [ "$version" = 0.7.0 ] || told=changed
    "$folder/$version/bin/python" "$folder/saves.py" "$folder/weights.safetensors" "$told"
done
