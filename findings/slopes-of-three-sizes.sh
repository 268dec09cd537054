#!/bin/sh
# Expected: theilslopes gives a 95% interval of a slope that holds 95% for a few points too, as its ranks assume no distribution, or
#   says that there are too few.
# Seen: over three points it holds two thirds, over four 92%, without a word: its ends are the least and the greatest slope of a pair,
#   and all of them have one sign where the noise alone happens to rise or to fall, 2 of n! orders. Student's t (linregress) holds
#   95% over three.
# With: scipy 1.17.1, numpy 2.4.6, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" -W error - <<'PROGRAM'
import sys

import numpy as np
from scipy import stats

REPETITIONS = 3000
random = np.random.default_rng(0)
held = {}
for points in (3, 4, 6):
    x = np.arange(points)
    quantile = stats.t.ppf(0.975, points - 2)
    ranks = students = 0
    for _ in range(REPETITIONS):
        y = random.standard_normal(points)  # the true slope is 0
        robust, line = stats.theilslopes(y, x, 0.95), stats.linregress(x, y)
        ranks += robust.low_slope <= 0 <= robust.high_slope
        students += abs(line.slope) <= quantile * line.stderr
    held[points] = ranks / REPETITIONS, students / REPETITIONS
    print(f"{points} points: theilslopes holds {held[points][0]:.1%} of 95%, Student's t {held[points][1]:.1%}")
sys.exit(
    not (
        0.6 < held[3][0] < 0.76
        and 0.88 < held[4][0] < 0.94
        and held[6][0] > 0.94
        and all(0.93 < students < 0.97 for _, students in held.values())
    )
)
PROGRAM
