"""Does a predicted learning rate and batch size hold? Short continued runs around it, and what they say.

Pure: losses in, a verdict and a refined answer out; see judging.py. Nothing here trains anything.
"""

from isoloss.validation.judging import AT_THE_ANSWER as AT_THE_ANSWER
from isoloss.validation.judging import TOLERANCE as TOLERANCE
from isoloss.validation.judging import judge as judge
from isoloss.validation.judging import validate as validate
from isoloss.validation.outcome import Comparison as Comparison
from isoloss.validation.outcome import Direction as Direction
from isoloss.validation.outcome import Reason as Reason
from isoloss.validation.outcome import Refined as Refined
from isoloss.validation.outcome import Validation as Validation
from isoloss.validation.outcome import is_verdict as is_verdict
from isoloss.validation.probe_length import ShareRefused as ShareRefused
from isoloss.validation.probe_length import refuse_share as refuse_share
from isoloss.validation.probes import InvalidProbes as InvalidProbes
from isoloss.validation.probes import Place as Place
from isoloss.validation.probes import Probe as Probe
from isoloss.validation.probes import in_laws_sequences as in_laws_sequences
from isoloss.validation.probes import probe_cross as probe_cross
from isoloss.validation.probes import probes_of_runs as probes_of_runs
