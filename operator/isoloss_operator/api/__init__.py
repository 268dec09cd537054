"""The two resources, `ScalingSweep` and `HyperparamPrediction`: the one source of the CRDs.

The docstring under each field becomes its description in `kubectl explain`; bounds and rules
become the API server's own checks. Decimal numbers are quoted strings, as the API conventions ask
(no floats in a spec); counts are integers; FLOPs are strings because they exceed 2**53.
"""

from __future__ import annotations

from isoloss_operator.api.fields import ApiType
from isoloss_operator.api.prediction import (
    Checkpoint,
    HyperparamPredictionSpec,
    PredictionBudget,
    Publish,
    SweepReference,
)
from isoloss_operator.api.statuses import (
    ActivePoint,
    Condition,
    FailedPoint,
    HyperparamPredictionStatus,
    IntervalStatus,
    LawStatus,
    LedgerReference,
    OptimumStatus,
    PointCounts,
    ScalingSweepStatus,
    VariantStatus,
)
from isoloss_operator.api.sweep import (
    MAX_POINTS,
    Data,
    Domain,
    Evaluation,
    FailurePolicy,
    Fit,
    Grid,
    Like,
    Model,
    Optimizer,
    Proxy,
    Queue,
    ScalingSweepSpec,
    Storage,
    SweepBudget,
    Training,
    Validation,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "MAX_POINTS",
    "PREDICTION_KIND",
    "PREDICTION_PLURAL",
    "SWEEP_KIND",
    "SWEEP_PLURAL",
    "VERSION",
    "ActivePoint",
    "ApiType",
    "Checkpoint",
    "Condition",
    "Data",
    "Domain",
    "Evaluation",
    "FailedPoint",
    "FailurePolicy",
    "Fit",
    "Grid",
    "HyperparamPredictionSpec",
    "HyperparamPredictionStatus",
    "IntervalStatus",
    "LawStatus",
    "LedgerReference",
    "Like",
    "Model",
    "Optimizer",
    "OptimumStatus",
    "PointCounts",
    "PredictionBudget",
    "Proxy",
    "Publish",
    "Queue",
    "ScalingSweepSpec",
    "ScalingSweepStatus",
    "Storage",
    "SweepBudget",
    "SweepReference",
    "Training",
    "Validation",
    "VariantStatus",
]

GROUP = "isoloss.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
SWEEP_KIND = "ScalingSweep"
SWEEP_PLURAL = "scalingsweeps"
PREDICTION_KIND = "HyperparamPrediction"
PREDICTION_PLURAL = "hyperparampredictions"
