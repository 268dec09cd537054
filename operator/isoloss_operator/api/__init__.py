"""The types of the two resources, `ScalingSweep` and `HyperparamPrediction`: the source of the CRDs.

The docstring under a field is its description in `kubectl explain`; bounds and rules become validation of the
API server. Decimal numbers are quoted strings, because the API conventions forbid floats; counts are
integers; FLOPs are strings because they exceed 2**53.
"""

from isoloss_operator.api.fields import ApiType
from isoloss_operator.api.prediction import Checkpoint, HyperparamPredictionSpec
from isoloss_operator.api.proxies import MAX_NEIGHBOURHOOD, Grid, Model, Proxy, ProxyGrid
from isoloss_operator.api.search import Search, SearchPlacement
from isoloss_operator.api.statuses import (
    Condition,
    HyperparamPredictionStatus,
    ScalingSweepStatus,
)
from isoloss_operator.api.sweep import (
    MAX_POINTS,
    Jobs,
    ScalingSweepSpec,
    SweepBudget,
)

GROUP = "isoloss.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
SWEEP_KIND = "ScalingSweep"
SWEEP_PLURAL = "scalingsweeps"
PREDICTION_KIND = "HyperparamPrediction"
PREDICTION_PLURAL = "hyperparampredictions"
