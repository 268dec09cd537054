"""What `--json` prints: laws and predictions as plain dictionaries.

The keys are an interface for pipelines: only ever add to them. Losses are nats per token, batch sizes
sequences, compute FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isoloss.laws import (
    BatchSizeRange,
    Extrapolation,
    HyperparameterLaw,
    Interval,
    Laws,
    LossComputeLaw,
    Optimum,
    Point,
    Prediction,
    Refusal,
    RunNoise,
)
from isoloss.published import PublishedLaw, PublishedOptimum
from isoloss.validation import Validation

Document = dict[str, Any]


def interval(value: Interval | None) -> Document | None:
    """{value, low, high}, or None."""
    if value is None:
        return None
    return {"value": value.value, "low": value.low, "high": value.high}


def refusals(found: Sequence[Refusal], warnings: Sequence[str] = ()) -> Document:
    """The document of a question without an answer."""
    return {
        "refused": [
            {"reason": item.reason.value, "message": item.message, "figures": item.figures}
            for item in found
        ],
        "warnings": list(warnings),
    }


# ----------------------------------------------------------------------------------------- fit


def fit(laws: Laws, warnings: Sequence[str] = ()) -> Document:
    """The document of `isoloss fit`."""
    return {
        "status": laws.status,
        "learning_rate": _hyperparameter_law(laws.learning_rate),
        "batch_size": _hyperparameter_law(laws.batch_size),
        "loss_compute": _loss_compute(laws.loss_compute),
        "surface": {
            "status": laws.surface.status,
            **_why(laws.surface.refusal),
            "residual_rms": laws.surface.residual_rms,
            "cells": laws.surface.cells,
            "same_at_all_sizes": list(laws.surface.same_at_all_sizes),
        },
        "run_noise": _run_noise(laws.run_noise),
        "default_route": laws.default_route,
        "held_out": laws.selection.held_out,
        "optima": [optimum(item) for item in laws.optima],
        "frontier": [optimum(item) for item in laws.frontier],
        "excluded": [{"run": item.run, "reason": item.reason} for item in laws.excluded],
        "interval": laws.options.interval,
        "optimizer": laws.optimizer,
        "flops_convention": laws.flops_convention,
        "warnings": [*warnings, *laws.warnings],
    }


def _run_noise(noise: RunNoise | None) -> Document | None:
    if noise is None:
        return None
    return {"deviation": noise.deviation, "degrees_of_freedom": noise.freedom}


def _why(refusal: Refusal | None) -> Document:
    if refusal is None:
        return {"reason": None, "message": None}
    return {
        "reason": refusal.reason.value,
        "message": refusal.message,
        "figures": refusal.figures,
    }


def _hyperparameter_law(law: HyperparameterLaw) -> Document:
    fitted = law.intercept is not None and law.slope is not None
    return {
        "status": law.status,
        **_why(law.refusal),
        "form": law.form,
        "coefficients": {"intercept": law.intercept, "slope": law.slope} if fitted else None,
        "covariance": law.covariance,
        "slope_interval": interval(law.slope_interval),
        "r_squared": law.r_squared,
        "rmse": law.rmse,
        "points": law.points,
    }


def _loss_compute(law: LossComputeLaw) -> Document:
    return {
        "status": law.status,
        **_why(law.refusal),
        "irreducible_loss": law.irreducible_loss,
        "alpha": law.alpha,
        "log_alpha": law.log_alpha,
        "gamma": law.gamma,
        "rmse": law.rmse,
        "r_squared": law.r_squared,
        "points": law.points,
        "irreducible_loss_fixed": law.irreducible_loss_fixed,
        "irreducible_loss_identified": law.irreducible_loss_identified,
        "rmse_without_irreducible_loss": law.rmse_without_irreducible_loss,
        "intervals": {
            "irreducible_loss": interval(law.irreducible_loss_interval),
            "alpha": interval(law.alpha_interval),
            "gamma": interval(law.gamma_interval),
        },
    }


def optimum(item: Optimum) -> Document:
    """One optimum; its numbers are null if it was refused."""
    return {
        "loss": item.loss,
        "params": item.params,
        "learning_rate": item.learning_rate,
        "batch_size": item.batch_size,
        "tokens": item.tokens,
        "flops": item.flops,
        "status": item.status,
        **_why(item.refusal),
        "standard_errors": item.standard_errors,
    }


# ------------------------------------------------------------------------------------- predict


def prediction(
    answer: Prediction,
    sequence_length: int | None,
    opinions: Sequence[PublishedOptimum],
    warnings: Sequence[str] = (),
) -> Document:
    """The document of `isoloss predict` from laws of one's own."""
    return {
        "learning_rate": interval(answer.learning_rate),
        "batch_size": interval(answer.batch_size),
        "batch_size_not_rounded": answer.batch_size_raw,
        "batch_size_tokens": interval(answer.batch_size_tokens),
        "batch_size_given": answer.batch_size_given,
        "batch_size_cost": interval(answer.batch_size_cost),
        "affordable_batch_sizes": _affordable(answer.affordable),
        "sequence_length": sequence_length,
        "target_loss": interval(answer.target_loss),
        "equivalent_flops": interval(answer.equivalent_flops),
        "cpt_flops": answer.cpt_flops,
        "total_flops": answer.total_flops.value,
        "total_flops_interval": interval(answer.total_flops),
        "extrapolation": _extrapolation(answer.extrapolation),
        "route": answer.route,
        "routes": {name: _point(point) for name, point in answer.routes.items()},
        "variants": {name: _point(point) for name, point in answer.variants.items()},
        "second_opinions": [_opinion(item, sequence_length) for item in opinions],
        "interval": answer.interval_level,
        "provisional": answer.provisional,
        "warnings": [*answer.warnings, *warnings],
    }


def _affordable(found: BatchSizeRange | None) -> Document | None:
    if found is None:
        return None
    return {"tolerance": found.tolerance, "smallest": found.smallest, "largest": found.largest}


def _extrapolation(value: Extrapolation) -> Document:
    return {
        "compute_factor": value.compute_factor,
        "loss_distance": value.loss_distance,
        "params_factor": value.params_factor,
    }


def _point(point: Point) -> Document:
    return {
        "learning_rate": interval(point.learning_rate),
        "batch_size": interval(point.batch_size),
        "total_flops": point.total_flops,
        "target_loss": point.target_loss,
    }


def _opinion(item: PublishedOptimum, sequence_length: int | None) -> Document:
    return {
        "name": item.name,
        "learning_rate": item.learning_rate,
        "batch_size": item.batch_size(sequence_length) if sequence_length else None,
        "batch_size_tokens": item.batch_size_tokens,
        "warnings": list(item.warnings),
    }


def published_prediction(
    law: PublishedLaw,
    answer: PublishedOptimum,
    *,
    total_flops: float,
    sequence_length: int,
    batch_size: float,
    opinions: Sequence[PublishedOptimum],
    warnings: Sequence[str] = (),
) -> Document:
    """The document of `isoloss predict` from a published law: no covariance, so no intervals."""
    nothing = {"low": None, "high": None}
    return {
        "learning_rate": {"value": answer.learning_rate, **nothing},
        "batch_size": {"value": batch_size, **nothing},
        "batch_size_not_rounded": answer.batch_size(sequence_length),
        "batch_size_tokens": {"value": answer.batch_size_tokens, **nothing},
        "sequence_length": sequence_length,
        "target_loss": None,
        "equivalent_flops": None,
        "cpt_flops": None,
        "total_flops": total_flops,
        "total_flops_interval": None,
        "extrapolation": None,
        "route": f"published:{law.name}",
        "routes": {},
        "variants": {},
        "second_opinions": [_opinion(item, sequence_length) for item in opinions],
        "interval": None,
        "provisional": False,
        "source": law.source,
        "warnings": list(warnings),
    }


# ------------------------------------------------------------------------------------ validate


def validation(outcome: Validation) -> Document:
    """The document of `isoloss validate` with probes."""
    refined = outcome.refined
    return {
        "validated": outcome.validated,
        "reason": outcome.reason.value,
        "message": outcome.message,
        "beats_neighbours": outcome.beats_neighbours,
        "comparisons": [
            {
                "learning_rate": item.neighbour.learning_rate,
                "batch_size": item.neighbour.batch_size,
                "loss": item.neighbour.loss,
                "diverged": item.neighbour.diverged,
                "difference": item.difference,
                "standard_error": item.standard_error,
                "better": item.better,
            }
            for item in outcome.comparisons
        ],
        "regret": interval(outcome.regret),
        "direction": {
            "learning_rate": outcome.direction.learning_rate,
            "batch_size": outcome.direction.batch_size,
        },
        "refined": None
        if refined is None
        else {
            "learning_rate": interval(refined.learning_rate),
            "batch_size": interval(refined.batch_size),
            "regret_of_answer": interval(refined.regret_of_answer),
        },
    }
