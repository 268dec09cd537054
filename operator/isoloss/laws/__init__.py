"""The law engine: trajectories in, laws or refusals out. Pure; see model.py for the types.

The names below are imported on first use: a prediction does not wait for what only fits.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoloss.laws.answer.expected_regret import loss_curvature as loss_curvature
    from isoloss.laws.answer.foundation import contradicted as contradicted
    from isoloss.laws.answer.limits import size_refusal as size_refusal
    from isoloss.laws.answer.predict import predict as predict
    from isoloss.laws.answer.prediction import BatchSizeRange as BatchSizeRange
    from isoloss.laws.answer.prediction import Composition as Composition
    from isoloss.laws.answer.prediction import Extrapolation as Extrapolation
    from isoloss.laws.answer.prediction import Point as Point
    from isoloss.laws.answer.prediction import Prediction as Prediction
    from isoloss.laws.answer.prediction import PredictionQuery as PredictionQuery
    from isoloss.laws.answer.prediction import Refused as Refused
    from isoloss.laws.answer.prediction import batch_size_text as batch_size_text
    from isoloss.laws.answer.prediction import total_flops_text as total_flops_text
    from isoloss.laws.answer.rounding import rounded as rounded
    from isoloss.laws.answer.rounding import rounding_sentences as rounding_sentences
    from isoloss.laws.answer.sequence_lengths import for_length as for_length
    from isoloss.laws.answer.sequence_lengths import in_sequences as in_sequences
    from isoloss.laws.arrays import Array as Array
    from isoloss.laws.curves import HyperparameterCurve as HyperparameterCurve
    from isoloss.laws.curves import LossCurve as LossCurve
    from isoloss.laws.curves import OptimumPlanes as OptimumPlanes
    from isoloss.laws.curves import Plane as Plane
    from isoloss.laws.data.copies import shared_if_copy as shared_if_copy
    from isoloss.laws.data.screening import Screened as Screened
    from isoloss.laws.data.screening import screen as screen
    from isoloss.laws.document import LAWS_VERSION as LAWS_VERSION
    from isoloss.laws.document import BadLaws as BadLaws
    from isoloss.laws.document import LawsDocument as LawsDocument
    from isoloss.laws.document import laws_from_json as laws_from_json
    from isoloss.laws.document import laws_to_json as laws_to_json
    from isoloss.laws.fit import fit_laws as fit_laws
    from isoloss.laws.fit import surface_residual as surface_residual
    from isoloss.laws.fitted_laws import LAW_HEADS as LAW_HEADS
    from isoloss.laws.fitted_laws import STATUS_WORDS as STATUS_WORDS
    from isoloss.laws.fitted_laws import Laws as Laws
    from isoloss.laws.fitted_laws import law_rows as law_rows
    from isoloss.laws.fitted_laws import refused_parts as refused_parts
    from isoloss.laws.formulas import hyperparameter_formula as hyperparameter_formula
    from isoloss.laws.formulas import hyperparameter_quality as hyperparameter_quality
    from isoloss.laws.formulas import loss_compute_formula as loss_compute_formula
    from isoloss.laws.formulas import loss_compute_quality as loss_compute_quality
    from isoloss.laws.formulas import noise_in_words as noise_in_words
    from isoloss.laws.model import FitOptions as FitOptions
    from isoloss.laws.model import FlopsConvention as FlopsConvention
    from isoloss.laws.model import Interval as Interval
    from isoloss.laws.model import InvalidRunError as InvalidRunError
    from isoloss.laws.model import LawForm as LawForm
    from isoloss.laws.model import Refusal as Refusal
    from isoloss.laws.model import RefusalReason as RefusalReason
    from isoloss.laws.model import Route as Route
    from isoloss.laws.model import Run as Run
    from isoloss.laws.model import SizeTrend as SizeTrend
    from isoloss.laws.model import Status as Status
    from isoloss.laws.refusals import refused_laws as refused_laws
    from isoloss.laws.results import Contour as Contour
    from isoloss.laws.results import DataRange as DataRange
    from isoloss.laws.results import Draws as Draws
    from isoloss.laws.results import HyperparameterLaw as HyperparameterLaw
    from isoloss.laws.results import LossComputeLaw as LossComputeLaw
    from isoloss.laws.results import Optimum as Optimum
    from isoloss.laws.results import SurfaceLaw as SurfaceLaw
    from isoloss.laws.run_noise import RunNoise as RunNoise
    from isoloss.laws.sizes import refuse_alike_sizes as refuse_alike_sizes

_HOMES = {
    "answer.expected_regret": ("loss_curvature",),
    "answer.foundation": ("contradicted",),
    "answer.limits": ("size_refusal",),
    "answer.predict": ("predict",),
    "answer.prediction": (
        "BatchSizeRange",
        "Composition",
        "Extrapolation",
        "Point",
        "Prediction",
        "PredictionQuery",
        "Refused",
        "batch_size_text",
        "total_flops_text",
    ),
    "answer.rounding": ("rounded", "rounding_sentences"),
    "answer.sequence_lengths": ("for_length", "in_sequences"),
    "arrays": ("Array",),
    "curves": ("HyperparameterCurve", "LossCurve", "OptimumPlanes", "Plane"),
    "data.copies": ("shared_if_copy",),
    "data.screening": ("Screened", "screen"),
    "document": ("LAWS_VERSION", "BadLaws", "LawsDocument", "laws_from_json", "laws_to_json"),
    "fit": ("fit_laws", "surface_residual"),
    "fitted_laws": ("LAW_HEADS", "STATUS_WORDS", "Laws", "law_rows", "refused_parts"),
    "formulas": (
        "hyperparameter_formula",
        "hyperparameter_quality",
        "loss_compute_formula",
        "loss_compute_quality",
        "noise_in_words",
    ),
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
        "HyperparameterLaw",
        "LossComputeLaw",
        "Optimum",
        "SurfaceLaw",
    ),
    "run_noise": ("RunNoise",),
    "sizes": ("refuse_alike_sizes",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # for "import *"; type checkers take the imports above
    __all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
