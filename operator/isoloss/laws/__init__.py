"""The law engine: trajectories in, laws or refusals out. Pure; see model.py for the types."""

from isoloss.laws.answer.predict import predict
from isoloss.laws.answer.prediction import (
    Extrapolation,
    Point,
    Prediction,
    PredictionQuery,
    Refused,
)
from isoloss.laws.arrays import Array
from isoloss.laws.curves import (
    HyperparameterCurve,
    LossCurve,
    OptimumPlanes,
    Plane,
)
from isoloss.laws.document import BadLaws, laws_from_json, laws_to_json
from isoloss.laws.fit import fit_laws
from isoloss.laws.model import (
    FitOptions,
    Interval,
    InvalidRunError,
    LawForm,
    Refusal,
    RefusalReason,
    Route,
    Run,
    SizeTrend,
    Status,
)
from isoloss.laws.refusals import refused_laws
from isoloss.laws.results import (
    Contour,
    DataRange,
    Draws,
    Exclusion,
    HeldOutScore,
    HyperparameterLaw,
    Laws,
    LossComputeLaw,
    Optimum,
    Selection,
    SurfaceLaw,
)

__all__ = [
    "Array",
    "BadLaws",
    "Contour",
    "DataRange",
    "Draws",
    "Exclusion",
    "Extrapolation",
    "FitOptions",
    "HeldOutScore",
    "HyperparameterCurve",
    "HyperparameterLaw",
    "Interval",
    "InvalidRunError",
    "LawForm",
    "Laws",
    "LossComputeLaw",
    "LossCurve",
    "Optimum",
    "OptimumPlanes",
    "Plane",
    "Point",
    "Prediction",
    "PredictionQuery",
    "Refusal",
    "RefusalReason",
    "Refused",
    "Route",
    "Run",
    "Selection",
    "SizeTrend",
    "Status",
    "SurfaceLaw",
    "fit_laws",
    "laws_from_json",
    "laws_to_json",
    "predict",
    "refused_laws",
]
