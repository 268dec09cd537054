"""How the best learning rate and batch size move from the tokens of the probes to those of the budget.

The laws say it through the total compute. Continued runs deviate: `make bench-transfer` measured the optima of 12
checkpoints at two budgets, a factor of 3.2 apart. Their learning rates moved as the composition Measured says, their batch
sizes grew by a factor of 1.1, although the laws have them grow by 2.1. So the learning rate is carried by it,
and the batch size by a part of what the laws say, with an error that covers nothing and nearly all of it.
"""

from __future__ import annotations

import numpy as np

from isoloss.laws import Array, Prediction
from isoloss.validation.bowl import Normal

ERROR_PER_LOG_TOKENS = np.array([0.19, 0.17])
"""Errors of ln LR and ln B per ln of budget over probe: 12 checkpoints, the errors of their measured optima
included."""
BATCH_SHARE, BATCH_ERROR = 0.25, 0.5
"""Share of the laws' move of ln B that is carried over, and its standard deviation."""
MEASURED = "measured"
"""The variant that answers carry in addition to the paper's composition."""


def drift(at_probes: Prediction, at_budget: Prediction) -> Normal:
    """ln of the optimum at the budget over that at the probes' tokens.

    Both are the laws' answers for the checkpoint, the first for the compute of a probe as its budget.
    """
    rate = _log_measured_rate(at_budget) - _log_measured_rate(at_probes)
    batch = float(np.log(at_budget.batch_size_raw / at_probes.batch_size_raw))
    assert at_budget.cpt_flops is not None and at_probes.cpt_flops is not None  # noqa: PT018
    distance = float(np.log(at_budget.cpt_flops / at_probes.cpt_flops))
    return Normal(
        np.array([rate, BATCH_SHARE * batch]),
        np.hypot([0.0, BATCH_ERROR * batch], ERROR_PER_LOG_TOKENS * abs(distance)),
    )


def log_answer(answer: Prediction) -> Array:
    """(2,) ln LR and ln B, before rounding."""
    return np.asarray(
        np.log(np.array([answer.learning_rate.value, answer.batch_size_raw])), dtype=float
    )


def _log_measured_rate(answer: Prediction) -> float:
    """As the composition Measured has it, whichever answered."""
    measured = answer if answer.composition == "Measured" else answer.variants[MEASURED]
    return float(np.log(measured.learning_rate.value))
