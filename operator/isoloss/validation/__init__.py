"""Does a predicted learning rate and batch size hold? Short continued runs around it, and what they say.

Pure: losses in, a verdict and a refined answer out; see judging.py. Nothing here trains anything.
"""

from isoloss.usual import AT_THE_ANSWER
from isoloss.validation.judging import TOLERANCE, judge, validate
from isoloss.validation.outcome import (
    Comparison,
    Direction,
    Reason,
    Refined,
    Validation,
    is_verdict,
)
from isoloss.validation.probe_length import answer_at, smallest_share
from isoloss.validation.probes import (
    InvalidProbes,
    Place,
    Probe,
    in_laws_sequences,
    probe_cross,
    probes_of_runs,
)
