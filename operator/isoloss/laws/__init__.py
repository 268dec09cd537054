"""The law engine: trajectories in, laws or refusals out. Pure; see model.py for the types."""

from isoloss.laws.document import BadLaws
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
    Status,
)
from isoloss.laws.predict import predict
from isoloss.laws.prediction import (
    Extrapolation,
    Point,
    Prediction,
    PredictionQuery,
    Refused,
)
from isoloss.laws.results import (
    Contour,
    DataRange,
    Exclusion,
    HeldOutScore,
    HyperparameterLaw,
    Laws,
    LossComputeLaw,
    Optimum,
    Selection,
    SurfaceLaw,
    evaluate_form,
)
from isoloss.laws.serialization import laws_from_json, laws_to_json

__all__ = [
    "BadLaws",
    "Contour",
    "DataRange",
    "Exclusion",
    "Extrapolation",
    "FitOptions",
    "HeldOutScore",
    "HyperparameterLaw",
    "Interval",
    "InvalidRunError",
    "LawForm",
    "Laws",
    "LossComputeLaw",
    "Optimum",
    "Point",
    "Prediction",
    "PredictionQuery",
    "Refusal",
    "RefusalReason",
    "Refused",
    "Route",
    "Run",
    "Selection",
    "Status",
    "SurfaceLaw",
    "evaluate_form",
    "fit_laws",
    "laws_from_json",
    "laws_to_json",
    "predict",
]
