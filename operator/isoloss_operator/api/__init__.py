"""The types of the two resources, `ScalingSweep` and `HyperparamPrediction`: the source of the CRDs.

The docstring under a field is its description in `kubectl explain`; bounds and rules become validation of the
API server. Decimal numbers are quoted strings, because the API conventions forbid floats; counts are
integers; FLOPs are strings because they exceed 2**53.
"""

from isoloss_operator.api.fields import ApiType
from isoloss_operator.api.prediction import (
    AnswerValidation,
    Checkpoint,
    HyperparamPredictionSpec,
)
from isoloss_operator.api.proxies import (
    MAX_NEIGHBOURHOOD,
    Around,
    Grid,
    InitialCheckpoint,
    Model,
    Proxy,
    ProxyGrid,
)
from isoloss_operator.api.search import Search, SearchPlacement
from isoloss_operator.api.statuses import (
    ActivePoint,
    BatchSizeRangeStatus,
    Condition,
    ExpectedRegretStatus,
    ExtrapolationStatus,
    FailedPoint,
    HyperparamPredictionStatus,
    IntervalStatus,
    LawStatus,
    LedgerReference,
    OptimumStatus,
    PlacedSizeStatus,
    PointCounts,
    ProbeStatus,
    RefinedStatus,
    ScalingSweepStatus,
    SearchCostStatus,
    SearchStatus,
    SizeStatus,
    ValidationStatus,
    VariantStatus,
)
from isoloss_operator.api.sweep import (
    FEWEST_STEPS,
    MAX_POINTS,
    Jobs,
    ScalingSweepSpec,
    SweepBudget,
)
from isoloss_operator.api.training import Evaluation, Optimizer

GROUP = "isoloss.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
SWEEP_KIND = "ScalingSweep"
SWEEP_PLURAL = "scalingsweeps"
PREDICTION_KIND = "HyperparamPrediction"
PREDICTION_PLURAL = "hyperparampredictions"
