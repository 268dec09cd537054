#!/bin/sh
# Expected: curve_fit(loss="huber") gives standard errors of the robust fit that it made: near to the scatter of its values over
#   repetitions, so that 95% intervals hold the true value in about 95% of them, whatever f_scale.
# Seen: they are those of least squares with weights, and hold while f_scale is as large as the noise. Far below it, as scaling laws
#   are fitted, about half of the intervals hold the slope of a line through nine points, and some errors are a million times too
#   large.
# With: scipy 1.17.1, numpy 2.4.6, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PROGRAM'
import sys

import numpy as np
from scipy import optimize, stats

NOISE, SLOPE, REPETITIONS = 0.1, 2.0, 300
x = np.linspace(0, 1, 9)
t = stats.t.ppf(0.975, len(x) - 2)
losses = 1 + SLOPE * x + NOISE * np.random.default_rng(0).standard_normal((REPETITIONS, len(x)))


def line(x, start, slope):
    return start + slope * x


shares, largest = {}, {}
for scale in (10, 1, 0.1, 0.01):
    fits = [
        optimize.curve_fit(line, x, y, p0=[1, 2], method="trf", loss="huber", f_scale=scale * NOISE)
        for y in losses
    ]
    slopes = np.array([values[1] for values, _ in fits])
    errors = np.array([np.sqrt(covariance[1, 1]) for _, covariance in fits])
    shares[scale] = np.mean(np.abs(slopes - SLOPE) < t * errors)
    largest[scale] = errors.max()
    print(
        f"f_scale {scale} of the noise: slopes scatter by {slopes.std():.3f}, median error {np.median(errors):.3f}, "
        f"largest {errors.max():.3g}; 95% intervals hold {shares[scale]:.0%}"
    )
sys.exit(not (shares[10] > 0.92 and shares[1] > 0.9 and shares[0.01] < 0.65 and largest[0.01] > 1000))
PROGRAM
