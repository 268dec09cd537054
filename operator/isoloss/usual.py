"""What is taken for granted about language models where a sweep's own runs do not show it, and where that is from.

*Published sweeps* are the two full-factorial ones of the Step Law (arXiv 2503.04715), dense and mixtures, which `make
bench-science` and `make bench-search` ask. Laws, search and validation all read these figures here: a better measurement changes one line.
"""

from typing import Final

import numpy as np

# ------------------------------------------------------------------------ equal, enough and sure

SAME_VALUE: Final = 0.002
"""Learning rates, batch sizes and sizes this close (relative) are the same value, rounded."""
FEWEST_RUNS: Final = 3
"""Runs that show a minimum: of a size, or of one batch size. As many batch sizes show a bend over them."""
FEWEST_SIZES: Final = 2
"""That show a trend over sizes."""
SURELY: Final = 3.0
"""Standard errors beyond which a difference is no chance, where many are looked at."""
USUAL_FREEDOM: Final = 2
"""Degrees of freedom that what is usual adds to those that a sweep shows."""

# ------------------------------------------------------------------------------------------- noise

USUAL_NOISE: Final = 0.003
"""Nats between two seeds of one configuration if nothing shows it: small models have 0.0015 to 0.004."""
MOST_NOISE: Final = 0.010
"""Nats between seeds that a validation reckons with where none were trained, however closely losses follow the laws."""
USUAL_RUN_NOISE: Final = 4e-4
"""Noise of ln L from run to run: 0.0013 nats at 3.3."""
EVALUATION_NOISE: Final = 0.0007
"""Noise of a single evaluation relative to its neighbours on the trajectory, nats."""

# ---------------------------------------------------------------------------------- loss over tokens

FLOPS_PER_PARAM_AND_TOKEN: Final = (1.0, 1000.0)
"""6 for a plain transformer; long sequences and large heads raise it, and nothing lowers it below 2."""
LARGEST_UNSEEN_SHARE: Final = 0.05
"""Share of the total compute that a checkpoint's past may have and not be counted, or not be told of: it moves ln LR and ln B by a hundredth
or two."""
LARGEST_LOSS: Final = 16.0
"""Nats per token; ln(8.9 million), more than a uniform guess over any vocabulary."""
USUAL_BYTES_PER_TOKEN: Final = 4.4
"""Bytes of English text in a token: GPT-2's tokenizer has 4.3 on scientific text, 4.5 on news and 4.6 on FineWeb-Edu (nanochat's
tokenizer report)."""
USUAL_NATS_PER_BYTE: Final = 0.9
"""Trained language models reach 0.5 to 0.9 nats per byte of text; 0.9 nats are 1.3 bits."""
USUAL_SLOPE: Final = 0.03
"""-dlnL/dlnD if a single evaluation cannot tell: 0.07 nats per factor e of tokens at 2.4."""
USUAL_TOKEN_SLOPE: Final = 0.1
"""-dL/dlnD, nats, at the end of runs: 0.06 to 0.13 on the published sweeps."""
USUAL_SLOPES: Final = (0.01, 1.0)
"""The same in all sweeps: 0.06 to 0.13 on the published ones, 0.15 on the sample runs."""
USUAL_SLOPE_TOKENS: Final = 2.5e10
"""Tokens at which it is that: 0.08 to 0.12 there on the dense published sweep, 0.13 at half as many on that of mixtures."""
FLATTENS: Final = 0.3
"""Exponent of D with which that falls."""

PUBLISHED_WASTE: Final = 0.2
"""ln D that a published law is expected to waste on a model and data that it was not made on: 0.0121 nats, 0.2 of ln D, on a sweep that
neither it nor this engine was fitted to."""

# -------------------------------------------------------------------- continued runs, by `make bench-transfer`

FADE, FADE_ERROR = 0.5, 0.4
"""Exponent of the share of compute still to come, and its standard deviation: 0.5 where checkpoints were pre-trained at the laws' rate,
up to 1 where slower."""
RATE_ERROR, BATCH_ERROR = 0.25, 0.35
"""Standard deviations of ln LR and ln B of every run: what the measured optima deviate by, the laws' own error included."""
YOUNG_ERROR, YOUNG_TOKENS = 0.8, 5.0
"""Standard deviation of ln LR of a run of no tokens, and the tokens per parameter at which it is half of that. With FADE_ERROR most
likely for all measured cases: 0.6 to 0.85 and 0.35 to 0.55 are within 2 units of log likelihood, 0.65 and 0.15 are 18 below."""
CHECKPOINTS: Final = 56
"""Behind them. Each is a degree of freedom: text, budget and size of real runs differ from those."""
LOWEST_SHARE: Final = 0.05
"""Measured; below it both factors are an extrapolation."""
RATIO_EXPONENT, RATIO_EXPONENT_ERROR = 0.48, 0.1
"""Elasticity of the learning rate with that of pre-training over the laws', and its standard error: 0.41 and 0.56 at two sizes."""
LOWEST_RATIO, HIGHEST_RATIO = 0.25, 1.3
"""Measured."""
LEFT_OUT: Final = np.array([0.16, 0.0])
"""ln LR and ln B by which optima move beyond the composition, per ln of budget over probe."""
LEFT_OUT_ERRORS: Final = np.array([0.24, 0.17])
"""Their errors, those of the measured optima included. Of LR more than the moves scatter: three checkpoints whose learning rate had
decayed moved by 0.35 instead, that of the demo, which is not among them, by 0.5; most that people continue are like these."""

# ------------------------------------------------------------------------------------------- valley

USUAL_CURVATURE: Final = 0.3
"""Curvature of ln D over the square of ln LR or ln B: 0.14 to 0.42 in the published sweeps, by direction."""
USUAL_CURVATURE_ERROR: Final = 0.1
"""Standard deviation of each term of that from setting to setting: the same figures."""
USUAL_MISFIT: Final = 0.013
"""Standard deviation, ln D, of losses about a parabola near the optimum: residuals of published sweeps, noise included, are 0.035 to 0.05
over their grids of a hundred points, and half of that among the dozen points about each best."""
NEAR_OPTIMUM: Final = 0.075
"""ln D wasted against the best at which a run counts half: farther away no valley is a parabola. Twice as far costs simulated steps of SGD
(benchmarks/science/noisy_steps.py) 0.00007 nats on small grids, and is no better on published sweeps."""
USUAL_ASYMMETRY: Final = np.array([0.45, 0.31, 0.40, 0.24])
"""Third derivatives (uuu, uuv, vvv, uvv, u of ln LR and v of ln B) over second ones, if the data do not show them.

Root mean square of both published sweeps: 0.64, -0.04, -0.43, 0.32 (dense) and -0.05, 0.44, -0.36, -0.10 (mixtures),
each known to 0.05. A grid of three values a hyperparameter shows little of them.
"""
FARTHEST_CUBIC: Final = 2.0
"""|ln x| from the optimum at which a cubic term stops to grow."""
SCALE_ERROR: Final = 0.1
"""Relative error per ln D of losses above the best, in nats, as curves flatten more or less than FLATTENS."""

# ------------------------------------------------------------------------- optima about a law of N and D

USUAL_SCATTER: Final = 0.055
"""Standard deviation of ln LR and ln B of a size about any law of N and D, as in published sweeps. A trend over a narrower spread of ln N,
ln D or ln B drowns in it."""
FLAT_SCATTER: Final = 0.012
"""Scatter of the slopes over ln LR and ln B, in ln D, where the valley is flat."""
STEEP_SCATTER: Final = 0.036
"""Scatter of the optima themselves in addition to that, in ln x: what steep valleys show.

Both published sweeps: noise apart, optima scatter by 0.05 to 0.06 across their valleys (curvature 0.31 and 0.42), by
0.055 and 0.07 along them (0.14 and 0.20).
"""
SHARED_SCATTER: Final = 0.5
"""Share of the scatter's variance that the cells of one size have in common, if their runs differ."""
EXPONENT_SCATTER: Final = np.array([0.02, 0.05])
"""Scatter over sizes of the exponents of D that LR and B follow: 0.03 and none of LR, 0.055 and 0.05 of B in both published
sweeps, size by size and noise apart.

Cells with runs of their own show it as scatter of the cells; cells along one run deviate together.
"""
USUAL_BATCH_EXPONENTS: Final = np.array([-0.2, 0.5])
"""Exponents of N, at equal D, and of D, at one size, that the best batch size follows.

Of N, by least squares: -0.20 and -0.24 in the published sweeps, -0.4 +- 0.3 and -0.28 +- 0.15 in those of `make bench-transfer` and of
the demo; publications have none, for critical batch sizes either (2503.04715, 2505.13738, 2410.21676). Of D: 0.57 (the Step Law, arXiv
2503.04715), 0.38 (2505.13738), 0.45 size by size in the published sweeps, 0.56 to 0.69 in that of `make bench-transfer`; critical batch
sizes 0.46 and 0.47 (2505.13738, 2410.21676).
"""
BATCH_EXPONENT_ERRORS: Final = np.array([0.4, 0.15])
"""Their standard deviations from setting to setting: those of these are 0.2 and 0.1."""
RATE_EXPONENT_ERROR: Final = 0.3
"""Standard deviation from setting to setting of the exponent of D that the best learning rate follows at one size and one batch size,
which is taken as none: 0.00 and 0.04 in the published sweeps, each known to 0.05, and -0.32 where
horizons were compared (arXiv 2409.19913). These are few: 80% of such a distribution hold all of them with room."""
USUAL_BATCH_CURVATURE: Final = 0.1
"""Standard deviation of the coefficients of (ln B)^2 and of ln B ln D in the best ln LR at a batch size: it rises with the batch size and
then stays, later the more tokens. Published sweeps: -0.14 and -0.06, 0.15 and 0.04; simulated steps of SGD
(benchmarks/science/noisy_steps.py): -0.08 and 0.03."""
RATE_SIZE_EXPONENT_ERROR: Final = 0.5
"""Standard deviation from setting to setting of the exponent of N that the best learning rate follows: publications have -0.71 at equal D
(arXiv 2503.04715), -0.33 at 20 tokens per parameter (2406.19146), and none where widths are parametrised."""
USUAL_SIZE_CURVATURE: Final = 0.04
"""Standard deviation of the coefficient of (ln N)^2 in ln LR and ln B, where a law has none.

Both published sweeps, which span 1.6 to 1.9 in ln N: 0.07 and 0.13 of LR, 0.15 and 0.06 of B, each known to 0.06 to 0.1 and more.
Exponents that were published for sizes a factor of twenty apart differ by 0.15: 0.025. Optima that
are powers of the loss, as the paper has them, bend by 0.05 (LR) and -0.04 (B) at 4e8 parameters and by three quarters of that at 2e9.
"""
USUAL_TOKEN_CURVATURE: Final = 0.05
"""Standard deviation of the coefficient of (ln D)^2 in ln LR and ln B, where a law has none.

Both published sweeps, size by size and averaged: -0.02 and 0.03 of LR, 0.02 and 0.09 of B, each known to 0.01.
"""
MEAN_CURVATURE_SHARE: Final = 0.125
"""Share of the variances of both that an answer and a design reckon with; intervals have to hold nearly all settings, and keep all. Expected and
measured regret of designs agree with it: 0.99, 1.06 and 1.00 on published and synthetic sweeps of `make bench-economy`, 1.02, 1.10 and 1.08
with a quarter, 0.97, 1.03 and 0.58 with a sixteenth."""
TOKEN_CURVATURE_SCATTER: Final = 0.02
"""Scatter of that over sizes, noise apart: none of LR, 0.03 of B in the published sweeps."""
ISO_LOSS_SCATTER: Final = 0.1
"""Standard deviation of ln LR and ln B about the iso-loss laws when no data could be held out to measure it."""
BEST_RUNS_ERROR: Final = 0.15
"""Of ln C: how much more compute the best of runs need for a loss than the best that there could be. On synthetic 3 x 3 grids whose
optimum lies at the grid's edge it is 0.08 to 0.1, in part because sizes are a factor of two apart."""
FRONTIER_RATIO_ERROR: Final = 0.4
"""Standard deviation of ln(D / N) of the size that needs the least compute, as a sweep of few sizes finds it.

Three ways of finding it on the same runs gave 20, 20 and 60 tokens per parameter (arXiv 2203.15556), and the sweep's own ends bound it.
"""
FRONTIER_EXPONENT_ERROR: Final = 0.06
"""Standard deviation of that ratio's exponent of C, which is taken as none: 1 - 2 a of published N ~ C^a, a of 0.45 to 0.54 (arXiv
2203.15556, 2401.02954, 2407.21783)."""

# -------------------------------------------------------------------------------------------- grid

USUAL_TOKENS: Final = 20
"""Tokens for each parameter of a proxy that is given as an example (Hoffmann et al., arXiv 2203.15556)."""
FEWEST_STEPS: Final = 30
"""Optimizer steps of a run; fewer are probably in another unit. Token counts of one run in whole steps are within one of them."""
LARGEST_RATE: Final = 0.1
"""Learning rates from here on are refused, unless the sweep itself tried as large ones."""
AT_THE_ANSWER: Final = 0.25
"""ln LR or ln B by which a setting may be off another and still stand for it: by USUAL_CURVATURE that wastes 0.009 of ln D, 0.001 nats."""
LARGEST_USUAL_RATE: Final = 0.03
"""AdamW is used at 1e-5 to 1e-2; in percent, the middle of its grids is 0.03 or more."""
USUAL_STEP: Final = 2.0
"""Factor between two values of a grid, where there is a single one."""
