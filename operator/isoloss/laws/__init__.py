"""The law engine: trajectories in, laws or refusals out. Pure; see model.py for the types.

The names below are imported on first use: a prediction does not wait for what only fits.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoloss.laws.answer.expected_regret import loss_curvature
    from isoloss.laws.answer.foundation import contradicted
    from isoloss.laws.answer.predict import predict
    from isoloss.laws.answer.prediction import (
        BatchSizeRange,
        Composition,
        Extrapolation,
        Point,
        Prediction,
        PredictionQuery,
        Refused,
    )
    from isoloss.laws.answer.rounding import rounded, rounding_sentences
    from isoloss.laws.answer.sequence_lengths import for_length, in_sequences
    from isoloss.laws.arrays import Array
    from isoloss.laws.curves import (
        HyperparameterCurve,
        LossCurve,
        OptimumPlanes,
        Plane,
    )
    from isoloss.laws.data.copies import shared_if_copy
    from isoloss.laws.document import (
        LAWS_VERSION,
        BadLaws,
        LawsDocument,
        laws_from_json,
        laws_to_json,
    )
    from isoloss.laws.fit import fit_laws, measured_noise, surface_residual
    from isoloss.laws.model import (
        FitOptions,
        FlopsConvention,
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
    from isoloss.laws.run_noise import RunNoise

_HOMES = {
    "answer.expected_regret": ("loss_curvature",),
    "answer.foundation": ("contradicted",),
    "answer.predict": ("predict",),
    "answer.prediction": (
        "BatchSizeRange",
        "Composition",
        "Extrapolation",
        "Point",
        "Prediction",
        "PredictionQuery",
        "Refused",
    ),
    "answer.rounding": ("rounded", "rounding_sentences"),
    "answer.sequence_lengths": ("for_length", "in_sequences"),
    "arrays": ("Array",),
    "curves": ("HyperparameterCurve", "LossCurve", "OptimumPlanes", "Plane"),
    "data.copies": ("shared_if_copy",),
    "document": ("LAWS_VERSION", "BadLaws", "LawsDocument", "laws_from_json", "laws_to_json"),
    "fit": ("fit_laws", "measured_noise", "surface_residual"),
    "model": (
        "FitOptions",
        "Interval",
        "InvalidRunError",
        "FlopsConvention",
        "LawForm",
        "Refusal",
        "RefusalReason",
        "Route",
        "Run",
        "SizeTrend",
        "Status",
    ),
    "refusals": ("refused_laws",),
    "results": (
        "Contour",
        "DataRange",
        "Draws",
        "Exclusion",
        "HeldOutScore",
        "HyperparameterLaw",
        "Laws",
        "LossComputeLaw",
        "Optimum",
        "Selection",
        "SurfaceLaw",
    ),
    "run_noise": ("RunNoise",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "LAWS_VERSION",
    "Array",
    "BadLaws",
    "BatchSizeRange",
    "Composition",
    "Contour",
    "DataRange",
    "Draws",
    "Exclusion",
    "Extrapolation",
    "FitOptions",
    "FlopsConvention",
    "HeldOutScore",
    "HyperparameterCurve",
    "HyperparameterLaw",
    "Interval",
    "InvalidRunError",
    "LawForm",
    "Laws",
    "LawsDocument",
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
    "RunNoise",
    "Selection",
    "SizeTrend",
    "Status",
    "SurfaceLaw",
    "contradicted",
    "fit_laws",
    "for_length",
    "in_sequences",
    "laws_from_json",
    "laws_to_json",
    "loss_curvature",
    "measured_noise",
    "predict",
    "refused_laws",
    "rounded",
    "rounding_sentences",
    "shared_if_copy",
    "surface_residual",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__
