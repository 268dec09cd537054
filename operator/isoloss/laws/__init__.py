"""The law engine: trajectories in, laws or refusals out. Pure; see model.py for the types."""

from isoloss.laws.answer.batch_sizes import for_length, in_sequences, rounded, rounding_sentences
from isoloss.laws.answer.optimum import loss_curvature
from isoloss.laws.answer.predict import predict
from isoloss.laws.answer.question import loss_slope
from isoloss.laws.answer.refusals import size_refusal
from isoloss.laws.arrays import Array
from isoloss.laws.curves import HyperparameterCurve, LossCurve, OptimumTrends, Trend
from isoloss.laws.data.copies import nominal_values, shared_if_copy
from isoloss.laws.data.screening import Screened, screen
from isoloss.laws.document import LAWS_VERSION, BadLaws, LawsDocument, laws_from_json, laws_to_json
from isoloss.laws.fit import fit_laws
from isoloss.laws.fitted_laws import LAW_HEADS, STATUS_WORDS, Laws, law_rows, refused_parts
from isoloss.laws.formulas import (
    hyperparameter_formula,
    hyperparameter_quality,
    loss_compute_formula,
    loss_compute_quality,
    noise_in_words,
)
from isoloss.laws.model import (
    FitOptions,
    Interval,
    InvalidRunError,
    LawForm,
    Refusal,
    RefusalReason,
    Route,
    Run,
    StartedFrom,
    Status,
)
from isoloss.laws.prediction import (
    BatchSizeRange,
    Composition,
    Extrapolation,
    Point,
    Prediction,
    PredictionQuery,
    Refused,
    batch_size_text,
    regret_text,
    total_flops_text,
)
from isoloss.laws.refusals import refuse_alike_sizes, refused_laws
from isoloss.laws.results import (
    Contour,
    DataRange,
    Draws,
    HyperparameterLaw,
    LossComputeLaw,
    Optimum,
    SurfaceLaw,
)
from isoloss.laws.run_noise import RunNoise
