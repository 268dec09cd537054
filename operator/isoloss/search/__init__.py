"""Sequential search: which points of a sweep to train next, and how far, for the same answer at less cost.

Pure functions of what was seen so far; see next_step.py. Nothing here starts or stops anything.
"""

from isoloss.search.model import Decision as Decision
from isoloss.search.model import Point as Point
from isoloss.search.model import Reason as Reason
from isoloss.search.model import SearchOptions as SearchOptions
from isoloss.search.model import Seen as Seen
from isoloss.search.model import Size as Size
from isoloss.search.model import Step as Step
from isoloss.search.model import StopReason as StopReason
from isoloss.search.next_step import next_step as next_step
