"""How the best learning rate and batch size move from the tokens of the probes to those of the budget.

The composition Measured says most of it, whichever answered. `make bench-transfer` measured the optima of 31 checkpoints at
three budgets, each a factor of 3.2 apart: from one to the next batch sizes move as it says, and learning rates grow by
LEFT_OUT more, at every size and on every text (57 moves; 0.18 per ln of tokens about that in both). A learning rate costs a
checkpoint something at first, which a longer budget pays back.
"""

import numpy as np

from isoloss.laws import Array, Prediction
from isoloss.usual import LEFT_OUT, LEFT_OUT_ERRORS
from isoloss.validation.bowl import Normal

MEASURED = "measured"
"""The variant that answers carry in addition to the paper's composition."""


def drift(at_probes: Prediction, at_budget: Prediction) -> Normal:
    """ln of the optimum at the budget over that at the probes' tokens.

    Both are the laws' answers for the checkpoint, the first for the compute of a probe as its budget.
    """
    assert at_budget.cpt_flops is not None and at_probes.cpt_flops is not None  # noqa: PT018
    distance = float(np.log(at_budget.cpt_flops / at_probes.cpt_flops))
    composed = _log_measured(at_budget) - _log_measured(at_probes)
    return Normal(composed + LEFT_OUT * distance, LEFT_OUT_ERRORS * abs(distance))


def log_answer(answer: Prediction) -> Array:
    """(2,) ln LR and ln B, before rounding."""
    return np.asarray(
        np.log(np.array([answer.learning_rate.value, answer.batch_size_raw])), dtype=float
    )


def _log_measured(answer: Prediction) -> Array:
    """(2,) as the composition Measured has it, whichever answered."""
    if answer.composition == "Measured":
        return log_answer(answer)
    point = answer.variants[MEASURED]
    found = np.array([point.learning_rate.value, point.batch_size.value], dtype=float)
    return np.asarray(np.log(found), dtype=float)
