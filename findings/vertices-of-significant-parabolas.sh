#!/bin/sh
# Expected: the interval of a parabola's vertex from five points is most to be trusted where the curvature is significant: who leaves
#   the others out has at least the 95% that it claims.
# Seen: over all repetitions it holds 94 to 95%, flat parabolas included, because a flat one has a wide interval. Among those whose
#   curvature is significant it holds 88%, and 73% where the noise is larger: there the curvature is significant because the noise
#   made it larger than it is, and the interval of the vertex, which is divided by it, too narrow.
# With: numpy 2.4.6 (polyfit), scipy 1.17.1 (Student's quantiles), Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PROGRAM'
import sys

import numpy as np
from scipy import stats

VERTEX, REPETITIONS = 0.5, 10_000
x = np.linspace(-1, 1, 5)
t = stats.t.ppf(0.975, 2)
random = np.random.default_rng(0)
shares = []
for noise in (0.05, 0.3, 0.5):
    losses = (x - VERTEX) ** 2 + noise * random.standard_normal((REPETITIONS, 5))
    (a, b, _), covariance = np.polyfit(x, losses.T, 2, cov=True)
    vertex = -b / (2 * a)
    # To first order: the derivatives of -b/2a by a and b.
    slopes = np.array([b / (2 * a**2), -1 / (2 * a)])
    error = np.sqrt(np.einsum("ik,ijk,jk->k", slopes, covariance[:2, :2], slopes))
    holds = np.abs(vertex - VERTEX) < t * error
    significant = a > t * np.sqrt(covariance[0, 0])
    shares.append((holds.mean(), holds[significant].mean()))
    print(
        f"noise {noise}: the interval holds {shares[-1][0]:.1%} of all, {shares[-1][1]:.1%} of the "
        f"{significant.mean():.0%} with a significant curvature"
    )
every, selected = zip(*shares, strict=True)
sys.exit(not (min(every) > 0.93 and selected[0] > 0.93 and 0.84 < selected[1] < 0.9 and selected[2] < 0.75))
PROGRAM
