"""Optima, frontier and contours as the public records of a fit."""

import numpy as np

from isoloss.laws.arrays import Array
from isoloss.laws.iso_loss.optima import Frontier, SizeOptima
from isoloss.laws.iso_loss.parabola import Parabola
from isoloss.laws.model import Refusal, Status
from isoloss.laws.results import Contour, Optimum


def size_optima_results(optima: SizeOptima, log_loss: Array, fitted: Status) -> list[Optimum]:
    """The public records of one size."""
    records = []
    for level, parabola in enumerate(optima.parabolas):
        if parabola is None:
            continue
        stack = np.stack(
            [a[:, level] for a in (optima.log_rate, optima.log_batch, optima.log_tokens)]
        )
        records.append(
            _record(
                float(np.exp(log_loss[level])),
                optima.size.params,
                stack,
                optima.log_flops[0, level],
                optima.refusals[level],
                fitted,
            )
        )
    return records


def frontier_results(frontier: Frontier, fitted: Status) -> tuple[Optimum, ...]:
    """The public records across sizes."""
    records = []
    for level, refusal in enumerate(frontier.refusals):
        stack = np.stack(
            [a[:, level] for a in (frontier.log_rate, frontier.log_batch, frontier.log_tokens)]
        )
        params = None if refusal else float(np.exp(frontier.log_params[0, level]))
        records.append(
            _record(
                float(np.exp(frontier.log_loss[level])),
                params,
                stack,
                frontier.log_flops[0, level],
                refusal,
                fitted,
            )
        )
    return tuple(records)


def _record(
    loss: float,
    params: float | None,
    stack: Array,
    log_flops: float,
    refusal: Refusal | None,
    fitted: Status,
) -> Optimum:
    if refusal is not None:
        return Optimum(loss, params, "refused", refusal=refusal)
    draws = stack[:, np.isfinite(stack).all(axis=0)]
    covariance = np.cov(draws) if draws.shape[1] > 2 else np.zeros((3, 3))
    errors = np.sqrt(np.diag(covariance))
    names = ("learning_rate", "batch_size", "tokens")
    return Optimum(
        loss=loss,
        params=params,
        status=fitted,
        learning_rate=float(np.exp(stack[0, 0])),
        batch_size=float(np.exp(stack[1, 0])),
        tokens=float(np.exp(stack[2, 0])),
        flops=float(np.exp(log_flops)),
        standard_errors={name: float(e) for name, e in zip(names, errors, strict=True)},
        covariance=covariance[:2, :2],
    )


def contours_of(optima: SizeOptima, log_loss: Array) -> list[Contour]:
    """The iso-loss points and parabolas of one size, for the report."""
    contours = []
    for level, parabola in enumerate(optima.parabolas):
        if not isinstance(parabola, Parabola):
            continue
        shown = np.flatnonzero(np.isfinite(parabola.values))
        weights = np.zeros(len(parabola.values))
        weights[parabola.points] = parabola.weights
        runs = optima.size.trajectories
        contours.append(
            Contour(
                loss=float(np.exp(log_loss[level])),
                params=optima.size.params,
                run_names=tuple(runs[i].name for i in shown),
                learning_rates=np.array([runs[i].learning_rate for i in shown]),
                batch_sizes=np.array([runs[i].batch_size for i in shown]),
                log_tokens=parabola.values[shown],
                bounds=tuple(bool(parabola.bound[i]) for i in shown),
                weights=weights[shown],
                centre=parabola.fit.centre,
                coefficients=parabola.fit.coefficients,
                residual_rms=float(
                    np.sqrt(np.average(parabola.fit.residuals**2, weights=parabola.weights))
                ),
            )
        )
    return contours
