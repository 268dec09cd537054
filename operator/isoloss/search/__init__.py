"""Sequential search: which points of a sweep to train next, and how far, for the same answer at less cost.

One rule decides: train next what lowers the expected regret at the target most per FLOP, as long as that saves more than it
costs. Pure functions of what was seen so far; see next_step.py. Nothing here starts or stops anything.
"""

from isoloss.search.model import (
    Decision,
    Point,
    Reason,
    SearchOptions,
    Seen,
    Size,
    Step,
    StopReason,
)
from isoloss.search.next_step import next_step
