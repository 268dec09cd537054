#!/bin/sh
# Expected: of nine losses over a factor of 16, a curve with a floor, L = E + A x^-g, and one without are told apart by an information
#   criterion, best by AICc, which is made for few data; the interval of the chosen one for ten times the largest x is about as good
#   as it says.
# Seen: with a floor of half of A and noise of 0.003, AIC and BIC leave it out in a tenth of the fits, AICc in a third. Whichever
#   does, the 80% interval without the floor never holds the loss at ten times the largest x, though the residuals are hardly larger
#   than the noise. AICc's choice holds half of what it claims, the curve with the floor 79% over the same data.
# With: lmfit 1.3.4, statsmodels 0.15.0 (AICc), scipy 1.17.1, numpy 2.4.6, Python 3.11, on 2026-11-30.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lmfit==1.3.4 statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import sys

import numpy as np
from lmfit import Model
from statsmodels.tools.eval_measures import aicc

FLOOR, NOISE, REPETITIONS = 0.5, 0.003, 500


def with_floor(x, E, A, g):
    return E + A * x**-g


def without(x, A, g):
    return A * x**-g


x, far = np.geomspace(1, 16, 9), np.array([160.0])
truth = with_floor(far, FLOOR, 1, 0.15)[0]
random = np.random.default_rng(0)
found = []
for _ in range(REPETITIONS):
    losses = with_floor(x, FLOOR, 1, 0.15) + NOISE * random.standard_normal(9)
    fits = (
        Model(with_floor).fit(losses, x=x, E=0.4, A=1, g=0.2),
        Model(without).fit(losses, x=x, A=1.5, g=0.1),
    )
    holds = []
    for fit in fits:
        # Student's quantile times the error of the curve there, for 80%.
        half = fit.eval_uncertainty(x=far, sigma=0.8)[0]
        holds.append(abs(fit.eval(x=far)[0] - truth) < half)
    full, plain = fits
    # lmfit's aic is twice the parameters less twice the log likelihood, but for a constant.
    corrected = [aicc(fit.nvarys - fit.aic / 2, 9, fit.nvarys) for fit in fits]
    residual = np.sqrt(plain.redchi) / NOISE
    found.append((plain.aic < full.aic, plain.bic < full.bic, corrected[1] < corrected[0], *holds, residual))
by_aic, by_bic, by_aicc, full, plain, residual = (np.array(column) for column in zip(*found))
for name, left in (("AIC", by_aic), ("BIC", by_bic), ("AICc", by_aicc)):
    print(
        f"{name} leaves the floor out in {left.mean():.0%}: there the interval without holds {plain[left].mean():.0%} of 80%, the one "
        f"with the floor {full[left].mean():.0%}; residuals are {residual[left].mean():.2f} of the noise"
    )
chosen = np.where(by_aicc, plain, full)
print(f"over all: as AICc chooses {chosen.mean():.0%}, always with the floor {full.mean():.0%}")
sys.exit(
    not (
        0.07 < by_aic.mean() < 0.16
        and 0.07 < by_bic.mean() < 0.17
        and 0.2 < by_aicc.mean() < 0.5
        and plain[by_aicc].mean() < 0.02
        and residual[by_aicc].mean() < 1.3
        and chosen.mean() < 0.7
        and full.mean() > 0.74
    )
)
PROGRAM
