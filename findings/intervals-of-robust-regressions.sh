#!/bin/sh
# Expected: statsmodels takes Student's quantiles for the intervals of all its linear regressions, as OLS does: with three
#   parameters and nine points, 95% intervals hold in about 95% of repetitions, and two ways to one covariance give one interval.
# Seen: RLM (Huber) takes normal quantiles, and holds 88%. OLS.fit(cov_type="HC3") takes them too; fit().get_robustcov_results("HC3")
#   takes Student's, so that the same covariance gives intervals that are a quarter wider.
# With: statsmodels 0.15.0, scipy 1.17.1, numpy 2.4.6, Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PROGRAM'
import sys

import numpy as np
from statsmodels.api import OLS, RLM

CURVATURE, REPETITIONS = 3.0, 1000
x = np.linspace(0, 1, 9)
design = np.column_stack([np.ones(9), x, x**2])
noise = 0.1 * np.random.default_rng(0).standard_normal((REPETITIONS, 9))
samples = design @ [1, 2, CURVATURE] + noise
ways = {
    "OLS": lambda y: OLS(y, design).fit(),
    "RLM": lambda y: RLM(y, design).fit(),
    "OLS.fit(cov_type='HC3')": lambda y: OLS(y, design).fit(cov_type="HC3"),
    "get_robustcov_results('HC3')": lambda y: OLS(y, design).fit().get_robustcov_results("HC3"),
}
holds, width = {}, {}
for name, fit in ways.items():
    ends = np.array([fit(y).conf_int()[2] for y in samples])
    holds[name] = np.mean((ends[:, 0] < CURVATURE) & (ends[:, 1] > CURVATURE))
    width[name] = np.mean(ends[:, 1] - ends[:, 0])
    print(f"{name}: 95% intervals of the curvature hold {holds[name]:.1%}, mean width {width[name]:.2f}")
wider = width["get_robustcov_results('HC3')"] / width["OLS.fit(cov_type='HC3')"]
print(f"HC3 by its two ways: {wider:.3f} times as wide")
sys.exit(not (holds["OLS"] > 0.93 and holds["RLM"] < 0.9 and 1.2 < wider < 1.3))
PROGRAM
